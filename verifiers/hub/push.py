"""Publish a built environment: what would happen, then the upload, until clients can see it.

    plan = make_plan(hub, built, owner=None, visibility=None)
    if plan.state == "published": …                      # already there, same bytes: nothing to do
    published = carry_out(hub, plan, report)
    wait_until_visible(hub, plan, seconds=60)

Files are streamed from the disk, and an upload that breaks off goes on where the hub has it, also in another call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel

from verifiers.errors import HubDeniedError, HubNotFoundError, HubRefusedError, HubUnavailableError
from verifiers.hub.client import HubClient, refusal
from verifiers.hub.fetch import sha256_of
from verifiers.hub.package.contents import contents
from verifiers.hub.package.names import normalise, parse_wheel_name
from verifiers.hub.same_content import same_content
from verifiers.hub.schema import (
    CheckReport,
    NewFile,
    NewSession,
    ProjectInfo,
    Published,
    PublishSession,
    ReleaseInfo,
    SessionFileInfo,
    SessionInfo,
    Visibility,
    Whoami,
)

if TYPE_CHECKING:
    from verifiers.hub.build import Built

Model = TypeVar("Model", bound=BaseModel)

CHUNK = 256 * 1024
TRIES = 4
"""How often the bytes of a file are sent, each time from where the hub has them."""

CHECKING = 600.0
"""Seconds that the hub may take to check a large release."""

Listen = Callable[[str, int, int], None]
"""Hears of progress: file name, bytes that the hub has, bytes in all."""


def _silent(_name: str, _sent: int, _total: int) -> None:
    """Nobody listens."""


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file of the release. `state`: `new`, or `same` if its very bytes are published."""

    path: Path
    name: str
    size: int
    sha256: str
    state: Literal["new", "same"] = "new"

    def contents(self) -> dict[str, int]:
        """Name → bytes of what is in it."""
        return contents(self.path)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a push would do. `state`: the project is new, the version is, some files are, or nothing is."""

    hub: str
    owner: str
    name: str
    version: str
    visibility: Visibility
    state: Literal["new project", "new version", "new files", "published"]
    files: Sequence[PlannedFile] = field(default_factory=list)
    latest: str | None = None

    @property
    def id(self) -> str:
        """`owner/name@version`."""
        return f"{self.owner}/{self.name}@{self.version}"

    @property
    def digest(self) -> str:
        """sha256 of the wheel."""
        return next(file.sha256 for file in self.files if file.name.endswith(".whl"))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        files = [
            {
                "name": file.name, "size": file.size, "sha256": file.sha256, "state": file.state,
                "contents": [{"name": name, "size": size} for name, size in file.contents().items()],
            }
            for file in self.files
        ]  # fmt: skip
        return {
            "hub": self.hub, "id": self.id, "version": self.version, "visibility": self.visibility,
            "state": self.state, "latest": self.latest, "digest": self.digest, "files": files,
        }  # fmt: skip


def make_plan(
    hub: HubClient, built: Built, *, owner: str | None = None, visibility: Visibility | None = None
) -> Plan:
    """Compare what was built with what the hub has.

    HubRefusedError if the version is published with other content; files that were built again, and hold the same, are
    replaced in the plan by those that are published.
    """
    named = parse_wheel_name(built.wheel.name)
    owner = owner or hub.get("/api/v1/whoami", Whoami).owner
    name, version = normalise(named.name), named.version
    project = _found(hub, f"/api/v1/{owner}/{name}", ProjectInfo)
    if project is not None and visibility not in (None, project.visibility):
        raise HubRefusedError(
            f"{owner}/{name} is {project.visibility}, and a release does not change that",
            hint="Leave --visibility out; an admin of the owner changes a project's visibility.",
        )
    release = _found(hub, f"/api/v1/{owner}/{name}/{version}", ReleaseInfo) if project else None
    published = {file.filename: file for file in release.files} if release else {}
    files = []
    for path in [built.wheel, *([built.sdist] if built.sdist else [])]:
        digest = sha256_of(path)
        there = published.get(path.name)
        if there is not None and there.sha256 != digest:
            if not same_content(hub, there, path):
                raise _other_bytes(f"{owner}/{name}@{version}", path.name, there.sha256)
            digest = there.sha256
        files.append(
            PlannedFile(path, path.name, path.stat().st_size, digest, "new" if there is None else "same")
        )
    new = any(file.state == "new" for file in files)
    return Plan(
        hub.url, owner, name, version, project.visibility if project else visibility or "public",
        "new project" if project is None else "new version" if release is None
        else "new files" if new else "published",
        files, project.latest if project else None,
    )  # fmt: skip


def _other_bytes(release: str, filename: str, sha256: str) -> HubRefusedError:
    error = HubRefusedError(
        f"{release} is published, and what is built now differs: {filename} (published: sha256 {sha256[:12]})",
        hint="Raise version in pyproject.toml and push again; a bad release is yanked (hub yank), never replaced.",
    )
    error.code = "file-exists"
    return error


def _found(hub: HubClient, path: str, model: type[Model]) -> Model | None:
    """What a path answers; None if there is no such thing that the caller may see."""
    try:
        return hub.get(path, model)
    except HubNotFoundError:
        return None


# --- carrying it out --------------------------------------------------------------------------------------------


def carry_out(hub: HubClient, plan: Plan, report: CheckReport | None = None, listen: Listen = _silent) -> Published:
    """Send what the hub does not have, and publish. A session that an earlier call left open is gone on with."""
    session = _session(hub, plan)
    place = f"/api/v1/{plan.owner}/{plan.name}/releases/{session.id}"
    paths = {file.name: file.path for file in plan.files}
    for file in session.files:
        if not file.stored:
            _send(hub, f"{place}/{file.name}", paths[file.name], file, listen)
    if report is not None and report.wheel_sha256 != plan.digest:  # the published wheel stays, built otherwise
        report = None
    body = PublishSession(report=report).model_dump(mode="json")
    for attempt in range(1, TRIES + 1):
        try:
            return hub.read(hub.request("POST", f"{place}/publish", json=body, timeout=CHECKING), Published)
        except HubUnavailableError:  # publishing twice is publishing once
            if attempt == TRIES:
                raise
            time.sleep(attempt)
    raise AssertionError


def _session(hub: HubClient, plan: Plan) -> SessionInfo:
    """A session for the planned files: a new one, or the open one if it was promised the same."""
    releases = f"/api/v1/{plan.owner}/{plan.name}/releases"
    files = [NewFile(name=file.name, size=file.size, sha256=file.sha256) for file in plan.files]
    new = NewSession(version=plan.version, files=files, visibility=plan.visibility)
    for last in (False, True):
        answer = hub.send("POST", releases, json=new.model_dump(mode="json"))
        if answer.status_code == 409 and (place := answer.headers.get("Location")) and not last:
            there = hub.get(place, SessionInfo)
            if {(file.name, file.sha256) for file in there.files} == {(file.name, file.sha256) for file in files}:
                return there
            hub.request("DELETE", place)  # of an earlier build that was not finished
            continue
        if not answer.is_success:
            raise refusal(answer, hub.url)
        return hub.read(answer, SessionInfo)
    raise AssertionError


def _send(hub: HubClient, place: str, path: Path, file: SessionFileInfo, listen: Listen) -> None:
    """The bytes of one file, from where the hub has them on."""
    for attempt in range(1, TRIES + 1):
        try:
            offset = int(hub.request("HEAD", place).headers["Upload-Offset"])
            headers = {"Upload-Offset": str(offset), "Content-Length": str(file.size - offset)}
            hub.request("PUT", place, content=_bytes(path, offset, file, listen), headers=headers)
            return
        except HubUnavailableError:
            if attempt == TRIES:
                raise
            time.sleep(attempt)


def _bytes(path: Path, offset: int, file: SessionFileInfo, listen: Listen) -> Iterator[bytes]:
    with path.open("rb") as source:
        source.seek(offset)
        while chunk := source.read(CHUNK):
            yield chunk
            offset += len(chunk)
            listen(file.name, offset, file.size)


def wait_until_visible(hub: HubClient, plan: Plan, seconds: float) -> None:
    """Return once the index that installers read shows every file. HubUnavailableError if it does not in that time."""
    page = f"/{plan.owner}/{plan.name}/simple/{plan.name}/"
    accept = {"Accept": "application/vnd.pypi.simple.v1+json"}
    wanted = {(file.name, file.sha256) for file in plan.files}
    end = time.monotonic() + seconds
    pause = 0.05
    while True:
        shown: set[tuple[str, str]] = set()
        try:
            answer = hub.request("GET", page, headers=accept).json()
            shown = {(file["filename"], file["hashes"]["sha256"]) for file in answer["files"]}
        except (HubDeniedError, HubNotFoundError):  # not yet there
            pass
        if wanted <= shown:
            return
        if time.monotonic() > end:
            raise HubUnavailableError(
                f"{plan.id} is published, and the hub's index does not show it after {seconds:g} seconds",
                hint=f"See {hub.url}{page} in a while; nothing has to be sent again.",
            )
        time.sleep(pause)
        pause = min(2 * pause, 1.0)
