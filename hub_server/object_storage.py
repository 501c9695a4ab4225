"""Blobs in an S3-compatible object store: `blobs/ab/cd/<sha256>` below a prefix of a bucket.

    ObjectStorage("s3://bucket/prefix", data)       credentials, region and endpoint from the usual AWS_… variables

Uploads collect in a local folder first, so that a file is checked before it costs a request. Readers get the bytes
through the hub: an address in an index never carries a signature or an expiry (astral-sh/uv#10609).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from hub_server.storage import CHUNK, YOUNG, StorageError, StoredBlob
from verifiers.errors import ConfigError, ExitCode

AT_ONCE = 4 << 20
"""Bytes up to which a blob goes in one request, which stores it or says that it is there. Larger ones go in parts."""

PART = 5 << 20  # S3's smallest
PARALLEL = 3  # parts in memory at once
RACING_TRIES = 6
SWEEPING = "sweep/"
STALE = 900.0
"""Seconds after which a sweeper's mark is that of one that died: a single request is given up long before."""


class DeniedStorageError(StorageError):
    """The store does not take the credentials, or they do not allow this."""

    exit_code = ExitCode.DENIED
    hint = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_REGION, AWS_ENDPOINT_URL) for this bucket."


class ObjectStorage:
    """Blobs in a bucket."""

    def __init__(self, url: str, data: Path) -> None:
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        if not bucket:
            raise ConfigError(f"{url} names no bucket", hint="As in s3://bucket/prefix")
        self.url = url
        self.incoming = data / "incoming"
        try:
            self.incoming.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"can not write to {data}: {error.strerror}") from error
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        options: Any = {"endpoint": endpoint} if endpoint else {}
        self.store = S3Store(
            bucket, prefix=prefix.strip("/") or None, config=options,
            client_options={"allow_http": endpoint.startswith("http://"), "timeout": "60s", "connect_timeout": "10s"},
            retry_config={"max_retries": 4, "retry_timeout": dt.timedelta(seconds=60)},
        )  # fmt: skip

    # --- put ------------------------------------------------------------------------------------------------------

    def put(self, path: Path, digest: str) -> None:
        """Small files conditionally in one request; large ones in parts, which become a blob all at once."""
        small = path.read_bytes() if path.stat().st_size <= AT_ONCE else None
        with self._asked():
            if small is not None:
                self._create(small, digest)
            elif not self._keep(digest, path):
                self._write(path, digest)
        path.unlink(missing_ok=True)

    def put_bytes(self, content: bytes, digest: str) -> None:
        """In one request."""
        with self._asked():
            self._create(content, digest)

    def _create(self, content: bytes, digest: str) -> None:
        """Store unless it is there. S3 answers 409 to one of two writers at once, which obstore reports as 412: there
        already. Where it is not there after all, it is asked again."""
        for attempt in range(RACING_TRIES):
            try:
                obstore.put(self.store, _key(digest), content, mode="create", use_multipart=False)
                return
            except AlreadyExistsError:
                if self._keep(digest, content):
                    return
            time.sleep(0.05 * 2**attempt)
        raise StorageError(f"the storage {self.url} takes and loses a blob", hint="See what else writes there.")

    def _write(self, content: bytes | Path, digest: str) -> None:
        """Store, over the same bytes if they are there."""
        obstore.put(self.store, _key(digest), content, chunk_size=PART, max_concurrency=PARALLEL)

    def _keep(self, digest: str, content: bytes | Path) -> bool:
        """Whether the blob is there to stay. An old one is written again, which makes it young.

        Writer: write, then look for a sweeper's mark. Sweeper: mark, then look at the age. Whichever is first, one
        sees the other, because the store's reads see finished writes.
        """
        facts = self._facts(digest)
        if facts is None:
            return False
        if facts["last_modified"].timestamp() > time.time() - YOUNG:
            return True
        self._write(content, digest)
        if not any(True for _ in self._marks()):
            return True
        while any(True for _ in self._marks()):
            time.sleep(0.1)
        return self._facts(digest) is not None

    # --- read -----------------------------------------------------------------------------------------------------

    def read(self, digest: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """In chunks of about 1 MiB, as they arrive."""
        if end is not None and end <= start:
            return
        options: Any = {}
        if start or end is not None:
            options = {"range": {"offset": start} if end is None else (start, end)}
        with self._asked():
            try:
                answer = obstore.get(self.store, _key(digest), options=options)
            except FileNotFoundError:
                raise KeyError(digest) from None
            for chunk in answer.stream(min_chunk_size=CHUNK):
                yield bytes(chunk)

    def local_path(self, digest: str) -> Path | None:
        """None: it is elsewhere."""

    def size(self, digest: str) -> int | None:
        """From the store."""
        with self._asked():
            facts = self._facts(digest)
        return None if facts is None else int(facts["size"])

    def blobs(self) -> Iterator[StoredBlob]:
        """By listing the bucket, a thousand at a time."""
        with self._asked():
            for some in obstore.list(self.store, prefix="blobs/", chunk_size=1000):
                for one in some:
                    yield StoredBlob(one["path"].rsplit("/", 1)[1], one["size"], one["last_modified"].timestamp())

    def check(self, *, write: bool = False) -> None:
        """List one blob; write an object of one byte."""
        with self._asked():
            next(iter(obstore.list(self.store, prefix="blobs/", chunk_size=1)), None)
            if write:
                obstore.put(self.store, "check", b"1")

    # --- sweep ----------------------------------------------------------------------------------------------------

    def remove_old(self, digest: str, before: float) -> bool:
        """Mark, look at the age, delete: see `_keep`."""
        mark = f"{SWEEPING}{secrets.token_hex(8)}"
        with self._asked():
            obstore.put(self.store, mark, b"")
            try:
                facts = self._facts(digest)
                if facts is None or facts["last_modified"].timestamp() >= before:
                    return False
                obstore.delete(self.store, _key(digest))
                return True
            finally:
                obstore.delete(self.store, mark)

    def _marks(self) -> Iterator[str]:
        """Marks of sweepers at work. Those of dead ones are removed."""
        for some in obstore.list(self.store, prefix=SWEEPING):
            for one in some:
                if one["last_modified"].timestamp() > time.time() - STALE:
                    yield one["path"]
                else:
                    obstore.delete(self.store, one["path"])

    def _facts(self, digest: str) -> Any:
        try:
            return obstore.head(self.store, _key(digest))
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def _asked(self) -> Iterator[None]:
        """The store's errors, as errors of ours. For a listing the library knows no kinds, only the status."""
        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            text = str(error)
            denied = isinstance(error, PermissionDeniedError | UnauthenticatedError)
            if denied or "403 Forbidden" in text or "401 Unauthorized" in text:
                raise DeniedStorageError(f"the storage {self.url} refuses: {_reason(error)}") from error
            if isinstance(error, FileNotFoundError) or "404 Not Found" in text:
                raise StorageError(
                    f"there is no bucket for {self.url}", hint="Make the bucket, or correct --storage."
                ) from error
            raise StorageError(
                f"the storage {self.url} does not answer: {_reason(error)}",
                hint="Check AWS_ENDPOINT_URL, AWS_REGION and the credentials.",
            ) from error


def _key(digest: str) -> str:
    return f"blobs/{digest[:2]}/{digest[2:4]}/{digest}"


def _reason(error: Exception) -> str:
    """The first line of what the library says; the rest is its own debugging."""
    return next(iter(str(error).splitlines()), type(error).__name__)[:300]
