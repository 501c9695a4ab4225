"""The Range header of a download (RFC 9110, 14): one range, open or suffix. Anything else gets the whole file."""

from __future__ import annotations

import re
from typing import NamedTuple

_ONE = re.compile(r"bytes=\s*(\d{0,18})-(\d{0,18})\s*\Z", re.IGNORECASE | re.ASCII)


class Span(NamedTuple):
    """The bytes from `start` to before `end`."""

    start: int
    end: int


class UnsatisfiableError(ValueError):
    """No byte of the file is in the range: answer 416."""


def parse_range(header: str | None, size: int) -> Span | None:
    """The part of a file of `size` bytes that is asked for; None is the whole, with status 200."""
    found = _ONE.match(header.strip()) if header else None
    if found is None or found[1] == found[2] == "":
        return None
    if found[1] == "":  # the last so many
        length = min(int(found[2]), size)
        start, end = size - length, size
    else:
        start = int(found[1])
        end = size if found[2] == "" else min(int(found[2]) + 1, size)
        if found[2] != "" and int(found[2]) < start:
            return None  # not a range at all
    if start >= end:
        raise UnsatisfiableError(header)
    return Span(start, end)
