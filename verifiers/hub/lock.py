"""`hub lock`: everything that an environment needs, each file with its digest, in one `pylock.toml`.

The hub pins its own packages, uv everything else with the user's own indexes. The same request of the same serial and
moment gives the same bytes.

    document = make_lock(hub, [parse_id("alice/demo@0.1.0")], find_target(None), LockOptions())
    install_lock(read_lock(path), find_target("other/.venv"), Options(), HubClient, token_for)
"""

from __future__ import annotations

import datetime as dt
import os
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from verifiers.clients.model_file import cache_dir
from verifiers.errors import ConfigError, HubError, HubRefusedError
from verifiers.hub.fetch import cached_path, fetch, fetch_all, sha256_of
from verifiers.hub.ids import HubId
from verifiers.hub.install import (
    Options,
    Wheel,
    holds,
    line,
    needs_sdk,
    relaxed,
    run_uv,
    settle,
    warn_of_yanks,
)
from verifiers.hub.lock_file import SCHEMA_VERSION, Lock, Locked, to_text
from verifiers.hub.resolve import SDK, Chosen, Wanted, refuse_equal_modules, resolve, sdk_wheel
from verifiers.hub.state import State, ask_state
from verifiers.hub.target import Target
from verifiers.hub.wheel_file import declared, modules_of

if TYPE_CHECKING:
    from verifiers.hub.client import HubClient
    from verifiers.hub.schema import FileInfo


@dataclass(slots=True)
class LockOptions:
    """What else a lock depends on. `python` is as in 3.11, the target's own if empty."""

    python: str = ""
    before: dt.datetime | None = None
    serial: int | None = None
    prereleases: bool = False
    agree: Callable[[str], bool] = lambda _: False
    note: Callable[[str], None] = lambda _: None
    warn: Callable[[str], None] = lambda _: None


def make_lock(hub: HubClient, ids: Sequence[HubId], target: Target, options: LockOptions) -> dict[str, Any]:
    """The lock of ids and of everything that they need, as a document for `lock_file.to_text`."""
    python = options.python or target.minor
    wanted = Wanted(python, options.before, options.serial, options.prereleases)
    answer, packages = resolve(hub, ids, wanted)
    warn_of_yanks(packages, options.warn)
    wheels = fetch_all(hub, [one.file for one in packages], cache_dir())
    refuse_equal_modules([(one.id, modules_of(wheel)) for one, wheel in zip(packages, wheels, strict=True)])
    lines = [line(one.name, wheel, one.file.sha256) for one, wheel in zip(packages, wheels, strict=True)]
    entries = {one.name: _entry(one.name, one.release.version, one.file, one.release.index_url) for one in packages}
    named = [{"id": one.id, "name": one.name, "sha256": one.file.sha256, "asked": one.asked} for one in packages]
    ours = metadata.version(SDK)
    if (found := _sdk(hub, packages)) is not None:
        ours, sdk = found
        lines.append(line(SDK, fetch(hub, sdk, cache_dir()), sdk.sha256))
        entries[SDK] = _entry(SDK, ours, sdk, packages[0].release.index_url)
        named.append({"id": f"{SDK}@{ours}", "name": SDK, "sha256": sdk.sha256, "asked": False})
    compiled = _compiled(
        lines,
        [text for one in packages for text in one.release.direct_urls],
        relaxed(packages, ours, options.agree),
        ["--python", target.python, "--python-version", python, *_before(options.before)],
        options.warn,
    )
    table: dict[str, Any] = {
        "schema-version": SCHEMA_VERSION,
        "hub": hub.url,
        "serial": answer.serial,
        "python": python,
        "requirements": [str(one) for one in ids],
        "packages": named,
    }
    data = {one.name: told for one, wheel in zip(packages, wheels, strict=True) if (told := declared(wheel, "data"))}
    return {
        "lock-version": "1.0",
        "created-by": "hub lock",
        "requires-python": compiled.get("requires-python"),
        "packages": [entries.get(package["name"], package) for package in compiled["packages"]],
        "tool": {"verifiers": {**table, **({"data": data} if data else {})}},
    }


def _sdk(hub: HubClient, packages: Sequence[Chosen]) -> tuple[str, FileInfo] | None:
    """The wheel of this package that the lock names: the hub's of this version, otherwise the hub's newest."""
    found = sdk_wheel(hub, packages[0], [metadata.version(SDK)]) or sdk_wheel(hub, packages[0])
    if found is None and any(needs_sdk(one) for one in packages):
        raise HubRefusedError(
            f"the hub {hub.url} serves no wheel of {SDK}, so a lock could not say which one to install",
            hint="On the hub's machine: hub admin add-sdk WHEEL",
        )
    return found


def _before(before: dt.datetime | None) -> list[str]:
    return ["--exclude-newer", before.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")] if before else []


def _compiled(
    lines: Sequence[str], constraints: Sequence[str], overrides: Sequence[str], flags: Sequence[str],
    warn: Callable[[str], None],
) -> dict[str, Any]:  # fmt: skip
    """What uv makes of it, with addresses without logins."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        given = []
        for option, texts in (("", lines), ("--constraint", constraints), ("--override", overrides)):
            if texts:
                path = folder / f"{option.strip('-') or 'requirements'}.txt"
                path.write_text("\n".join(texts) + "\n", encoding="utf-8")
                given += [option, str(path)] if option else [str(path)]
        out = folder / "pylock.toml"
        run_uv(["pip", "compile", "--quiet", "--format", "pylock.toml", "--output-file", str(out), *flags, *given])
        document = tomllib.loads(out.read_text(encoding="utf-8"))
        for package in document["packages"]:
            ours = f"{cache_dir().resolve()}{os.sep}"
            for file in _files(package):
                if "url" in file:
                    file["url"] = _without_login(file["url"])
                elif "path" in file:
                    file["path"] = str((folder / file["path"]).resolve())
                    if not file["path"].startswith(ours):
                        warn(f"{package['name']} comes from {file['path']}: the lock works on this machine only")
    return document


def _files(package: Mapping[str, Any]) -> list[dict[str, Any]]:
    single = [package[kind] for kind in ("archive", "sdist") if kind in package]
    return [*single, *package.get("wheels", [])]


def _without_login(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _entry(name: str, version: str, file: FileInfo, index: str) -> dict[str, Any]:
    archive = {
        "url": file.url,
        "size": file.size,
        "upload-time": file.uploaded_at,
        "hashes": {"sha256": file.sha256},
    }
    return {"name": name, "version": version, "index": index, "archive": archive}


# --- installing from one ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class InstalledLock:
    """What installing a lock did: its packages of the hub, and which of them were there already."""

    lock: Lock
    present: set[str] = field(default_factory=set)


def install_lock(
    lock: Lock,
    target: Target,
    options: Options,
    connect: Callable[[str], HubClient],
    token_for: Callable[[str], str | None],
) -> InstalledLock:
    """Install exactly what a lock says, every file by its digest. What else is installed stays.

    The hub is asked whether anything was yanked while uv works; a hub that does not answer keeps nothing from being
    installed that is in the cache. `connect` and `token_for` are for the hub that the lock names.
    """
    target.check_writable()
    sdk = target.distribution(SDK)
    if sdk is not None and lock.sdk is not None and sdk.version != lock.sdk.version:
        raise ConfigError(
            f"{lock.path} is for {SDK} {lock.sdk.version}, and {target.prefix} has {SDK} {sdk.version}",
            hint="Install it into an empty virtual environment: uv venv NEW, "
            f"then hub install -r {lock.path} --python NEW",
        )
    if lock.python.split(".")[:2] != target.minor.split("."):
        options.warn(f"the lock was made for Python {lock.python}, and {target.python} is {target.version}")
    present = {one.name for one in lock.packages if _is_there(target, one)}
    with ThreadPoolExecutor(1) as thread:
        ids = [one.id for one in lock.packages if one.owner is not None]
        asked = thread.submit(ask_state, lock.hub, token_for(lock.hub), ids, lock.python)
        wheels = _wheels(lock, present, connect)
        _sync(lock, present, wheels, target, dry_run=options.dry_run)
        if not options.dry_run:
            new = [one for one in lock.packages if one.name not in present]
            settle(target, [Wheel(one.name, wheels[one.name], one.url, one.sha256) for one in new])
        _tell_state(lock, asked, options)
    return InstalledLock(lock, present)


def _is_there(target: Target, one: Locked) -> bool:
    """Whether it is installed. Of this package any build of the version will do: none is put over another."""
    if one.owner is None:
        return target.distribution(one.name) is not None
    return holds(target, one.name, one.owner, one.sha256)


def _wheels(lock: Lock, present: set[str], connect: Callable[[str], HubClient]) -> dict[str, Path]:
    """The wheels that are not installed yet. The hub is asked for those that are not in the cache."""
    wheels, absent = {}, []
    for one in lock.packages:
        if one.name not in present:
            wheels[one.name] = path = cached_path(one.sha256, one.filename, cache_dir())
            if not path.is_file() or sha256_of(path) != one.sha256:
                absent.append(one)
    if absent:
        from verifiers.hub.schema import FileInfo

        with connect(lock.hub) as hub:
            now = dt.datetime.now(dt.UTC)
            infos = [
                FileInfo(filename=one.filename, kind="wheel", url=one.url, size=one.size, sha256=one.sha256,
                         uploaded_at=now)
                for one in absent
            ]  # fmt: skip
            fetch_all(hub, infos, cache_dir())
    return wheels


def _sync(lock: Lock, present: set[str], wheels: Mapping[str, Path], target: Target, *, dry_run: bool) -> None:
    """Hand uv the lock, with the files of the cache in the place of the hub's addresses."""
    packages = []
    for package in lock.document["packages"]:
        name = package["name"]
        if name in wheels:
            archive = {"path": str(wheels[name]), "hashes": package["archive"]["hashes"]}
            package = {"name": name, "version": package["version"], "archive": archive}
        if name not in present:
            packages.append(package)
    if not packages:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pylock.toml"
        path.write_text(to_text({**lock.document, "packages": packages, "tool": {}}), encoding="utf-8")
        flags = ["--dry-run"] if dry_run else []
        run_uv(["pip", "install", "--preview", "--python", target.python, *flags, "--requirements", str(path)])


def _tell_state(lock: Lock, asked: Future[list[State]], options: Options) -> None:
    """Yanks of what was installed: nothing else warns of them."""
    try:
        states = asked.result()
    except HubError as error:
        options.warn(f"whether anything of it was yanked is not known: {error}")
        return
    digests = {one.id: one.sha256 for one in lock.packages}
    for one in states:
        if one.id in digests and one.yanked is not None:
            options.warn(f"{one.id} was yanked: {one.yanked}")
        if digests.get(one.id) not in (None, *one.digests):
            options.warn(f"{one.id} of the lock is not that of {lock.hub}: see hub verify {lock.path}")
