"""Wheels and source archives onto the disk: all of one, or nothing.

    unpack_sdist(Path("my_env-0.1.0.tar.gz"), Path("my_env"), Limits())       the content of its top folder
    unpack_wheel(Path("my_env-0.1.0-py3-none-any.whl"), Path("looked_into"), Limits())

The whole archive is read, and perhaps refused, before anything is written. Then it is written into a fresh folder
beside the target, which no link leads out of since only folders and files are made, and renamed: whoever looks sees
the whole or nothing. Files become 0644, or 0755 where the archive has them executable, less the umask.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from verifiers.errors import UserError
from verifiers.hub.package.paths import Limits
from verifiers.hub.package.tar_walk import read_members, walk_tar
from verifiers.hub.package.zip_walk import walk_zip


class TargetError(UserError):
    """The folder to unpack into is there and not empty."""

    hint = "Name a folder that does not exist, or empty this one first."


def unpack_wheel(path: Path, into: Path, limits: Limits) -> None:
    """Write a wheel's members below `into`. Refuses as `walk_zip`; TargetError where `into` has content."""
    with path.open("rb") as file:
        listing = walk_zip(file, limits)
        listing.digests()
        with _fresh(into) as folder:
            for member in listing.members:
                _write(folder, member.name, member.is_dir, member.mode, listing.parts(member))


def unpack_sdist(path: Path, into: Path, limits: Limits) -> None:
    """Write what is in the top folder of a source archive below `into`; the file's name says what that is called.

    Refuses as `walk_tar`; TargetError where `into` has content.
    """
    top = path.name.removesuffix(".tar.gz")
    with path.open("rb") as file:
        walk_tar(file, top, limits, keep=lambda _name: False)
        with _fresh(into) as folder:
            for member, parts in read_members(file, top, limits):
                _write(folder, member.name[len(top) + 1 :], member.is_dir, member.mode, parts)


@contextmanager
def _fresh(into: Path) -> Iterator[Path]:
    """A folder that becomes `into` where no exception comes, and is gone where one does."""
    if into.is_symlink() or (into.exists() and (not into.is_dir() or any(into.iterdir()))):
        raise TargetError(f"{into} is there already")
    into.parent.mkdir(parents=True, exist_ok=True)
    holder = Path(tempfile.mkdtemp(prefix=f".{into.name}-", dir=into.parent))
    try:
        content = holder / "content"
        content.mkdir(mode=0o755)
        yield content
        content.rename(into)
    finally:
        shutil.rmtree(holder)


def _write(folder: Path, name: str, is_dir: bool, mode: int, parts: Iterable[bytes]) -> None:
    target = folder / name
    (target if is_dir else target.parent).mkdir(mode=0o755, parents=True, exist_ok=True)
    if is_dir:
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    with os.fdopen(os.open(target, flags, 0o755 if mode & 0o100 else 0o644), "wb") as file:
        for part in parts:
            file.write(part)
