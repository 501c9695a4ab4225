"""From ids to the exact wheels of a hub: one request, one wheel a package, no two that would overwrite each other.

    answer, chosen = resolve(hub, [parse_id("alice/demo")], Wanted(python="3.11"))
    chosen[0].id, chosen[0].file.sha256, chosen[0].yanked
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from verifiers.errors import HubError, HubNotFoundError, HubRefusedError, HubUnavailableError
from verifiers.hub.ids import HubId

if TYPE_CHECKING:
    from verifiers.hub.client import HubClient
    from verifiers.hub.schema import FileInfo, ResolveAnswer, ResolvedRelease, Yank

SDK = "verifiers"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What else a resolution depends on. `python` is as in 3.11; `before` and `serial` ask for the hub as it was."""

    python: str
    before: dt.datetime | None = None
    serial: int | None = None
    prereleases: bool = False


@dataclass(frozen=True, slots=True)
class Chosen:
    """A release of a hub and the one file of it that is installed. `asked`: it was named, and not needed by another."""

    release: ResolvedRelease
    file: FileInfo

    @property
    def id(self) -> str:
        """`owner/name@version`."""
        return self.release.id

    @property
    def name(self) -> str:
        """The name of the distribution."""
        return self.release.name

    @property
    def asked(self) -> bool:
        """Whether it was named itself, and is not only needed by another one."""
        return not self.release.required_by

    @property
    def yanked(self) -> Yank | None:
        """Why it was withdrawn, if it was."""
        return self.release.yanked

    @property
    def described(self) -> str:
        """For one line on screen: the id and the beginning of the digest."""
        return f"{self.id} ({short(self.file.sha256)})"


def short(sha256: str) -> str:
    """The beginning of a digest, for people."""
    return f"sha256:{sha256[:12]}"


def resolve(hub: HubClient, ids: Sequence[HubId], wanted: Wanted) -> tuple[ResolveAnswer, list[Chosen]]:
    """Everything of the hub that the ids need, pinned. All of it or nothing: the error names each id that fails."""
    try:
        answer = _ask(hub, ids, wanted)
    except HubError as error:
        if len(ids) < 2 or isinstance(error, HubUnavailableError):
            raise
        raise _each_failure(hub, ids, wanted, error) from error
    chosen = [Chosen(release, _wheel(release, wanted.python)) for release in answer.releases]
    _refuse_equal_names(chosen)
    return answer, chosen


def sdk_wheel(hub: HubClient, near: Chosen, versions: Sequence[str] = ()) -> tuple[str, FileInfo] | None:
    """The version and wheel of this package that the hub serves beside a release: one of `versions` if any is given,
    the first that is there, otherwise the newest. None if the hub has none."""
    from packaging.utils import parse_wheel_filename

    from verifiers.hub.schema import FileInfo

    url = urljoin(f"{hub.url}/", f"{near.release.owner}/{near.release.name}/simple/{SDK}/")
    try:
        page = hub.request("GET", url, headers={"Accept": "application/vnd.pypi.simple.v1+json"}).json()
    except HubNotFoundError:
        return None
    found = {}
    for file in page["files"]:
        if not file["filename"].endswith(".whl") or file.get("yanked"):
            continue
        info = FileInfo(
            filename=file["filename"], kind="wheel", url=urljoin(url, file["url"]), size=file["size"],
            sha256=file["hashes"]["sha256"], uploaded_at=file["upload-time"],
        )  # fmt: skip
        found[parse_wheel_filename(info.filename)[1]] = info
    known = {str(version): file for version, file in found.items()}
    for version in versions:
        if version in known:
            return version, known[version]
    if versions or not found:
        return None
    newest = max(found, key=lambda version: (not version.is_prerelease, version))
    return str(newest), found[newest]


def _ask(hub: HubClient, ids: Sequence[HubId], wanted: Wanted) -> ResolveAnswer:
    from verifiers.hub.schema import ResolveAnswer, ResolveRequest

    request = ResolveRequest(
        requirements=[str(one) for one in ids],
        serial=wanted.serial,
        before=wanted.before,
        prereleases=wanted.prereleases,
        python=wanted.python,
    )
    return hub.post("/api/v1/resolve", request, ResolveAnswer)


def _each_failure(hub: HubClient, ids: Sequence[HubId], wanted: Wanted, first: HubError) -> HubError:
    """What is wrong with each id by itself; the error of all together where each alone is sound."""
    failures: list[tuple[HubId, HubError]] = []
    for one in ids:
        try:
            _ask(hub, [one], wanted)
        except HubError as error:
            failures.append((one, error))
    if not failures:
        return first
    told = "; ".join(f"{one}: {failure}" for one, failure in failures)
    leading = failures[0][1]
    text = f"{len(failures)} of {len(ids)} ids can not be resolved, so nothing was done: {told}"
    together = type(leading)(text, hint=leading.hint)
    together.code = leading.code
    return together


def _wheel(release: ResolvedRelease, python: str) -> FileInfo:
    """The wheel of a release that fits this machine and a Python best."""
    from packaging.tags import compatible_tags, cpython_tags, platform_tags
    from packaging.utils import parse_wheel_filename

    wheels = [file for file in release.files if file.kind == "wheel"]
    if len(wheels) == 1 and wheels[0].filename.endswith("-py3-none-any.whl"):
        return wheels[0]
    version = [int(part) for part in python.split(".")[:2]]
    platforms = list(platform_tags())
    tags = [*cpython_tags(version, platforms=platforms), *compatible_tags(version, platforms=platforms)]
    rank = {tag: number for number, tag in enumerate(tags)}
    ranked = [(min(rank[tag] for tag in fits), file) for file in wheels
              if (fits := parse_wheel_filename(file.filename)[3] & rank.keys())]  # fmt: skip
    if ranked:
        return min(ranked, key=lambda one: one[0])[1]
    has = ", ".join(file.filename for file in wheels) or "a source archive only"
    raise HubRefusedError(
        f"{release.id} has no wheel for Python {python} on this machine; it has {has}",
        hint=f"Choose another version (hub versions {release.owner}/{release.name}), "
        f"or get its files: hub pull {release.id}",
    )


def _refuse_equal_names(chosen: Sequence[Chosen]) -> None:
    by_name: dict[str, Chosen] = {}
    for one in chosen:
        other = by_name.setdefault(one.name, one)
        if other is not one:
            raise HubRefusedError(
                f"{other.id} and {one.id} are both called {one.name}: one would replace the other",
                hint="Install one of them here and the other in a virtual environment of its own.",
            )


def refuse_equal_modules(modules: Sequence[tuple[str, set[str]]]) -> None:
    """Refuse (HubRefusedError) packages that hold a module of one name: `modules` has an id and its module names."""
    taken: dict[str, str] = {}
    for one, names in modules:
        for name in sorted(names):
            other = taken.setdefault(name, one)
            if other != one:
                raise HubRefusedError(
                    f"{other} and {one} both hold the module {name}: one would overwrite the other's files",
                    hint="Install one of them here and the other in a virtual environment of its own.",
                )
