"""A run's figures for Prometheus: `/metrics` and `/health`.

    with PrometheusObserver(port=0) as observer:
        observer.url                     # http://127.0.0.1:PORT
        observer(report)

Figures of the last step are gauges: `reward/mean` is `vf_train_reward_mean`; what that step did not measure is not
shown. Those of the last evaluation stand beside them, with `vf_train_evaluated_step`, until the next. Counts are
counters over the life of the process, so that no scrape misses one: `errors/model` is `vf_train_errors_model_total`.
`vf_train_last_step_timestamp_seconds` is for alerts on runs that stand still: evaluations do not move it. `/health`
answers while the process lives, with the step and its age.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, NamedTuple, Self

from verifiers.errors import ConfigError, MissingExtraError
from verifiers.train.observers.metrics_file import flat
from verifiers.train.report import StepReport

PREFIX = "vf_train_"

COUNTS = re.compile(
    r"(batch|checkpoints|errors|observers|outcomes|tokens|rows/breaks|rows/none|lag/rows)/.+"
    r"|groups/(?!(few|zero_std|signal|in_flight|ready)$).+"
    r"|rows/(stale|too_long|trained)|trainer/(microbatches|skipped)|eval/skipped"
)
"""Figures that are counted in a step, and add up; all others are states, means or shares."""

WATCHED = (
    *("checkpoints/failed", "checkpoints/saved", "eval/skipped", "observers/failed", "trainer/skipped"),
    *("outcomes/failed", "outcomes/ok"),
)
"""Counts that alerts are about: shown from the beginning, since the first increase of one that appears is not seen, and
what is compared with one that is not there is never true."""

EVALUATED = ("eval/", "validation/")
"""What figures of an evaluation begin with."""


class _Shown(NamedTuple):
    """What is exposed. Replaced whole: another thread reads it."""

    step: Mapping[str, float]
    evaluated: Mapping[str, float]
    totals: Mapping[str, float]


class PrometheusObserver:
    """An observer that is a small web server."""

    def __init__(self, port: int = 0, host: str = "127.0.0.1") -> None:
        try:
            from prometheus_client import CollectorRegistry
        except ImportError as error:
            raise MissingExtraError("train", "log.prometheus_port") from error
        self._shown = _Shown({}, {}, dict.fromkeys(WATCHED, 0.0))
        self._host = host
        self._stepped = self._began = time.time()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(self))
        except OSError as error:
            raise ConfigError(
                f"log.prometheus_port is {port}, and that port of {host} can not be had: {error.strerror}",
                hint="Take another port, 0 takes a free one; log.prometheus_host has to be an address of this machine.",
                cause=error,
            ) from error
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{self._host}:{self._server.server_port}"

    def __call__(self, report: StepReport) -> None:
        """Remember the report."""
        counted = {name: value for name, value in report.figures.items() if COUNTS.fullmatch(name)}
        figures = {name: float(value) for name, value in flat(report).items() if name not in counted}
        of_evaluation = {name: value for name, value in figures.items() if name.startswith(EVALUATED)}
        step, evaluated, totals = self._shown
        if of_evaluation:
            evaluated = {**of_evaluation, "evaluated/step": float(report.step)}
        if report.is_step:
            self._stepped = time.time()
            step = {name: value for name, value in figures.items() if name not in of_evaluation}
            totals = {**totals, **{name: totals.get(name, 0.0) + value for name, value in counted.items()}}
        self._shown = _Shown(step, evaluated, totals)

    def collect(self) -> Iterator[Any]:
        """Gauges and counters, for prometheus_client."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        step, evaluated, totals = self._shown
        stepped = {"last_step_timestamp_seconds": self._stepped}
        for values, of in ((step, "the last step"), (evaluated, "the last evaluation"), (stepped, "the run")):
            for name, value in values.items():
                yield GaugeMetricFamily(_name(name), f"{name} of {of}", value=value)
        for name, value in totals.items():
            yield CounterMetricFamily(_name(name), f"{name} since the process began", value=value)

    def exposed(self) -> bytes:
        """The text of `/metrics`."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)

    def health(self) -> bytes:
        """The JSON of `/health`."""
        now = time.time()
        state = {"status": "running", "step": int(self._shown.step.get("step", 0))}
        seconds = {"seconds_since_step": now - self._stepped, "seconds": now - self._began}
        return json.dumps({**state, **seconds}).encode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _name(figure: str) -> str:
    return PREFIX + re.sub(r"\W", "_", figure)


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
