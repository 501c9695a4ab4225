"""Files of releases, downloaded once into a folder of the user's cache and known by their sha256.

    path = fetch(hub, file, cache_dir())      # …/hub/<sha256>/<filename>, its bytes verified, whoever put them there
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import urlsplit

from verifiers.errors import HubDigestError, HubUnavailableError, StoreError

if TYPE_CHECKING:
    from verifiers.hub.client import HubClient
    from verifiers.hub.schema import FileInfo

CHUNK = 1 << 20
AT_ONCE = 4


def fetch(hub: HubClient, file: FileInfo, cache: Path) -> Path:
    """The file, from the cache if it is there.

    HubDigestError if what the hub sends is not what it promised; nothing of that is kept.
    """
    path = cached_path(file.sha256, file.filename, cache)
    if path.is_file() and sha256_of(path) == file.sha256:
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".part-")
    except OSError as error:
        raise StoreError(f"can not write to {path.parent}: {error.strerror}", cause=error) from error
    try:
        with os.fdopen(descriptor, "wb") as part:
            _download(hub, file, part)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    return path


def fetch_all(hub: HubClient, files: Sequence[FileInfo], cache: Path) -> list[Path]:
    """Several files, a few at a time, in their order."""
    if len(files) < 2:
        return [fetch(hub, file, cache) for file in files]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(lambda file: fetch(hub, file, cache), files))


def cached_path(sha256: str, filename: str, cache: Path) -> Path:
    """Where a file is kept. Refuses (HubDigestError) a name or digest that is more than that."""
    if PurePosixPath(filename).name != filename or "\\" in filename or filename.startswith("."):
        raise HubDigestError(f"the hub calls a file {filename!r}, which is no file name")
    if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
        raise HubDigestError(f"the hub gives {sha256!r} as the sha256 of {filename}")
    return cache / "hub" / sha256 / filename


def sha256_of(path: Path) -> str:
    """The digest of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(hub: HubClient, file: FileInfo, part: BinaryIO) -> None:
    import httpx

    digest, size = hashlib.sha256(), 0
    try:
        with hub.stream(file.url) as response:
            for chunk in response.iter_raw(CHUNK):
                size += len(chunk)
                if size > file.size:
                    break
                digest.update(chunk)
                part.write(chunk)
    except httpx.HTTPError as error:
        raise HubUnavailableError(f"{file.url} broke off: {error}", cause=error) from error
    except OSError as error:
        raise StoreError(f"can not keep {file.filename}: {error.strerror}", cause=error) from error
    if size != file.size or digest.hexdigest() != file.sha256:
        got = f"{digest.hexdigest()} ({size} bytes)" if size <= file.size else f"more than {file.size} bytes"
        raise HubDigestError(
            f"{file.filename} is not what {urlsplit(file.url).netloc} promised: sha256 {file.sha256} "
            f"({file.size} bytes) was expected, and {got} came",
        )
