"""Text that others wrote, as it may be shown on a terminal."""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    """The text without what steers a terminal or changes the direction of writing: those characters are shown as their
    escapes. `keep` are exceptions, such as a line's end."""
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )
