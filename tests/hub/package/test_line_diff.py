"""Unified diffs: what they say is right, and no text makes them slow."""

import re

from hypothesis import given, strategies as st

from verifiers.hub.package.line_diff import unified_diff

LINES = ["a\n", "b\n", "c\n", "\n", "def f():\n", "-- x\n", "b\x0cc\u2028\r\n"]
TEXTS = st.lists(st.sampled_from(LINES), max_size=14).map("".join)
ENDS = st.sampled_from(["", "end", "end\n"])


def patched(before, diff):
    """What a patch makes of a text: an own, literal reading of the format."""
    old = before.split("\n")
    old = [f"{line}\n" for line in old[:-1]] + ([old[-1]] if old[-1] else [])
    lines = [f"{line}\n" for line in diff.split("\n")[:-1]][2:]
    done, at, number = [], 0, 0
    while number < len(lines):
        start, count = re.match(r"@@ -(\d+)(?:,(\d+))? ", lines[number]).groups()
        start = int(start) - (count != "0")
        done += old[at:start]
        at = start
        number += 1
        while number < len(lines) and not lines[number].startswith("@@ "):
            sign, line = lines[number][0], lines[number][1:]
            if number + 1 < len(lines) and lines[number + 1].startswith("\\"):
                line, number = line.removesuffix("\n"), number + 1
            if sign in " -":
                assert old[at] == line
                at += 1
            if sign in " +":
                done.append(line)
            number += 1
    return "".join(done + old[at:])


@given(TEXTS, ENDS, TEXTS, ENDS)
def test_a_diff_turns_one_text_into_the_other(one, one_end, two, two_end):
    """And is empty exactly for equal texts."""
    before, after = one + one_end, two + two_end
    diff = unified_diff(before, after, "x.py")
    assert bool(diff) == (before != after)
    assert patched(before, diff) == after if diff else before == after


def test_a_small_change_is_a_small_diff():
    """The lines around a change tie the texts together."""
    before = "".join(f"line {number}\n" for number in range(100))
    assert unified_diff(before, before.replace("line 50\n", "line fifty\n"), "x.py") == (
        "--- x.py\n+++ x.py\n@@ -48,7 +48,7 @@\n line 47\n line 48\n line 49\n-line 50\n+line fifty\n"
        " line 51\n line 52\n line 53\n"
    )


def test_texts_made_to_be_slow_take_no_more_steps_than_others(monkeypatch):
    """Repeated lines, over which difflib compares each with each, are looked at a few times only."""
    looked = 0

    class Line(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other):
            nonlocal looked
            looked += 1
            return str.__eq__(self, other)

    from verifiers.hub.package import line_diff

    old = [Line(f"{number % 50}\n") for number in range(5000)]
    new = [Line(f"{(number * 7) % 50}\n") for number in range(5000)]
    line_diff._ties(old, new)
    assert looked < 100_000
