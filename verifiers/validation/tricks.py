"""Programs that solve nothing and try to pass all the same: one for each trick that published graders fell for.

    for trick in tricks():
        source = trick.source(["add"])      # defines `add`, and calls it where the program is run

Each gives a wrong answer, if it gives one at all: a reward for it means that the trick worked. They lie in
`tricks.txt`, as data for sandboxes; nothing here runs them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple

_WRONG = "'7f3a-no-such-answer'"
_SECTION = re.compile(r"^(===|\+\+\+) (.+?)( \(slow\))?\n", re.MULTILINE)


class Trick(NamedTuple):
    """One of them. `slow`: it ends only by a limit."""

    name: str
    code: str
    slow: bool

    def source(self, names: Sequence[str] = ()) -> str:
        """The program, whose function has the first of these names; the others are the same function."""
        wanted = [name for name in dict.fromkeys(names) if name.isidentifier()] or ["solve"]
        code = re.sub(r"\bENTRY\b", wanted[0], self.code)
        others = "".join(f"{name} = {wanted[0]}\n" for name in wanted[1:])
        return f"{code}\n\n{others}\nif __name__ == '__main__':\n    print({wanted[0]}())\n"


@cache
def tricks() -> tuple[Trick, ...]:
    """All of them, in the order of the file."""
    text = resources.files("verifiers.validation").joinpath("tricks.txt").read_text(encoding="utf-8")
    _, *parts = _SECTION.split(text)
    pieces: dict[str, str] = {}
    found = []
    for kind, name, slow, body in zip(*(iter(parts),) * 4, strict=True):
        code = re.sub(r"\{\{(\w+)\}\}", lambda match: pieces[match[1]], body.strip("\n"))
        if kind == "+++":
            pieces[name] = code
        else:
            found.append(Trick(name, re.sub(r"\bWRONG\b", lambda _: _WRONG, code), bool(slow)))
    return tuple(found)
