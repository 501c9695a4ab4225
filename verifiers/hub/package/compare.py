"""What differs between two wheels: the hub's `diff` and `hub diff` of a local wheel are this.

    compare_files(walk_zip(old, limits), walk_zip(new, limits))      files, with unified diffs of text
    compare_facts(old_facts, new_facts)                              dependencies and the rest of the metadata
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from verifiers.hub.package.line_diff import unified_diff
from verifiers.hub.package.zip_walk import Member, ZipListing
from verifiers.hub.schema import FieldChange, FileChange, ListChange

MAX_TEXT = 256 << 10
"""Bytes of a file that is shown as a diff."""
MAX_DIFFS = 1 << 20
"""Characters of all diffs together."""

FIELDS = (
    "summary", "requires_python", "needs", "license", "keywords", "classifiers", "project_urls", "author", "extras",
    "entry_points", "import_names", "tags",
)  # fmt: skip
_METADATA_FOLDER = re.compile(r"[^/]+\.dist-info/")


def compare_files(before: ZipListing, after: ZipListing) -> list[FileChange]:
    """Files that are not alike, by path. RECORD, which follows from the others, is left out; the metadata folder, whose
    name has the version, counts as the same."""
    old, new = _files(before), _files(after)
    changes, room = [], MAX_DIFFS
    for key in sorted(old.keys() | new.keys(), key=_code_first):
        change = _change(before, after, old.get(key), new.get(key), room)
        if change is not None:
            room -= len(change.diff or "")
            changes.append(change)
    return changes


def compare_facts(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[ListChange, ListChange, list[FieldChange]]:
    """Dependencies, hub dependencies, and the fields of which the two say something else."""
    fields = [
        FieldChange(field=name, before=before.get(name), after=after.get(name))
        for name in FIELDS
        if (before.get(name) or None) != (after.get(name) or None)
    ]
    lists = [_lists(before.get(name), after.get(name)) for name in ("requires_dist", "hub_dependencies")]
    return lists[0], lists[1], fields


def _lists(before: Any, after: Any) -> ListChange:
    old, new = set(before or []), set(after or [])
    return ListChange(added=sorted(new - old), removed=sorted(old - new))


def _code_first(key: str) -> tuple[bool, str]:
    return ".dist-info/" in key, key


def _files(listing: ZipListing) -> dict[str, Member]:
    found = {_METADATA_FOLDER.sub(".dist-info/", member.name, count=1): member for member in listing.members}
    return {key: member for key, member in found.items() if not member.is_dir and key != ".dist-info/RECORD"}


def _change(
    before: ZipListing, after: ZipListing, old: Member | None, new: Member | None, room: int
) -> FileChange | None:
    if old is None or new is None:
        member = old or new
        assert member is not None
        kind, size = ("removed", "before") if new is None else ("added", "after")
        return FileChange.model_validate({"path": member.name, "change": kind, size: member.size})
    if old.size == new.size and _digest(before, old) == _digest(after, new):
        return None
    diff, note = None, None
    old_text, new_text = (text_of(listing, one, MAX_TEXT) for listing, one in ((before, old), (after, new)))
    if old_text is None or new_text is None:
        note = "not text" if max(old.size, new.size) <= MAX_TEXT else f"larger than {MAX_TEXT >> 10} KiB"
    else:
        diff = unified_diff(old_text, new_text, new.name)
        if len(diff) > room:
            diff, note = None, "the diffs before it are long"
    return FileChange(path=new.name, change="changed", before=old.size, after=new.size, diff=diff, note=note)


def _digest(listing: ZipListing, member: Member) -> bytes:
    total = hashlib.sha256()
    for part in listing.parts(member):
        total.update(part)
    return total.digest()


def text_of(listing: ZipListing, member: Member, cap: int) -> str | None:
    """A file as text; None if it has more than `cap` bytes or is none."""
    if member.size > cap:
        return None
    data = listing.read(member.name, cap)
    try:
        return None if b"\0" in data else data.decode("utf-8")
    except UnicodeDecodeError:
        return None
