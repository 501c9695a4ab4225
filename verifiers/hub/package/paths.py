"""The names that members of an archive may have, and the amounts that an archive may hold.

    paths = Paths(Limits())
    paths.add("demo_env/__init__.py")          one call a member; refuses what no file system should be asked for

A name that passes means one and the same file on Linux, macOS and Windows, inside the folder it is unpacked in, and
no two members mean the same one. Nothing here touches a file.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from verifiers.hub.package.refusal import refuse

_PLAIN = re.compile(r"(?:[A-Za-z0-9_+=@-][A-Za-z0-9_.+=@-]*/)*[A-Za-z0-9_+=@-][A-Za-z0-9_.+=@-]*\Z")
"""Almost every name there is; the others are looked at more closely."""
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, line separators, half characters, and what makes a name be shown in another order."""
_WINDOWS = re.compile(r"(?:\A|/)(?:con|prn|aux|nul|com[0-9]|lpt[0-9]|conin\$|conout\$) *(?:[./]|\Z)", re.IGNORECASE)
"""Devices of Windows, which are there in every folder, under any ending."""
_FORBIDDEN = re.compile(r'[:*?"<>|]')
"""What Windows has in no name, or takes for another stream of the file before it."""
_DRIVE = re.compile(r"(?:\A|/)[A-Za-z]:")
MAX_PATH = 1024
"""Bytes of a whole name."""
MAX_PART = 255
"""Bytes of a part between slashes: what file systems take."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an archive may hold.

    file_bytes: of the file itself. members: files and folders; their names may make as many folders more. An
    archive is a bomb where it unpacks to more than bomb_bytes and to more than bomb_ratio times its own size.
    """

    file_bytes: int = 100 << 20
    members: int = 20_000
    bomb_bytes: int = 64 << 20
    bomb_ratio: int = 50

    def is_bomb(self, unpacked: int, packed: int) -> bool:
        """Whether so many bytes are too many for a file of `packed` bytes."""
        return unpacked > self.bomb_bytes and unpacked > self.bomb_ratio * packed


class Paths:
    """The names of one archive so far."""

    def __init__(self, limits: Limits) -> None:
        self._limit = limits.members
        self._names: dict[str, tuple[str, bool]] = {}
        self._parents: set[str] = set()

    def add(self, path: str, is_dir: bool = False) -> None:
        """Take a name, without a slash at its end, or refuse it."""
        check_path(path)
        folded = fold(path)
        before = self._names.get(folded)
        if before is not None:
            _refuse_second(path, is_dir, *before)
        if not is_dir and folded in self._parents:
            refuse("path-conflict", f"{path!r} is a file, and other members are inside it", path)
        self._names[folded] = (path, is_dir)
        if len(self._names) > self._limit:
            refuse("archive-members", f"the archive holds more than {self._limit} members")
        self._add_parents(path, folded)

    def _add_parents(self, path: str, folded: str) -> None:
        parent = folded.rpartition("/")[0]
        while parent and parent not in self._parents:
            known = self._names.get(parent)
            if known is not None and not known[1]:
                refuse("path-conflict", f"{known[0]!r} is a file, and {path!r} is inside it", path)
            self._parents.add(parent)
            parent = parent.rpartition("/")[0]
        if len(self._parents) > self._limit:
            refuse("archive-members", f"the archive makes more than {self._limit} folders")


def _refuse_second(path: str, is_dir: bool, first: str, first_is_dir: bool) -> None:
    if is_dir != first_is_dir:
        refuse("path-conflict", f"{path!r} is there as a file and as a folder", path)
    if path == first:
        refuse("path-duplicate", f"{path!r} is there twice", path)
    refuse("path-twin", f"{first!r} and {path!r} are one name where case is not told apart", path)


def check_path(path: str) -> None:
    """Refuse a name that is no relative path to one file on every system."""
    if _WINDOWS.search(path):
        refuse("path-windows", "a part of the name is a device of Windows", path)
    if len(path) <= MAX_PART and _PLAIN.match(path):
        return
    if not path:
        refuse("path-parts", "a member has an empty name")
    if _CONTROL.search(path):
        refuse("path-control", "the name holds control characters", path)
    if "\\" in path:
        refuse("path-backslash", "the name holds a backslash", path)
    if path.startswith("/"):
        refuse("path-absolute", "the name starts at the root", path)
    if _DRIVE.search(path):
        refuse("path-drive", "the name holds a drive letter", path)
    if _FORBIDDEN.search(path):
        refuse("path-windows", "the name holds a character that Windows has in none", path)
    parts = path.split("/")
    if not all(part.strip(". ") for part in parts):
        refuse("path-parts", "a part of the name is empty or nothing but dots", path)
    if len(path.encode()) > MAX_PATH or any(len(part.encode()) > MAX_PART for part in parts):
        refuse("path-length", f"the name is longer than {MAX_PATH} bytes, or a part of it than {MAX_PART}", path)


def fold(path: str) -> str:
    """One text for all names that a file system may take for the same: case, accents, dots and blanks at the end."""
    if path.isascii():
        folded = path.lower()
    else:
        folded = unicodedata.normalize("NFD", unicodedata.normalize("NFD", path).casefold())
    if ". " in folded or "./" in folded or " /" in folded or folded.endswith((".", " ")):
        return "/".join(part.rstrip(". ") or part for part in folded.split("/"))
    return folded


def decode_path(raw: bytes) -> str:
    """A name as text: UTF-8, or refused."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        refuse("path-encoding", "the name is not UTF-8", raw.decode("utf-8", "backslashreplace"))
