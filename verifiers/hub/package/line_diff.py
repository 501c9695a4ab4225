"""Unified diffs in bounded time, for text that somebody else wrote.

`difflib` compares each line with each equal one, and takes minutes for texts made for that. Here only lines that stand
once in both texts tie them together (patience diff: Bram Cohen's idea), so the time is near that of sorting; what lies
between two ties and has no such line is shown as replaced.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from difflib import Match, SequenceMatcher

_LINE = re.compile(r"[^\n]*\n|[^\n]+")

MAX_DEPTH = 32
"""Ties within ties; what is deeper is shown as replaced."""


def unified_diff(before: str, after: str, name: str) -> str:
    """The difference as `diff -u` shows it; empty if there is none."""
    old, new = _LINE.findall(before), _LINE.findall(after)
    lines = []
    for group in _Tied(old, new).get_grouped_opcodes():
        first, last = group[0], group[-1]
        lines.append(f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@\n")
        for kind, old_start, old_end, new_start, new_end in group:
            if kind == "equal":
                lines += [_line(" ", line) for line in old[old_start:old_end]]
            else:
                lines += [_line("-", line) for line in old[old_start:old_end]]
                lines += [_line("+", line) for line in new[new_start:new_end]]
    return "".join([f"--- {name}\n", f"+++ {name}\n", *lines]) if lines else ""


class _Tied(SequenceMatcher[str]):
    """difflib's grouping into hunks, over ties that were found here."""

    def __init__(self, old: Sequence[str], new: Sequence[str]) -> None:
        super().__init__()
        self.a, self.b = old, new
        self.matching_blocks = [*_blocks(_ties(old, new)), Match(len(old), len(new), 0)]


def _line(sign: str, line: str) -> str:
    return f"{sign}{line}" if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"


def _range(start: int, end: int) -> str:
    count = end - start
    return f"{start + 1}" if count == 1 else f"{start + 1 if count else start},{count}"


def _blocks(pairs: Sequence[tuple[int, int]]) -> Iterator[Match]:
    """Runs of pairs that follow each other in both texts."""
    start = 0
    for place in range(1, len(pairs) + 1):
        old, new = pairs[start]
        if place == len(pairs) or pairs[place] != (old + place - start, new + place - start):
            yield Match(old, new, place - start)
            start = place


def _ties(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of places that hold one line, rising in both texts."""
    found: list[tuple[int, int]] = []
    ranges = [(0, len(old), 0, len(new), 0)]
    while ranges:
        old_start, old_end, new_start, new_end, depth = ranges.pop()
        while old_start < old_end and new_start < new_end and old[old_start] == new[new_start]:
            found.append((old_start, new_start))
            old_start, new_start = old_start + 1, new_start + 1
        while old_start < old_end and new_start < new_end and old[old_end - 1] == new[new_end - 1]:
            old_end, new_end = old_end - 1, new_end - 1
            found.append((old_end, new_end))
        anchors = _rising(_unique(old, new, old_start, old_end, new_start, new_end)) if depth < MAX_DEPTH else []
        for (left_old, left_new), (right_old, right_new) in zip(
            [(old_start - 1, new_start - 1), *anchors], [*anchors, (old_end, new_end)], strict=True
        ):
            if anchors:
                ranges.append((left_old + 1, right_old, left_new + 1, right_new, depth + 1))
        found += anchors
    return sorted(found)


def _unique(
    old: Sequence[str], new: Sequence[str], old_start: int, old_end: int, new_start: int, new_end: int
) -> list[tuple[int, int]]:
    """Places of the lines that stand once in both ranges, in the order of the old text."""
    places: dict[str, list[int]] = {}
    for side, text, start, end in ((0, old, old_start, old_end), (2, new, new_start, new_end)):
        for place in range(start, end):
            entry = places.setdefault(text[place], [0, -1, 0, -1])
            entry[side] += 1
            entry[side + 1] = place
    return [(entry[1], entry[3]) for entry in places.values() if entry[0] == entry[2] == 1]


def _rising(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest part of the pairs whose places rise in the new text, too."""
    tops: list[int] = []  # the smallest place at which a rising run of each length ends
    ends: list[int] = []  # and the pair that it is
    before: list[int | None] = []
    for number, (_, place) in enumerate(pairs):
        length = bisect_left(tops, place)
        before.append(ends[length - 1] if length else None)
        tops[length : length + 1] = [place]
        ends[length : length + 1] = [number]
    run = []
    at = ends[-1] if ends else None
    while at is not None:
        run.append(pairs[at])
        at = before[at]
    return run[::-1]
