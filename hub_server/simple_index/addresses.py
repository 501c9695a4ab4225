"""The addresses of indexes and files, read by hand: this runs for every request.

    parse("/simple/my-env/")                   IndexAddress(None, None, "my-env", slash=True)      the whole hub
    parse("/alice/simple/my-env/")             IndexAddress("alice", None, "my-env", slash=True)   an owner
    parse("/alice/my-env/simple/numpy/")       IndexAddress("alice", "my-env", "numpy", slash=True)
    parse("/alice/my-env/full/simple/numpy/")  the same with full=True: what it does not have is elsewhere
    parse("/files/alice/my-env/<sha256>/my_env-1.0-py3-none-any.whl")                              FileAddress(...)
"""

from __future__ import annotations

import re
from typing import NamedTuple

from verifiers.errors import UserError
from verifiers.hub.package.names import ROUTE_WORDS, normalise

SIDECAR = ".metadata"
_NORMAL = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*\Z")


class IndexAddress(NamedTuple):
    """A page of an index; without a `name` it is the list of its projects."""

    owner: str | None
    project: str | None
    name: str | None
    slash: bool
    full: bool = False

    @property
    def is_normal(self) -> bool:
        """Whether this is the one spelling: the normal name, and a slash."""
        return self.slash and (self.name is None or _NORMAL.match(self.name) is not None)

    @property
    def template(self) -> str:
        """The form of the address, for logs and metrics."""
        before = "" if self.owner is None else "/{owner}" if self.project is None else "/{owner}/{project}"
        return f"{before}{'/full' * self.full}/simple/" + ("" if self.name is None else "{name}/")

    def normal_path(self) -> str | None:
        """The one spelling. None if no project can have that name, or no owner its own: `//elsewhere/simple/x` is never
        sent on, since browsers read an address that begins so as another host's."""
        before = [part for part in (self.owner, self.project) if part is not None] + ["full"] * self.full
        if not all(map(_NORMAL.match, before)):
            return None
        try:
            after = [] if self.name is None else [normalise(self.name)]
        except UserError:
            return None
        return "/".join(["", *before, "simple", *after, ""])


class FileAddress(NamedTuple):
    """A file, or the METADATA of one."""

    owner: str
    name: str
    sha256: str
    filename: str
    sidecar: bool

    @property
    def template(self) -> str:
        """The form of the address, for logs and metrics."""
        return "/files/{owner}/{name}/{sha256}/{filename}" + (SIDECAR if self.sidecar else "")


Address = IndexAddress | FileAddress


def parse(path: str) -> Address | None:
    """What an address means; None if it is neither an index nor a file."""
    parts = path.split("/")
    count = len(parts)
    if count > 1 and parts[1] == "simple":
        return _index(None, None, parts[2:])
    if count == 6 and parts[1] == "files":
        sidecar = parts[5].endswith(SIDECAR)
        return FileAddress(parts[2], parts[3], parts[4], parts[5].removesuffix(SIDECAR), sidecar)
    if count > 2 and parts[1] not in ROUTE_WORDS:
        if parts[2] == "simple":
            return _index(parts[1], None, parts[3:])
        if count > 3 and parts[3] == "simple":
            return _index(parts[1], parts[2], parts[4:])
        if count > 4 and parts[3:5] == ["full", "simple"]:
            return _index(parts[1], parts[2], parts[5:], full=True)
    return None


def _index(owner: str | None, project: str | None, rest: list[str], *, full: bool = False) -> IndexAddress | None:
    match rest:
        case [] | [""]:
            return IndexAddress(owner, project, None, bool(rest), full)
        case [name] | [name, ""]:
            return IndexAddress(owner, project, name, len(rest) == 2, full)
    return None
