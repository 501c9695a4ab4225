"""One contract for both storages: a folder, and an object store that speaks S3."""

import hashlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from hub_server.object_storage import DeniedStorageError, ObjectStorage
from hub_server.storage import YOUNG, FolderStorage, StorageError, StoredBlob
from tests.support.object_store import aws


@pytest.fixture(params=["folder", "s3"])
def storage(request, tmp_path):
    if request.param == "folder":
        return FolderStorage(tmp_path)
    return ObjectStorage(request.getfixturevalue("bucket"), tmp_path)


@pytest.fixture
def new_file(storage):
    """A function that makes a finished file on its way in, and its digest."""

    def make(content=b"some bytes"):
        path = storage.incoming / os.urandom(4).hex()
        path.write_bytes(content)
        return path, hashlib.sha256(content).hexdigest()

    return make


def age(storage, digest, seconds):
    """Make a blob as if it had been put so long ago: its file's time, or for the object store the time it is asked."""
    moment = time.time() - seconds
    os.utime(storage.local_path(digest), (moment, moment))


def test_what_was_put_is_read(storage, new_file):
    """The bytes come back whole, the file on its way in is gone, and the listing has it."""
    path, digest = new_file()
    storage.put(path, digest)
    assert b"".join(storage.read(digest)) == b"some bytes"
    assert storage.size(digest) == 10
    assert not path.exists()
    assert [blob[:2] for blob in storage.blobs()] == [(digest, 10)]
    assert isinstance(next(storage.blobs()), StoredBlob)


@pytest.mark.parametrize(
    ("start", "end"), [(0, 3), (2, 5), (9, 10), (3, None), (4, 4), (0, 99)], ids=str
)
def test_ranges_are_those_of_slices(storage, new_file, start, end):
    """A range is what slicing the bytes gives."""
    path, digest = new_file()
    storage.put(path, digest)
    assert b"".join(storage.read(digest, start, end)) == b"some bytes"[start:end]


def test_the_same_bytes_twice_are_one_blob(storage, new_file):
    """A second put of the same bytes changes nothing, whichever way it comes."""
    for _ in range(2):
        path, digest = new_file()
        storage.put(path, digest)
        assert not path.exists()
        storage.put_bytes(b"some bytes", digest)
    assert len(list(storage.blobs())) == 1


def test_a_blob_of_many_parts(storage, new_file):
    """A large file arrives whole, and a second time too."""
    content = os.urandom(1 << 20) * 11
    for _ in range(2):
        path, digest = new_file(content)
        storage.put(path, digest)
    assert hashlib.sha256(b"".join(storage.read(digest))).hexdigest() == digest
    assert not path.exists()


def test_what_is_not_there(storage):
    """Reading is a KeyError, the size is None, and removing does nothing."""
    with pytest.raises(KeyError):
        list(storage.read("00" * 32))
    assert storage.size("00" * 32) is None
    assert storage.local_path("00" * 32) is None
    assert storage.remove_old("00" * 32, time.time() + 60) is False


def test_only_what_is_old_enough_is_removed(storage, new_file):
    """The sweeper's moment decides."""
    path, digest = new_file()
    storage.put(path, digest)
    assert storage.remove_old(digest, time.time() - 60) is False
    assert storage.size(digest) == 10
    assert storage.remove_old(digest, time.time() + 60) is True
    assert storage.size(digest) is None


def test_racing_writers_of_the_same_bytes(storage, new_file):
    """Eight writers at once leave one whole blob, and none of them fails."""
    made = [new_file(b"raced" * 1000) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: storage.put(*one), made))
    assert [blob.size for blob in storage.blobs()] == [5000]


def test_a_healthy_storage_says_nothing(storage):
    """The check finds nothing, and leaves nothing behind that looks like a blob."""
    storage.check(write=True)
    assert list(storage.blobs()) == []


def test_putting_an_old_blob_again_makes_it_young(tmp_path):
    """The sweeper must not take a left-over that a new release is about to name."""
    storage = FolderStorage(tmp_path)
    digest = hashlib.sha256(b"x").hexdigest()
    storage.put_bytes(b"x", digest)
    age(storage, digest, YOUNG * 50)
    storage.put_bytes(b"x", digest)
    assert storage.remove_old(digest, time.time() - YOUNG) is False
    assert storage.size(digest) == 1


def test_sweeper_and_writers_at_once(tmp_path):
    """Whatever the order, a blob is there once its put has returned (the race of artifact-keeper#3851)."""
    storage = FolderStorage(tmp_path)
    digest = hashlib.sha256(b"x").hexdigest()
    stop = threading.Event()

    def sweep():
        while not stop.is_set():
            storage.remove_old(digest, time.time() - YOUNG)

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        for _ in range(300):
            if storage.local_path(digest) is not None:
                age(storage, digest, YOUNG * 50)
            storage.put_bytes(b"x", digest)
            assert storage.size(digest) == 1
    finally:
        stop.set()
        sweeper.join()


# --- what only an object store does -----------------------------------------------------------------------------


@pytest.fixture
def remote(bucket, tmp_path):
    return ObjectStorage(bucket, tmp_path)


def test_an_old_object_is_written_again_and_waits_for_sweepers(remote, monkeypatch):
    """A writer that meets a sweeper's mark waits, and stores the bytes anew if the sweeper took them."""
    digest = hashlib.sha256(b"x").hexdigest()
    remote.put_bytes(b"x", digest)
    monkeypatch.setattr("hub_server.object_storage.YOUNG", -60.0)  # everything is old
    seen = iter([True, True, False])

    def marks():
        if next(seen, False):
            remote.store.delete(f"blobs/{digest[:2]}/{digest[2:4]}/{digest}")
            yield "sweep/one"

    monkeypatch.setattr(remote, "_marks", marks)
    remote.put_bytes(b"x", digest)
    assert remote.size(digest) == 1


def test_the_mark_of_a_dead_sweeper_holds_nobody_up(remote, monkeypatch):
    """A mark that is too old is removed by whoever meets it."""
    remote.store.put("sweep/left", b"")
    assert len(list(remote._marks())) == 1
    monkeypatch.setattr("hub_server.object_storage.STALE", -60.0)
    assert list(remote._marks()) == []
    monkeypatch.undo()
    assert list(remote._marks()) == []


def test_a_conflict_of_two_writers_is_tried_again(object_store, bucket, tmp_path, monkeypatch):
    """S3 answers 409 to one of two conditional writers at the same moment."""
    conflicts = iter([409, 409])

    class Between(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, answer = next(conflicts, 0), b"<Error><Code>ConditionalRequestConflict</Code></Error>"
            if not status:
                headers = {k: v for k, v in self.headers.items() if k.lower() != "host"}
                reply = httpx.put(f"{object_store}{self.path}", content=body, headers=headers)
                status, answer = reply.status_code, reply.content
            self.send_response(status)
            self.send_header("ETag", '"x"')
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def do_HEAD(self):
            self.send_response(httpx.head(f"{object_store}{self.path}").status_code)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Between)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_address[1]}")
    digest = hashlib.sha256(b"x").hexdigest()
    try:
        ObjectStorage(bucket, tmp_path).put_bytes(b"x", digest)
    finally:
        server.shutdown()
        server.server_close()
    assert next(conflicts, None) is None
    monkeypatch.setenv("AWS_ENDPOINT_URL", object_store)
    assert ObjectStorage(bucket, tmp_path).size(digest) == 1


def test_no_such_bucket(bucket, tmp_path):
    """The error names the address, and the hint says to make the bucket."""
    with pytest.raises(StorageError, match="no bucket for s3://nowhere") as refused:
        ObjectStorage("s3://nowhere", tmp_path).check()
    assert "Make the bucket" in refused.value.hint


def test_wrong_credentials(tmp_path, monkeypatch):
    """They are told apart from a store that is down, and the hint names the variables."""

    class Denying(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(403)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Denying)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name, value in aws(f"http://127.0.0.1:{server.server_address[1]}").items():
        monkeypatch.setenv(name, value)
    try:
        with pytest.raises(DeniedStorageError) as refused:
            ObjectStorage("s3://bucket", tmp_path).check()
    finally:
        server.shutdown()
        server.server_close()
    assert "AWS_ACCESS_KEY_ID" in refused.value.hint
    assert refused.value.exit_code == 3


def test_a_put_that_fails_leaves_nothing(tmp_path, monkeypatch):
    """Where the blob can not be linked, the temporary file goes too."""
    storage = FolderStorage(tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(OSError, match="No space left"):
        storage.put_bytes(b"x", hashlib.sha256(b"x").hexdigest())
    assert list(storage.incoming.iterdir()) == []
