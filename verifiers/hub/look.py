"""Looking into releases and comparing them, without installing anything: what `hub inspect` and `hub diff` show.

A wheel of this machine is compared here, by the code that the hub compares two releases with.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from verifiers.errors import ConfigError, HubRefusedError
from verifiers.hub.fetch import fetch
from verifiers.hub.find import look_up
from verifiers.hub.ids import HubId, parse_id
from verifiers.hub.package.compare import compare_facts, compare_files
from verifiers.hub.package.facts import Policy
from verifiers.hub.package.inspect import inspect_file
from verifiers.hub.package.paths import Limits
from verifiers.hub.package.zip_walk import walk_zip
from verifiers.hub.schema import Difference, ReleaseInfo, WheelContents

if TYPE_CHECKING:
    from verifiers.hub.client import HubClient


def contents(hub: HubClient, wanted: HubId) -> WheelContents:
    """The files that a release's wheel holds."""
    _, release = look_up(hub, wanted)
    return hub.get(f"/api/v1/{wanted.project}/{release.version}/files/", WheelContents)


def text(hub: HubClient, wanted: HubId, path: str) -> tuple[ReleaseInfo, str]:
    """One text file of a release, and which release it is of."""
    _, release = look_up(hub, wanted)
    answer = hub.request("GET", f"/api/v1/{wanted.project}/{release.version}/files/{quote(path)}")
    return release, answer.content.decode("utf-8")


def compare(hub: HubClient, before: str, after: str) -> Difference:
    """What changed: two ids, an id and a version of the same project, or a wheel of this machine on either side."""
    sides = [_side(before, None), _side(after, before)]
    match sides:
        case [HubId() as one, HubId() as other] if one.project == other.project:
            old, new = (look_up(hub, side)[1].version for side in (one, other))
            return hub.get(f"/api/v1/{one.project}/diff", Difference, a=old, b=new)
    return _compare_here(hub, sides)


def _side(text: str, other: str | None) -> HubId | Path:
    """An id, a wheel, or a version of the project that the other side names."""
    if text.endswith(".whl"):
        path = Path(text)
        if not path.is_file():
            raise ConfigError(f"there is no file {text}", hint="Build it with uv build, or name a release by its id.")
        return path
    if "/" not in text and other is not None and not other.endswith(".whl"):
        return parse_id(f"{parse_id(other).project}@{text}")
    return parse_id(text)


# --- on this machine --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Opened:
    """A wheel as a file, what it is called in the result, and what it says of itself."""
    name: str
    path: Path
    facts: dict[str, Any]


def _compare_here(hub: HubClient, sides: list[HubId | Path]) -> Difference:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hub-diff-")))
        old, new = (
            _local(side) if isinstance(side, Path) else _remote(hub, side, folder / str(number))
            for number, side in enumerate(sides)
        )
        limits = Limits(file_bytes=1 << 62)
        files = compare_files(*(walk_zip(stack.enter_context(one.path.open("rb")), limits) for one in (old, new)))
    dependencies, hub_dependencies, fields = compare_facts(old.facts, new.facts)
    return Difference(
        before=old.name, after=new.name, files=files, dependencies=dependencies,
        hub_dependencies=hub_dependencies, fields=fields,
    )  # fmt: skip


def _local(path: Path) -> _Opened:
    return _Opened(path.name, path, inspect_file(path, path.name, Policy(private=True)).to_dict())


def _remote(hub: HubClient, wanted: HubId, folder: Path) -> _Opened:
    _, release = look_up(hub, wanted)
    wheel = next((file for file in release.files if file.sha256 == release.digest), None)
    if wheel is None:
        raise HubRefusedError(f"{release.id} has no wheel to compare with", hint=f"See hub info {release.id}.")
    facts = {**release.facts, "summary": release.summary, "requires_python": release.requires_python}
    return _Opened(release.id, fetch(hub, wheel, folder), facts)
