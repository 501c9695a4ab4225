"""Figures of a node in Prometheus' text format (version 0.0.4)."""

from __future__ import annotations

from collections.abc import Mapping


def exposition(gauges: Mapping[str, float], counts: Mapping[str, int], seconds: Mapping[str, float]) -> str:
    """gauges: what is now. counts: by what was done, `error CLASS` for failures. seconds: spent on what was done."""
    lines: list[str] = []
    for name, value in sorted(gauges.items()):
        lines += [f"# TYPE sandboxd_{name} gauge", f"sandboxd_{name} {value:g}"]
    lines.append("# TYPE sandboxd_requests_total counter")
    done = {what: count for what, count in counts.items() if not what.startswith("error ")}
    lines += [f'sandboxd_requests_total{{what="{what}"}} {count}' for what, count in sorted(done.items())]
    lines.append("# TYPE sandboxd_request_seconds_total counter")
    lines += [f'sandboxd_request_seconds_total{{what="{what}"}} {value:.6f}' for what, value in sorted(seconds.items())]
    lines.append("# TYPE sandboxd_errors_total counter")
    failed = {what.removeprefix("error "): count for what, count in counts.items() if what.startswith("error ")}
    lines += [f'sandboxd_errors_total{{type="{what}"}} {count}' for what, count in sorted(failed.items())]
    return "\n".join(lines) + "\n"
