"""The picture of a run: well-formed whatever was measured, and its points are where the figures say."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from typing import Any

from hypothesis import given, strategies as st

from verifiers.train.curve import curve

SPACE = "{http://www.w3.org/2000/svg}"
VALUES = st.one_of(st.none(), st.floats(-1e6, 1e6), st.just(math.nan))


def drawn(rows: list[dict[str, Any]], title: str = "") -> ET.Element:
    return ET.fromstring(curve(rows, title))  # noqa: S314 - made here


@given(st.lists(st.tuples(VALUES, VALUES, st.integers(0, 100), st.integers(0, 100)), max_size=12), st.text(max_size=9))
def test_any_run_gives_a_picture(steps: list[tuple[Any, Any, int, int]], title: str) -> None:
    """None of it outside the frame, whatever is missing; text is escaped."""
    title = "".join(letter for letter in title if letter.isprintable())
    rows = [
        {"step": n, "reward/mean": reward, "eval/a<b/reward": evaluated, "outcomes/ok": ok, "outcomes/failed": failed}
        for n, (reward, evaluated, ok, failed) in enumerate(steps, 1)
    ]
    picture = drawn(rows, title)
    for line in picture.iter(f"{SPACE}polyline"):
        for point in str(line.get("points")).split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 760 and 39 <= y <= 281


def test_points_rise_with_the_reward() -> None:
    """From left to right in the order of steps; a step without reward has no point; failed rollouts have bars."""
    rows: list[dict[str, Any]] = [{"step": n, "reward/mean": n / 10, "outcomes/ok": 8.0} for n in range(1, 6)]
    del rows[2]["reward/mean"]
    rows[4]["outcomes/failed"] = 2.0
    [line] = drawn(rows).iter(f"{SPACE}polyline")
    points = [tuple(map(float, point.split(","))) for point in str(line.get("points")).split()]
    assert len(points) == 4
    assert points == sorted(points, key=lambda point: (point[0], -point[1]))
    bars = list(drawn(rows).iter(f"{SPACE}rect"))
    assert len([bar for bar in bars if bar.get("class") == "count"]) == 5
    assert len([bar for bar in bars if bar.get("fill") == "#dc2626"]) == 1
