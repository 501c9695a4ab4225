"""Which projects a token is for: `owner/name` with `*` for any characters but a slash.

    matches("alice/*-env", "alice/my-env")      True
    covers("alice/*", "alice/my-*")             True: whatever the second matches, the first does

There is no other wildcard, so that one pattern inside another is decided by matching its text: a star of the inner
one can only be met by a star of the outer one.
"""

from __future__ import annotations

import re
from functools import lru_cache

from hub_server.accounts.errors import BadPattern

MAX_PATTERNS = 20

_PATTERN = re.compile(r"[a-z0-9*-]{1,100}/[a-z0-9*-]{1,100}\Z")


def check_pattern(pattern: str) -> str:
    """The pattern, as it is. BadPattern for what is none."""
    if _PATTERN.match(pattern) is None:
        raise BadPattern(f"{pattern[:100]!r} is no pattern of projects")
    return pattern


def matches(pattern: str, project: str) -> bool:
    """Whether a pattern is for a project, `owner/name`; `owner/*` asks for all projects of the owner."""
    return _compiled(pattern).match(project) is not None


def covers(outer: str, inner: str) -> bool:
    """Whether all that the inner pattern matches is matched by the outer one. (Never wrongly yes.)"""
    return matches(outer, inner)


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    # Runs of stars are one: several in a row would make a long text that does not match cost much to refuse.
    parts = re.split(r"\*+", pattern)
    return re.compile("[^/]*".join(map(re.escape, parts)) + r"\Z")
