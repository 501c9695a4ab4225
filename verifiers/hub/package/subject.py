"""The file that is inspected, as the steps of an inspection share it.

A step is a function that takes it. It reads what earlier steps have set, refuses or remarks, and sets what it found.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from packaging.metadata import RawMetadata
from packaging.requirements import Requirement

from verifiers.hub.package.facts import FileFacts, Policy, Remark
from verifiers.hub.package.names import SdistName, WheelName
from verifiers.hub.package.refusal import printable, refuse
from verifiers.hub.package.zip_walk import Digest

LINE_ENDS = re.compile("[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
"""Where `str.splitlines`, and so pip, ends a line and other readers do not."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of RECORD: path, algorithm and digest (empty together), size in bytes or None."""

    path: str
    algorithm: str
    digest: bytes
    size: int | None


def _unread(*_: object) -> NoReturn:
    raise AssertionError("the archive has not been walked yet")


@dataclass(slots=True)
class Subject:
    """One file under inspection.

    root: what the paths of the metadata start with, a wheel's dist-info folder or a source archive's top folder.
    tops: first parts of all names in a wheel. sizes: bytes of every file in the archive, by name.
    told: the fields of METADATA or PKG-INFO; unread: what is no field, or none that may stand there so often.
    requirements: told's, parsed. record: rows of RECORD by path. tags: of WHEEL.
    installed: where a file lies beside other packages' once installed, to its name in the wheel.
    module: the member that must bind load_environment, and tree what it says, None where it could not be parsed.
    pyproject: the table `[tool.verifiers]`.
    read, digests: the bytes of a file by name, with the most that it may have, and SHA-256 of every file of a wheel.
    """

    path: Path
    file: BinaryIO
    policy: Policy
    facts: FileFacts
    named: WheelName | SdistName
    root: str = ""
    tops: set[str] = field(default_factory=set)
    sizes: dict[str, int] = field(default_factory=dict)
    told: RawMetadata = field(default_factory=RawMetadata)
    unread: dict[str, list[str]] = field(default_factory=dict)
    requirements: list[Requirement] = field(default_factory=list)
    record: dict[str, Row] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    installed: dict[str, str] = field(default_factory=dict)
    module: str = ""
    tree: ast.Module | None = None
    pyproject: dict[str, Any] = field(default_factory=dict)
    read: Callable[[str, int], bytes] = _unread
    digests: Callable[[], Mapping[str, Digest]] = _unread

    def remark(self, code: str, message: str, member: str | None = None) -> None:
        """Note something that is allowed and worth knowing."""
        text = message if member is None or member in message else f"{printable(member)}: {message}"
        self.facts.warnings.append(Remark(code, text, None if member is None else printable(member)))

    def content(self, member: str, cap: int, code: str) -> bytes:
        """The bytes of a member. Refuses `code` where there are more than `cap`."""
        if self.sizes[member] > cap:
            refuse(code, f"it is larger than {cap:,} bytes", member)
        return self.read(member, cap)

    def text(self, member: str, cap: int, code: str) -> str:
        """A member as text. Refuses `code` where it is no UTF-8, holds a NUL or is larger than `cap` bytes."""
        try:
            text = self.content(member, cap, code).decode("utf-8")
        except UnicodeDecodeError:
            refuse(code, "it is not UTF-8", member)
        if "\0" in text:
            refuse(code, "it holds a NUL", member)
        return text


Step = Callable[[Subject], None]
