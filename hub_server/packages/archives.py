"""Looking into the wheels of releases, from the storage, in bounded memory."""

from __future__ import annotations

import difflib
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from hub_server.context import Context
from hub_server.packages.errors import MemberTooLarge, NoSuchFile, NotText, NoWheel, TooLargeToCompare
from hub_server.packages.models import Project, Release
from hub_server.packages.records import is_offered, offered_files, release_id, wheel_of
from hub_server.storage import Storage, StorageError
from verifiers.hub.package.compare import compare_facts, compare_files, text_of
from verifiers.hub.package.paths import Limits
from verifiers.hub.package.zip_walk import ZipListing, walk_zip
from verifiers.hub.schema import Difference, WheelContents, WheelMember

MAX_SHOWN = 1 << 20
"""Bytes of a member that is shown."""
MAX_COMPARED = 512 << 20
"""Bytes, unpacked, of two wheels that are compared."""
NEAR = 200
"""Members among which a name is sought that was meant: comparing names is slow."""


@dataclass(frozen=True)
class Wheel:
    """Which wheel is looked into: all that is needed once the database is let go."""

    id: str
    filename: str
    sha256: str
    facts: Mapping[str, Any] = field(default_factory=dict)


def wheel_to_open(project: Project, release: Release, filename: str | None = None) -> Wheel:
    """The wheel of a release: the named one, or the one that stands for it. NoWheel."""
    id = release_id(project, release)
    if not is_offered(project):
        raise NoWheel(f"{id} is in quarantine: its files are not offered")
    files = [file for file in offered_files(release) if filename in (None, file.filename)]
    wheel = wheel_of(files)
    if wheel is None:
        raise NoWheel(f"{id} has no wheel{f' {filename[:200]}' if filename else ''}")
    facts = {**release.facts, "summary": release.summary, "requires_python": release.requires_python}
    return Wheel(id, wheel.filename, wheel.sha256, facts)


def members_of(context: Context, wheel: Wheel) -> WheelContents:
    """The files of a wheel, in their order."""
    with _opened(context, wheel) as listing:
        members = [WheelMember(path=one.name, size=one.size) for one in listing.members if not one.is_dir]
    return WheelContents(id=wheel.id, filename=wheel.filename, sha256=wheel.sha256, members=members)


def text_in(context: Context, wheel: Wheel, path: str) -> str:
    """One file of a wheel. NoSuchFile, MemberTooLarge, NotText."""
    with _opened(context, wheel) as listing:
        member = next((one for one in listing.members if one.name == path and not one.is_dir), None)
        if member is None:
            names = [one.name for one in listing.members[:NEAR] if not one.is_dir]
            near = difflib.get_close_matches(path[:200], names, 1)
            hint = f"Did you mean {near[0]}?" if near else f"hub inspect {wheel.id} lists the files."
            raise NoSuchFile(f"{wheel.filename} holds no {path[:200]}", hint=hint)
        if member.size > MAX_SHOWN:
            raise MemberTooLarge(f"{path} has {member.size:,} bytes, and up to {MAX_SHOWN:,} are shown")
        text = text_of(listing, member, MAX_SHOWN)
    if text is None:
        raise NotText(f"{path} is not text in UTF-8")
    return text


def difference(context: Context, before: Wheel, after: Wheel) -> Difference:
    """What changed from one release to another."""
    with ExitStack() as stack:
        old, new = (stack.enter_context(_opened(context, wheel)) for wheel in (before, after))
        if sum(member.size for listing in (old, new) for member in listing.members) > MAX_COMPARED:
            raise TooLargeToCompare(f"the wheels unpack to more than {MAX_COMPARED >> 20} MiB")
        files = compare_files(old, new)
    dependencies, hub_dependencies, fields = compare_facts(before.facts, after.facts)
    return Difference(
        before=before.id, after=after.id, files=files, dependencies=dependencies,
        hub_dependencies=hub_dependencies, fields=fields,
    )  # fmt: skip


@contextmanager
def _opened(context: Context, wheel: Wheel) -> Iterator[ZipListing]:
    with _file(context.storage, wheel.sha256) as file:
        yield walk_zip(file, Limits(file_bytes=1 << 62))  # its size was judged when it was published


@contextmanager
def _file(storage: Storage, digest: str) -> Iterator[BinaryIO]:
    """A blob to seek in: itself, or a copy on this machine while it is looked into."""
    path = storage.local_path(digest)
    if path is not None:
        with path.open("rb") as file:
            yield file
        return
    with tempfile.TemporaryFile(dir=storage.incoming) as copy:
        try:
            copy.writelines(storage.read(digest))
        except KeyError:
            raise StorageError(f"the blob {digest} is missing") from None
        yield copy
