"""A virtual environment for one environment, made by uv from a lock with hashes, once.

    venv = await ensure_venv(Source("gsm8k", folder), cache_dir)
    ProcessLink(load, venv.python, isolated=True)

It lies in the user's cache, under a key of everything it depends on: the files of the environment and of this package,
the Python version, the extras. Beside it lies its lock: each package in one version, with the hashes of its files.
uv installs by hard links from its own cache, so a second environment with the same packages takes little space.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import platform
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from verifiers.envs.origin import changed_files, note_origin
from verifiers.errors import EnvironmentInstallError
from verifiers.rollouts.workers.uv import uv
from verifiers.rollouts.workers.wheels import Source, our_extras, our_source

logger = logging.getLogger(__name__)

_LAYOUT = 1
"""Part of the key: another one makes every virtual environment anew."""

LOCK = "requirements.lock"
_READY = "ready.json"


@dataclass(frozen=True, slots=True)
class Venv:
    """A virtual environment. `made` says whether this call made it."""

    home: Path
    made: bool

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.home / "venv" / "bin" / "python")

    @property
    def lock(self) -> Path:
        """What is installed in it."""
        return self.home / LOCK


async def ensure_venv(
    source: Source,
    cache: Path,
    *,
    extras: Sequence[str] = (),
    on_log: Callable[[str], None] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Venv:
    """The virtual environment of an environment, made if it is not there. `extras` are those of this package,
    `environ` variables for uv, such as further indexes: they are no part of the key.

    EnvironmentInstallError says what failed. Two processes that want the same one wait for each other.
    """
    ours = our_source()
    home = cache / "environments" / f"{source.name}-{_key(source, ours, extras)}"
    if _is_ready(home):
        return Venv(home, made=False)
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentInstallError(f"can not make {home}: {error.strerror}", cause=error) from error
    async with _locked(home / ".lock"):
        if _is_ready(home):
            return Venv(home, made=False)
        if on_log is not None:
            on_log(f"making a virtual environment for {source.name}, once: {home}")
        began = time.monotonic()
        await _make(home, source, ours, extras, environ)
        logger.info("the virtual environment %s took %.1f s", home, time.monotonic() - began)
    return Venv(home, made=True)


def _key(source: Source, ours: Source, extras: Sequence[str]) -> str:
    parts = [_LAYOUT, source.digest(), ours.digest(), sorted(extras), sys.base_prefix]
    parts += [platform.python_implementation(), platform.python_version(), platform.machine()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _is_ready(home: Path) -> bool:
    return (home / _READY).is_file() and (home / "venv" / "bin" / "python").exists()


@contextlib.asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    """Hold a lock between processes. Waiting can be cancelled, so it asks again and again."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while not _try_lock(descriptor):  # noqa: ASYNC110 - another process holds it: there is no event
            await asyncio.sleep(0.2)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # a network file system without locks: uv itself bears two installers
        logger.warning("can not lock the virtual environment (%s)", error.strerror)
    return True


async def _make(
    home: Path, source: Source, ours: Source, extras: Sequence[str], environ: Mapping[str, str] | None
) -> None:
    (home / _READY).unlink(missing_ok=True)  # of one that has lost its interpreter: others look for both
    lock = home / LOCK
    if not lock.is_file():
        await _write_lock(home, lock, source, ours, extras, environ)
    await uv("venv", "--quiet", "--clear", "--python", sys.executable, str(home / "venv"))
    python = str(home / "venv" / "bin" / "python")
    await uv("pip", "sync", "--quiet", "--require-hashes", "--python", python, str(lock), environ=environ)
    site = next((home / "venv" / "lib").glob("python*/site-packages"))
    for wheel in source.hub_wheels:
        [distribution] = metadata.distributions(name=wheel.name, path=[str(site)])
        if changed_files(distribution):  # uv's cache holds what someone has edited through a link
            again = ("--no-cache", "--no-deps", "--reinstall", "--python", python)
            await uv("pip", "install", "--quiet", *again, f"{wheel.name} @ {Path(wheel.path).as_uri()}")
            [distribution] = metadata.distributions(name=wheel.name, path=[str(site)])
        note_origin(distribution, wheel.url, wheel.sha256)
    _write(home / _READY, json.dumps({"made": time.time(), "python": platform.python_version()}))


async def _write_lock(
    home: Path, lock: Path, source: Source, ours: Source, extras: Sequence[str], environ: Mapping[str, str] | None
) -> None:
    wheels = home / "wheels"
    environment = await source.wheel(wheels / "environment")
    package = await ours.wheel(wheels / "verifiers")
    wanted = sorted({*extras, *our_extras(environment)})
    chosen = f"[{','.join(wanted)}]" if wanted else ""
    this = f"verifiers{chosen} @ {package.as_uri()}"
    needed = [f"{wheel.name} @ {Path(wheel.path).as_uri()}\n" for wheel in source.hub_wheels[1:]]
    _write(home / "requirements.in", "".join([f"{this}\n{source.name} @ {environment.as_uri()}\n", *needed]))
    # Whatever version of this package the environment asks for, it gets the one that speaks to it. An override
    # replaces the extras, too.
    _write(home / "overrides.txt", f"{this}\n")
    await uv(
        *("pip", "compile", "--quiet", "--generate-hashes", "--no-header", "--python", sys.executable),
        *("--override", str(home / "overrides.txt"), "--output-file", str(home / "lock.new")),
        str(home / "requirements.in"),
        environ=environ,
    )
    (home / "lock.new").replace(lock)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
