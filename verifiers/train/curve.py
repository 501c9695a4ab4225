"""The picture of a run: reward over steps, how many rollouts each point rests on, and evaluations, as SVG.

    (folder / "curve.svg").write_text(curve(read_metrics(folder / "metrics.jsonl"), title="sums, 90 k parameters"))

Written by hand, since a picture of two axes needs no library. It stands alone and follows the reader's colour scheme.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM, COUNTS = 56, 16, 40, 34, 70
"""Margins, and the height of the counts below the curve."""

COLOURS = ("#2563eb", "#d97706", "#059669", "#c026d3", "#dc2626", "#0891b2")
FAILED = "#dc2626"
EVALUATED = re.compile(r"eval/.+/reward|validation/cross_entropy")
SCORED = ("ok", "truncated")
"""Outcomes with a reward."""

Point = tuple[float, float]

STYLE = """<style>
text { font: 12px system-ui, sans-serif; fill: #333 } .title { font-weight: 600; font-size: 14px }
.grid { stroke: #8884; stroke-width: 1 } .line { fill: none; stroke-width: 2; stroke-linejoin: round }
.count { fill: #8886 } .paper { fill: #fff }
@media (prefers-color-scheme: dark) { text { fill: #ddd } .paper { fill: #16181d } }
</style>"""


def curve(rows: Sequence[Mapping[str, Any]], title: str = "", name: str = "reward/mean", of: str = "reward") -> str:
    """The picture of these lines of `metrics.jsonl`: the figure of that name, which is the `of` of its steps, and the
    evaluations or validations beside it. Steps without it leave a gap."""
    main = _points(rows, name)
    evals = {one: _points(rows, one) for one in _eval_names(rows)}
    everything = [*main, *(point for points in evals.values() for point in points)]
    title = title or f"{of} over steps"
    first, last = _span([row["step"] for row in rows] or [0, 1])
    low, high, ticks = _axis([y for _, y in everything])
    plot = HEIGHT - TOP - BOTTOM - COUNTS

    def x(step: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (step - first) / (last - first), 1)

    def y(value: float) -> float:
        return round(TOP + plot * (1 - (value - low) / (high - low)), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>",
        STYLE,
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text class="title" x="{LEFT}" y="18">{escape(title)}</text>',
    ]
    for tick in ticks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick)}" y2="{y(tick)}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4}" text-anchor="end">{tick:g}</text>')
    parts += [
        f'<text x="{x(step)}" y="{HEIGHT - 10}" text-anchor="middle">{step:g}</text>'
        for step in dict.fromkeys((first, (first + last) // 2, last))
    ]
    series = {of: main, **evals}
    for (one, points), colour in zip(series.items(), _cycled(len(series)), strict=True):
        drawn = [(x(step), y(value)) for step, value in points]
        parts += _line(drawn, colour, marks=one != of or len(points) < 2)
    parts += _legend([one for one, points in series.items() if points])
    if name == "reward/mean":
        parts += _counts(rows, x, (last - first))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _points(rows: Iterable[Mapping[str, Any]], name: str) -> list[Point]:
    found = ((row["step"], row.get(name)) for row in rows)
    return [(step, value) for step, value in found if isinstance(value, int | float) and math.isfinite(value)]


def _eval_names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if EVALUATED.fullmatch(name)]


def _span(steps: Sequence[int]) -> tuple[int, int]:
    return min(steps), max(*steps, min(steps) + 1)


def _axis(values: Sequence[float]) -> tuple[float, float, list[float]]:
    """Lowest and highest value of an axis, and its ticks, at round numbers."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    low, high = min(low, 0.0), high if high > low else low + 1.0
    size = 10.0 ** math.floor(math.log10((high - low) / 4))
    size = next(size * factor for factor in (1, 2, 5, 10) if (high - low) / (size * factor) <= 5)
    first, last = math.floor(low / size), math.ceil(high / size)
    return first * size, last * size, [round(number * size, 10) for number in range(first, last + 1)]


def _line(points: Sequence[Point], colour: str, *, marks: bool) -> list[str]:
    path = " ".join(f"{x},{y}" for x, y in points)
    line = [f'<polyline class="line" stroke="{colour}" points="{path}"/>'] if len(points) > 1 else []
    return line + ([f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"/>' for x, y in points] if marks else [])


def _legend(names: Sequence[str]) -> list[str]:
    """Names of the lines in one row, above the plot; their width is estimated."""
    parts, x = [], float(LEFT)
    for name, colour in zip(names, _cycled(len(names)), strict=True):
        parts.append(f'<rect x="{x}" y="25" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="34">{escape(name)}</text>')
        x += 30 + 6.6 * len(name)
    return parts


def _counts(rows: Sequence[Mapping[str, Any]], x: Any, steps: int) -> list[str]:
    """Bars below the curve: rollouts behind each point, and those that failed, on top."""
    bottom, height = HEIGHT - BOTTOM, COUNTS - 26
    scored = [sum(_number(row, f"outcomes/{outcome}") for outcome in SCORED) for row in rows]
    failed = [sum(_number(row, name) for name in row if name.startswith("outcomes/")) for row in rows]
    failed = [every - good for every, good in zip(failed, scored, strict=True)]
    most = max((s + f for s, f in zip(scored, failed, strict=True)), default=0) or 1
    width = max(1.0, round((WIDTH - LEFT - RIGHT) / (steps + 1) * 0.7, 1))
    parts = [f'<text x="{LEFT - 8}" y="{bottom - height + 10}" text-anchor="end">{most:g}</text>']
    parts.append(f'<text x="{LEFT}" y="{bottom - height - 5}">rollouts a step, scored and failed</text>')
    for row, good, bad in zip(rows, scored, failed, strict=True):
        left = round(x(row["step"]) - width / 2, 1)
        tall, lost = round(height * good / most, 1), round(height * bad / most, 1)
        parts.append(f'<rect class="count" x="{left}" y="{bottom - tall}" width="{width}" height="{tall}"/>')
        if bad:
            y = round(bottom - tall - lost, 1)
            parts.append(f'<rect fill="{FAILED}" x="{left}" y="{y}" width="{width}" height="{lost}"/>')
    return parts


def _number(row: Mapping[str, Any], name: str) -> float:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _cycled(count: int) -> list[str]:
    return [COLOURS[number % len(COLOURS)] for number in range(count)]
