"""Packages of a hub into a Python: resolved by the hub, verified by digest, installed by uv.

    resolve → fetch and verify → uv pip install → note where each came from

The hub's wheels are downloaded by us, into the user's cache under their digest, and handed to uv as files with that
digest: no index can put another package in their place, and no token is shown to another program. What they need from
elsewhere uv finds with the user's own settings, and it upgrades nothing that is installed. `verifiers` stays what it
is; where there is none, the hub's wheel of it is installed, or else the one that runs this.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verifiers.clients.model_file import cache_dir
from verifiers.envs.origin import changed_files, hub_origin, note_origin
from verifiers.errors import EnvironmentInstallError, HubDigestError
from verifiers.hub.fetch import fetch, fetch_all
from verifiers.hub.ids import HubId
from verifiers.hub.resolve import SDK, Chosen, Wanted, refuse_equal_modules, resolve, sdk_wheel, short
from verifiers.hub.target import Target
from verifiers.hub.wheel_file import modules_of
from verifiers.settings import environ_of_others

if TYPE_CHECKING:
    from verifiers.hub.client import HubClient


@dataclass(slots=True)
class Options:
    """How to install. `agree` is asked whether a pin on another version of verifiers may be relaxed."""

    prereleases: bool = False
    dry_run: bool = False
    agree: Callable[[str], bool] = lambda _: False
    note: Callable[[str], None] = lambda _: None
    warn: Callable[[str], None] = lambda _: None


@dataclass(slots=True)
class Installed:
    """What an installation did: each package of the hub, and which of them were there already."""

    serial: int
    packages: list[Chosen] = field(default_factory=list)
    present: set[str] = field(default_factory=set)


def install(hub: HubClient, ids: Sequence[HubId], target: Target, options: Options) -> Installed:
    """Install all of them and what they need, or nothing.

    HubError if the hub does not give them, EnvironmentInstallError if uv does not install them.
    """
    target.check_writable()
    answer, packages = resolve(hub, ids, Wanted(target.version, prereleases=options.prereleases))
    warn_of_yanks(packages, options.warn)
    present = {one.name for one in packages if is_present(target, one)}
    done = Installed(answer.serial, packages, present)
    for one in packages:
        if (other := replaced(target, one)) and one.name not in present:
            options.note(f"{one.described} takes the place of {other}")
    missing = [one for one in packages if one.name not in present]
    if not missing and is_complete(target, packages):
        return done
    wheels = fetch_all(hub, [one.file for one in packages], cache_dir())
    refuse_equal_modules([(one.id, modules_of(wheel)) for one, wheel in zip(packages, wheels, strict=True)])
    sdk = target.distribution(SDK)
    ours = sdk.version if sdk is not None else metadata.version(SDK)
    overrides = relaxed(packages, ours, options.agree)
    lines = [line(one.name, wheel, one.file.sha256) for one, wheel in zip(packages, wheels, strict=True)]
    constraints = [text for one in packages for text in one.release.direct_urls]
    if sdk is not None:
        constraints.append(f"{SDK}=={sdk.version}")
    elif any(needs_sdk(one) for one in packages):
        lines.append(_sdk_line(hub, packages[0], options.note))
    pip_install(target, lines, constraints, overrides, dry_run=options.dry_run)
    if not options.dry_run:
        placed = zip(packages, wheels, strict=True)
        settle(target, [Wheel(one.name, path, one.file.url, one.file.sha256) for one, path in placed])
    return done


# --- what is there ------------------------------------------------------------------------------------------------


def is_present(target: Target, one: Chosen) -> bool:
    """Whether exactly this wheel is installed, and its files are as they were."""
    return holds(target, one.name, one.release.owner, one.file.sha256)


def holds(target: Target, name: str, owner: str, sha256: str) -> bool:
    """Whether the wheel of an owner with that digest is installed, and its files are as they were."""
    distribution = target.distribution(name)
    origin = hub_origin(distribution) if distribution is not None else None
    if distribution is None or origin is None or (origin.owner, origin.sha256) != (owner, sha256):
        return False
    return not changed_files(distribution)


def replaced(target: Target, one: Chosen) -> str | None:
    """What installing a package would replace, in words; None if nothing of that name is installed."""
    distribution = target.distribution(one.name)
    if distribution is None:
        return None
    origin = target.origin(one.name)
    changed = ", whose files were changed" if origin and changed_files(distribution) else ""
    return f"{origin.id} ({short(origin.sha256)}){changed}" if origin else f"{one.name} {distribution.version}"


def is_complete(target: Target, packages: Sequence[Chosen]) -> bool:
    """Whether everything that installed packages require is installed, too. uv looks, and asks no index."""
    pins = [f"{one.name}=={one.release.version}" for one in packages]
    asked = ["pip", "install", "--python", target.python, "--offline", "--no-index", *pins]
    return uv(asked, capture_output=True).returncode == 0


def warn_of_yanks(packages: Sequence[Chosen], warn: Callable[[str], None]) -> None:
    """Say which packages were withdrawn, and why: a lock or a pin still gets them."""
    for one in packages:
        if one.yanked is not None:
            warn(f"{one.id} was yanked ({one.yanked.cause}): {one.yanked.reason}")


# --- what is handed to uv -----------------------------------------------------------------------------------------


def line(name: str, wheel: Path, sha256: str) -> str:
    """The requirement of a wheel in the cache, by its digest."""
    return f"{name} @ {wheel.as_uri()}#sha256={sha256}"


def needs_sdk(one: Chosen) -> bool:
    """Whether a package declares that it needs this one."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    return any(canonicalize_name(Requirement(text).name) == SDK for text in one.release.requires_dist)


def relaxed(packages: Sequence[Chosen], ours: str, agree: Callable[[str], bool]) -> list[str]:
    """Overrides for uv: `verifiers` in any version, if a package pins another than `ours` and the user agrees."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    for one in packages:
        for text in one.release.requires_dist:
            wanted = Requirement(text)
            if canonicalize_name(wanted.name) != SDK or wanted.specifier.contains(ours, prereleases=True):
                continue
            if agree(f"{one.id} asks for {text}; install it with {SDK} {ours}, which provides the same API?"):
                return [SDK]
            raise EnvironmentInstallError(
                f"{one.id} asks for {text}, and {SDK} {ours} can not satisfy that",
                hint="Agree with --yes, or choose another version of it.",
            )
    return []


def _sdk_line(hub: HubClient, near: Chosen, note: Callable[[str], None]) -> str:
    """The requirement of this package where there is none yet: the hub's wheel of this very version, or else ours."""
    ours = metadata.version(SDK)
    found = sdk_wheel(hub, near, [ours])
    if found is not None:
        return line(SDK, fetch(hub, found[1], cache_dir()), found[1].sha256)
    import asyncio

    from verifiers.rollouts.workers.wheels import our_source

    note(f"the hub serves no wheel of {SDK} {ours}: the one that runs this is packed")
    source = our_source()
    folder = cache_dir() / "hub" / "sdk" / f"{ours}-{source.digest().replace(':', '-')[-16:]}"
    wheel = next(folder.glob("*.whl"), None)
    if wheel is None:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:  # what others find there is whole
            made = asyncio.run(source.wheel(Path(scratch)))
            wheel = made.replace(folder / made.name)
    return f"{SDK} @ {wheel.as_uri()}"


def pip_install(
    target: Target,
    lines: Sequence[str],
    constraints: Sequence[str] = (),
    overrides: Sequence[str] = (),
    *,
    dry_run: bool = False,
) -> None:
    """`uv pip install` of requirements. EnvironmentInstallError if it fails; what uv said is on the terminal."""
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for option, texts in (("--requirements", lines), ("--constraint", constraints), ("--override", overrides)):
            if texts:
                path = Path(folder) / f"{option.strip('-')}.txt"
                path.write_text("\n".join(texts) + "\n", encoding="utf-8")
                files += [option, str(path)]
        run_uv(["pip", "install", "--python", target.python, *(["--dry-run"] if dry_run else []), *files])


def run_uv(arguments: Sequence[str]) -> None:
    """uv with the user's own settings. Its lines are progress, and go to stderr: stdout is for data."""
    done = uv(arguments, stdout=sys.stderr)
    if done.returncode != 0:
        raise EnvironmentInstallError(f"uv {' '.join(arguments[:2])} ended with {done.returncode}")


def uv(arguments: Sequence[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
    """uv to its end."""
    from uv import find_uv_bin

    return subprocess.run([find_uv_bin(), *arguments], env=environ_of_others(), check=False, **options)


# --- where it came from -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel of the hub in our cache, with its address there."""

    name: str
    path: Path
    url: str
    sha256: str


def settle(target: Target, wheels: Sequence[Wheel]) -> None:
    """After uv: look whether the files are the wheels', and write down where they came from.

    Where uv's cache holds files that someone has edited through a link, it is passed over. HubDigestError if even
    then the files are others.
    """
    damaged = [wheel for wheel in wheels if changed_files(_found(target, wheel.name))]
    if damaged:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "requirements.txt"
            path.write_text("".join(line(one.name, one.path, one.sha256) + "\n" for one in damaged), encoding="utf-8")
            again = ["--no-cache", "--no-deps", "--reinstall", "--requirements", str(path)]
            run_uv(["pip", "install", "--python", target.python, *again])
    for wheel in wheels:
        distribution = _found(target, wheel.name)
        if wheel in damaged and (changed := changed_files(distribution)):
            raise HubDigestError(f"what uv installed of {wheel.name} is not the wheel's: {', '.join(changed[:5])}")
        note_origin(distribution, wheel.url, wheel.sha256)


def _found(target: Target, name: str) -> metadata.Distribution:
    distribution = target.distribution(name)
    if distribution is None:
        raise EnvironmentInstallError(f"uv installed {name}, and it is not to be found in {target.prefix}")
    return distribution
