"""The last report for Prometheus: `/metrics` and `/health` on the loopback interface.

    with PrometheusObserver(port=0) as observer:
        observer.url                     # http://127.0.0.1:PORT
        observer(report)

Every figure is a gauge: `reward/mean` is `vf_train_reward_mean`. `vf_train_last_step_timestamp_seconds` is for alerts
on runs that stand still. `/health` answers while the process lives, with the step and its age.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Self

from verifiers.errors import ConfigError, MissingExtraError
from verifiers.train.observers.metrics_file import flat
from verifiers.train.report import StepReport

PREFIX = "vf_train_"


class PrometheusObserver:
    """An observer that is a small web server."""

    def __init__(self, port: int = 0) -> None:
        try:
            from prometheus_client import CollectorRegistry
        except ImportError as error:
            raise MissingExtraError("train", "log.prometheus_port") from error
        self._values: dict[str, float] = {}
        self._stepped = self._began = time.time()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        except OSError as error:
            raise ConfigError(
                f"log.prometheus_port is {port}, and that port can not be had: {error.strerror}",
                hint="Take another port; 0 takes a free one.",
                cause=error,
            ) from error
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __call__(self, report: StepReport) -> None:
        """Remember the report."""
        self._stepped = time.time()
        self._values = {**self._values, **{name: float(value) for name, value in flat(report).items()}}

    def collect(self) -> Iterator[Any]:
        """The gauges, for prometheus_client."""
        from prometheus_client.core import GaugeMetricFamily

        for name, value in {**self._values, "last_step_timestamp_seconds": self._stepped}.items():
            yield GaugeMetricFamily(PREFIX + re.sub(r"\W", "_", name), f"{name} of the last step", value=value)

    def exposed(self) -> bytes:
        """The text of `/metrics`."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)

    def health(self) -> bytes:
        """The JSON of `/health`."""
        now = time.time()
        state = {"status": "running", "step": int(self._values.get("step", 0))}
        seconds = {"seconds_since_step": now - self._stepped, "seconds": now - self._began}
        return json.dumps({**state, **seconds}).encode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(observer: PrometheusObserver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, "text/plain; version=0.0.4; charset=utf-8", observer.exposed())
            elif self.path == "/health":
                self._answer(200, "application/json", observer.health())
            else:
                self._answer(404, "text/plain", b"there is /metrics, and /health\n")

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Not on the terminal of the run."""

    return Handler
