"""`hub verify`: is what is installed, or what a lock names, still what the hub published?

Each package of a hub is compared three ways: the hub's record of it (digest, yanked, deleted, quarantined), the lock if
one is given, and the installed files against the RECORD of their wheel.

    findings = verify_environment(find_target(None), connect)
    findings = verify_lock(read_lock(path), find_target(None), connect)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from verifiers.envs.origin import changed_files, hub_origin
from verifiers.errors import HubError, HubNotFoundError
from verifiers.hub.lock_file import Lock
from verifiers.hub.resolve import short
from verifiers.hub.schema import ReleaseInfo
from verifiers.hub.target import Target

if TYPE_CHECKING:
    from verifiers.hub.client import HubClient


@dataclass(frozen=True, slots=True)
class Finding:
    """What is not as it was published. `code` is one of CODES."""

    package: str
    code: str
    message: str


CODES = {
    "digest": "the hub has, or the Python has, other bytes than were pinned",
    "yanked": "the release was withdrawn",
    "gone": "the hub has no such release any more, or the token may not see it",
    "quarantined": "the project is in quarantine",
    "unknown": "the hub does not answer",
    "drift": "installed files are not those of the wheel",
    "missing": "the lock names it, and it is not installed",
    "version": "another version is installed than the lock names",
    "origin": "the version is right, but nothing says that it is the hub's wheel",
}


@dataclass(frozen=True, slots=True)
class Verified:
    """What was looked at, and what was found."""

    packages: tuple[str, ...]
    findings: tuple[Finding, ...]


def verify_environment(target: Target, connect: Callable[[str], HubClient]) -> Verified:
    """Every installed package that comes from a hub."""
    installed = sorted(
        (
            (origin, distribution)
            for distribution in metadata.distributions(path=list(target.paths))
            if (origin := hub_origin(distribution)) is not None
        ),
        key=lambda one: one[0].id,
    )
    findings: list[Finding] = []
    with _Hubs(connect) as hubs:
        for origin, distribution in installed:
            findings += hubs.findings(origin.hub, origin.owner, origin.name, origin.version, origin.sha256)
            findings += drift(origin.id, distribution)
    return Verified(tuple(origin.id for origin, _ in installed), tuple(findings))


def verify_lock(lock: Lock, target: Target, connect: Callable[[str], HubClient]) -> Verified:
    """What a lock names: at the hub, and, once anything of it is installed, in the Python."""
    findings: list[Finding] = []
    with _Hubs(connect) as hubs:
        for one in lock.packages:
            if one.owner is not None:
                findings += hubs.findings(lock.hub, one.owner, one.name, one.version, one.sha256)
    if any(target.distribution(one.name) for one in lock.packages if one.owner is not None):
        findings += _installed_findings(lock, target)
    return Verified(tuple(one.id for one in lock.packages), tuple(findings))


def _installed_findings(lock: Lock, target: Target) -> Iterator[Finding]:
    ours = {one.name: one for one in lock.packages}
    for package in lock.document["packages"]:
        name, version = package["name"], package.get("version")
        locked = ours.get(name)
        shown = locked.id if locked is not None else f"{name} {version}"
        distribution = target.distribution(name)
        if distribution is None:
            if "marker" not in package:
                yield Finding(shown, "missing", f"it is not installed in {target.prefix}")
        elif version is not None and distribution.version != version:
            yield Finding(shown, "version", f"{distribution.version} is installed")
        elif locked is not None and locked.owner is not None:
            origin = hub_origin(distribution)
            if origin is None:
                yield Finding(shown, "origin", "nothing says from where it was installed: hub install it again")
            elif origin.sha256 != locked.sha256:
                yield Finding(shown, "digest", f"{short(origin.sha256)} is installed, {short(locked.sha256)} is locked")
            yield from drift(shown, distribution)


def drift(shown: str, distribution: metadata.Distribution) -> list[Finding]:
    """Files of an installed wheel that are gone or are not what its RECORD says."""
    changed = changed_files(distribution)
    if not changed:
        return []
    listed = ", ".join(changed[:5]) + (f" and {len(changed) - 5} more" if len(changed) > 5 else "")
    return [Finding(shown, "drift", f"not the wheel's: {listed}")]


class _Hubs:
    """What hubs say now: one connection a hub, one request a release."""

    def __init__(self, connect: Callable[[str], HubClient]) -> None:
        self._connect = connect
        self._open: dict[str, HubClient] = {}
        self._stack = ExitStack()

    def __enter__(self) -> _Hubs:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def findings(self, hub: str, owner: str, name: str, version: str, sha256: str) -> list[Finding]:
        """What speaks against a release."""
        shown = f"{owner}/{name}@{version}"
        if hub not in self._open:
            self._open[hub] = self._stack.enter_context(self._connect(hub))
        try:
            release = self._open[hub].get(f"/api/v1/{owner}/{name}/{version}", ReleaseInfo)
        except HubNotFoundError as error:
            return [Finding(shown, "gone", str(error))]
        except HubError as error:
            return [Finding(shown, "unknown", str(error))]
        found = []
        if release.yanked is not None:
            found.append(Finding(shown, "yanked", f"{release.yanked.cause}: {release.yanked.reason}"))
        if release.status == "quarantined":
            found.append(Finding(shown, "quarantined", release.status_reason or "no reason is given"))
        elif sha256 not in {file.sha256 for file in release.files}:
            has = ", ".join(short(file.sha256) for file in release.files) or "no file"
            found.append(Finding(shown, "digest", f"{hub} has {has}, and this is {short(sha256)}"))
        return found
