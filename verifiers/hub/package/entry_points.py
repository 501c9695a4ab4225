"""Steps on entry_points.txt and on the scripts that a wheel brings.

Three readers look at that file, and they are three languages: configparser's, importlib.metadata's (pip) and that of
uv. So it is read here line by line, and a line that they may take for different things is refused: a comment that goes
on for one of them, an indented line, `[group]` with something after it.

The specification is "Entry points specification".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NoReturn

from verifiers.hub.package.paths import fold
from verifiers.hub.package.protected import is_taken_script
from verifiers.hub.package.refusal import printable, refuse
from verifiers.hub.package.subject import LINE_ENDS, Step, Subject

MAX_ENTRY_POINTS = 1 << 20
SCRIPT_GROUPS = ("console_scripts", "gui_scripts")

_SECTION = re.compile(r"\[(\w+(?:\.\w+)*)\]\Z")
_SCRIPT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")
_ENTRY = re.compile(r"[^\s=\[\]/\\:;#,'\"][^=\[\]/\\\r\n]*\Z")
_TARGET = re.compile(r"\w+(?:\.\w+)*(?:[ \t]*:[ \t]*\w+(?:\.\w+)*)?(?:[ \t]*\[[\w \t.,-]*\])?\Z")


def read_entry_points(subject: Subject) -> None:
    """Entry points have names, never paths, and point at `module` or `module:attribute`."""
    member = f"{subject.root}/entry_points.txt"
    if member not in subject.sizes:
        return
    groups: dict[str, dict[str, str]] = {}
    entries: dict[str, str] | None = None
    for line in _lines(subject.text(member, MAX_ENTRY_POINTS, "entry-point"), member):
        if line.startswith("["):
            entries = groups.setdefault(_group(line, groups, member), {})
        elif entries is None:
            _refuse_line(line, "it is before the first [group]", member)
        else:
            name, target = _entry(line, next(reversed(groups)), member)
            if name in entries:
                _refuse_line(line, "the name is there twice", member)
            entries[name] = target
    subject.facts.entry_points = groups


def _lines(text: str, member: str) -> Iterator[str]:
    """The lines that say something."""
    for ended in text.split("\n"):
        line = ended.removesuffix("\r").rstrip(" \t")
        if LINE_ENDS.search(line):
            _refuse_line(line, "some readers end the line within it", member)
        if line.startswith((" ", "\t")):
            _refuse_line(line, "it is indented: some readers take it for a part of the line before", member)
        if line and not line.startswith("#"):
            yield line


def _group(line: str, groups: dict[str, dict[str, str]], member: str) -> str:
    found = _SECTION.match(line)
    if found is None:
        _refuse_line(line, "the group is no dotted name in brackets", member)
    if found[1] in groups:
        _refuse_line(line, "the group is there twice", member)
    return found[1]


def _entry(line: str, group: str, member: str) -> tuple[str, str]:
    """Name and target of a line."""
    name, equals, target = (part.strip(" \t") for part in line.partition("="))
    if not equals or (_SCRIPT if group in SCRIPT_GROUPS else _ENTRY).match(name) is None:
        _refuse_line(line, "the name is none" if equals else "it is not name = target", member)
    if _TARGET.match(target) is None:
        _refuse_line(line, "the target is not module or module:attribute", member)
    return name, target


def _refuse_line(line: str, what: str, member: str) -> NoReturn:
    refuse("entry-point", f"{printable(line)!r}: {what}", member)


# --- scripts ----------------------------------------------------------------------------------------------------


def check_scripts(subject: Subject) -> None:
    """No script takes the place of another one: of the wheel, an interpreter, an installer, or what we require."""
    taken: set[str] = set()
    for name, member in _scripts(subject):
        if _SCRIPT.match(name) is None:
            refuse("script-name", f"{printable(name)!r} is no name of a script", member)
        if fold(name) in taken:
            refuse("script-name", f"the wheel makes the script {name!r} twice", member)
        taken.add(fold(name))
        if subject.policy.environment and is_taken_script(name):
            refuse("script-name", f"a script {name!r} would replace one that is there already", member)


def _scripts(subject: Subject) -> Iterator[tuple[str, str]]:
    """Every script, with the member that it comes from."""
    for group in SCRIPT_GROUPS:
        for name in subject.facts.entry_points.get(group, {}):
            yield name, f"{subject.root}/entry_points.txt"
    folder = f"{subject.root.removesuffix('.dist-info')}.data/scripts/"
    for path in subject.sizes:
        if path.startswith(folder):
            yield path.removeprefix(folder), path


CHECKS: list[Step] = [read_entry_points, check_scripts]
