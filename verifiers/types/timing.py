"""Where the time of a rollout went. All times are in seconds; `*_ms` keys are milliseconds."""

from __future__ import annotations

import time
from typing import Any, Self

_EPOCH = time.time() - time.monotonic()


def now() -> float:
    """Unix seconds that only move forward, as seconds do: the system's clock may be set meanwhile."""
    return _EPOCH + time.monotonic()


class _Keyed:
    """Reads its attributes as keys, too."""

    __slots__ = ()

    def __getitem__(self, key: str) -> Any:
        if key.startswith("_") or not hasattr(self, key):
            raise KeyError(key)
        return getattr(self, key)


class TimeSpan(_Keyed):
    """A start and an end, in Unix seconds. An open span has the duration 0. As a context manager it ends with it."""

    __slots__ = ("end", "start")

    def __init__(self, start: float = 0.0, end: float = 0.0) -> None:
        self.start = start
        self.end = end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end = now()

    @property
    def duration(self) -> float:
        return max(0.0, self.end - self.start) if self.end else 0.0

    def to_dict(self) -> dict[str, float]:
        return {"start": self.start, "end": self.end, "duration": self.duration}


class TimeSpans(_Keyed):
    """Several spans of one kind, such as the model calls of a rollout."""

    __slots__ = ("spans",)

    def __init__(self, spans: list[TimeSpan] | None = None) -> None:
        self.spans = spans or []

    @property
    def duration(self) -> float:
        return sum(span.duration for span in self.spans)

    def to_dict(self) -> dict[str, Any]:
        spans = [span.to_dict() for span in self.spans]
        return {"spans": spans, "duration": sum([span["duration"] for span in spans])}


class RolloutTiming:
    """Spans `setup`, `generation` (which includes setup), `scoring`; lists of spans `model` and `env`.

    Reads as attributes and as keys, including the keys of the 0.1 series: `timing["generation_ms"]`.
    """

    __slots__ = ("env", "extra", "generation", "model", "scoring", "setup", "start_time")

    def __init__(self, start_time: float | None = None) -> None:
        self.start_time = now() if start_time is None else start_time
        self.setup = TimeSpan()
        self.generation = TimeSpan(self.start_time)
        self.scoring = TimeSpan()
        self.model = TimeSpans()
        self.env = TimeSpans()
        self.extra: dict[str, Any] = {}

    @property
    def total(self) -> float:
        """From the start of generation to the end of scoring, or of generation if it was not scored."""
        end = self.scoring.end or self.generation.end
        return max(0.0, end - self.generation.start) if end else 0.0

    @property
    def overhead(self) -> float:
        """What is neither setup, model, environment nor scoring: waiting and the framework itself."""
        overhead: float = self.to_dict()["overhead"]
        return overhead

    def record(self, kind: str) -> TimeSpan:
        """`with timing.record(kind):` times the block as the span `setup` or `scoring`, or as one more span of `model`
        or `env`."""
        span = TimeSpan(now())
        target = getattr(self, kind)
        if isinstance(target, TimeSpans):
            target.spans.append(span)
        else:
            setattr(self, kind, span)
        return span

    def to_dict(self) -> dict[str, Any]:
        """As saved in a record: the spans, and the millisecond keys of the 0.1 series."""
        setup, generation, scoring = self.setup.to_dict(), self.generation.to_dict(), self.scoring.to_dict()
        model, env, total = self.model.to_dict(), self.env.to_dict(), self.total
        known = setup["duration"] + model["duration"] + env["duration"] + scoring["duration"]
        return {
            "start_time": self.start_time,
            "setup": setup,
            "generation": generation,
            "scoring": scoring,
            "model": model,
            "env": env,
            "total": total,
            "overhead": max(0.0, total - known),
            "generation_ms": generation["duration"] * 1000,
            "scoring_ms": scoring["duration"] * 1000,
            "total_ms": total * 1000,
            **self.extra,
        }

    def __getitem__(self, key: str) -> Any:
        if key in self.extra:
            return self.extra[key]
        try:
            return getattr(self, key)
        except AttributeError:
            raise KeyError(key) from None

    def __getattr__(self, name: str) -> Any:
        # Only reached for names that are no attributes: the millisecond keys of the 0.1 series.
        if name in ("generation_ms", "scoring_ms", "total_ms"):
            span = getattr(self, name.removesuffix("_ms"))
            return (span if isinstance(span, float) else span.duration) * 1000
        raise AttributeError(f"RolloutTiming has no field {name!r}")

    def __setitem__(self, key: str, value: Any) -> None:
        if key in self.__slots__:
            setattr(self, key, value)
        else:
            self.extra[key] = value

    def __contains__(self, key: str) -> bool:
        return key in self.to_dict()

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default
