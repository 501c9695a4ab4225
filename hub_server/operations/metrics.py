"""Numbers for Prometheus: what `GET /metrics` answers.

With several server processes each keeps its numbers in files of `PROMETHEUS_MULTIPROC_DIR` (set by `hub serve` before
it starts them), and whichever is asked answers with the sums.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError

from hub_server.context import Context
from hub_server.journal import current_serial

FOLDER = "PROMETHEUS_MULTIPROC_DIR"

disable_created_metrics()  # type: ignore[no-untyped-call]  # twice the lines, and nobody reads them
registry = CollectorRegistry()

REQUESTS = Counter("hub_requests", "Requests answered.", ("method", "route", "status"), registry=registry)
SECONDS = Histogram(
    "hub_request_seconds", "Seconds from the request to the end of its answer.", ("route",), registry=registry,
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)  # fmt: skip
RECEIVED = Counter("hub_received_bytes", "Bytes of request bodies.", registry=registry)
SENT = Counter("hub_sent_bytes", "Bytes of answers.", registry=registry)
IN_FLIGHT = Gauge("hub_requests_in_flight", "Requests being answered.", registry=registry, multiprocess_mode="livesum")
UPLOADS = Counter("hub_uploads", "Files published.", ("kind",), registry=registry)
REFUSALS = Counter("hub_refusals", "Requests refused, by the code of the rule.", ("code",), registry=registry)
DOWNLOADS = Counter("hub_downloads", "Files handed out.", registry=registry)
INSPECTOR_RESTARTS = Counter("hub_inspector_restarts", "Inspectors that an upload has ended.", registry=registry)
CONNECTIONS = Gauge(
    "hub_database_connections", "Connections to the database.", ("state",), registry=registry,
    multiprocess_mode="livesum",
)  # fmt: skip


class _Asked:
    """What is looked up when somebody asks: the journal's serial, the free space."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def collect(self) -> Iterator[Metric]:
        """Leave out what can not be had: a scrape must not fail because the database does."""
        free = shutil.disk_usage(self.context.settings.data).free
        yield GaugeMetricFamily("hub_free_bytes", "Bytes free on the volume of the data folder.", value=free)
        try:
            with self.context.database.read() as session:
                serial = current_serial(session)
        except SQLAlchemyError:
            return
        yield GaugeMetricFamily("hub_journal_serial", "Serial of the last change.", value=serial)


def page(context: Context) -> bytes:
    """All numbers, in Prometheus's text form."""
    answer = CollectorRegistry()
    if folder := os.environ.get(FOLDER):
        MultiProcessCollector(answer, folder)  # type: ignore[no-untyped-call]
    own = b"" if folder else generate_latest(registry)
    answer.register(_Asked(context))
    return own + generate_latest(answer)


def watch(context: Context) -> None:
    """Count what happens in the parts: connections to the database, open and in use, and inspectors that end."""
    context.inspector.on_end = INSPECTOR_RESTARTS.inc
    opened, used = CONNECTIONS.labels("open"), CONNECTIONS.labels("in_use")
    pool = context.database.engine.pool
    event.listen(pool, "connect", lambda *_: opened.inc())
    event.listen(pool, "close", lambda *_: opened.dec())
    event.listen(pool, "checkout", lambda *_: used.inc())
    event.listen(pool, "checkin", lambda *_: used.dec())


def forget_process(number: int) -> None:
    """Drop what a dead process says of the present (requests in flight); its counts stay."""
    if FOLDER in os.environ:
        mark_process_dead(number, os.environ[FOLDER])  # type: ignore[no-untyped-call]
