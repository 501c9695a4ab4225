"""What the sweeper takes, and what it leaves."""

import datetime as dt
import hashlib
import os
import signal
import subprocess
import sys
import time

import pytest
from sqlalchemy import text

from hub_server.maintenance.fsck import fsck
from hub_server.maintenance.sweep import sweep
from tests.support.archives import write_wheel
from tests.support.filled_hub import fill, hub_parts, publish_files
from tests.support.hub import PATIENCE, run_server
from tests.support.variables import variables
from verifiers.errors import ConfigError

LONG_AGO = time.time() - 100 * 3600


@pytest.fixture
def context(tmp_path, database_url):
    with hub_parts(data=tmp_path / "data", database_url=database_url) as context:
        fill(context, tmp_path)
        for blob in context.storage.blobs():
            os.utime(context.storage.local_path(blob.digest), (LONG_AGO, LONG_AGO))
        yield context


def left_over(context, content=b"left over", moment=LONG_AGO):
    """A blob that no row names, as a server killed between blob and commit leaves it."""
    digest = hashlib.sha256(content).hexdigest()
    context.storage.put_bytes(content, digest)
    os.utime(context.storage.local_path(digest), (moment, moment))
    return digest


def test_only_what_nothing_names_goes(context):
    """An old left-over goes; a young one, and everything that a row names, stays."""
    old, young = left_over(context), left_over(context, b"young", time.time())
    swept = sweep(context)
    assert (swept.blobs, swept.bytes) == (1, 9)
    assert context.storage.size(old) is None
    assert context.storage.size(young) == 5
    assert fsck(context).findings == []


def test_a_dry_run_removes_nothing(context):
    """It counts what would go."""
    old = left_over(context)
    (context.storage.incoming / "upload-x").write_bytes(b"x")
    os.utime(context.storage.incoming / "upload-x", (LONG_AGO, LONG_AGO))
    swept = sweep(context, dry_run=True)
    assert (swept.blobs, swept.uploads) == (1, 1)
    assert context.storage.size(old) == 9


def test_left_over_uploads_go(context):
    """Files on their way in go once nothing was written to them for the grace."""
    for name, moment in (("upload-old", LONG_AGO), ("upload-new", time.time())):
        path = context.storage.incoming / name
        path.write_bytes(b"x")
        os.utime(path, (moment, moment))
    assert sweep(context).uploads == 1
    assert [path.name for path in context.storage.incoming.iterdir()] == ["upload-new"]


def test_what_an_open_session_was_given_stays(context):
    """A blob that an open session names stays; when its time is over, session and blob go, and its rows."""
    digest = left_over(context)
    tomorrow = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
    with context.database.write() as session:
        session.execute(
            text(
                "INSERT INTO upload_sessions (id, owner_id, name, version, visibility, state, open_key, created_at, "
                "expires_at) VALUES ('s', 1, 'a', '1', 'public', 'open', 'alice/a@1', :at, :at)"
            ),
            {"at": tomorrow.strftime("%Y-%m-%d %H:%M:%S.%f")},
        )
        session.execute(
            text(
                "INSERT INTO session_files (session_id, filename, size, sha256, stored) "
                "VALUES ('s', 'a', 9, :sha, true)"
            ),
            {"sha": digest},
        )
    assert (sweep(context).blobs, context.storage.size(digest)) == (0, 9)
    with context.database.write() as session:
        session.execute(text("UPDATE upload_sessions SET expires_at = '2026-01-01 00:00:00.000000'"))
    swept = sweep(context)
    assert (swept.sessions, swept.blobs) == (1, 1)
    with context.database.read() as session:  # nobody asks any more how a session of long ago ended
        assert session.execute(text("SELECT count(*) FROM session_files")).scalar() == 0
        assert session.execute(text("SELECT count(*) FROM upload_sessions")).scalar() == 0


def test_files_of_deleted_releases_go(context):
    """A tombstone keeps the name, not the bytes."""
    with context.database.write() as session:
        session.execute(text("UPDATE files SET deleted_at = uploaded_at WHERE filename LIKE '%0.2.0%'"))
        session.execute(text("UPDATE releases SET deleted_at = created_at WHERE version LIKE '%0.2%'"))
    assert sweep(context).blobs == 2  # the wheel and its METADATA
    assert fsck(context).findings == []


def test_bytes_that_are_published_between_listing_and_removal_stay(context, tmp_path, monkeypatch):
    """A release that names a left-over just before it is removed keeps it."""
    wheel = write_wheel(tmp_path, version="0.3.0")
    digest = left_over(context, wheel.read_bytes())
    removal = context.storage.remove_old

    def publish_first(candidate, before):
        if candidate == digest:
            publish_files(context, "alice", wheel)
        return removal(candidate, before)

    monkeypatch.setattr(context.storage, "remove_old", publish_first)
    assert sweep(context).blobs == 0
    assert fsck(context).findings == []


def test_a_grace_that_is_too_short(context):
    """Uploads may resume for a day."""
    with pytest.raises(ConfigError, match="too short"):
        sweep(context, 1)


def test_a_sweeper_that_is_killed(tmp_path, database_url):
    """kill -9 in the middle of a sweep leaves a hub without findings, and the next sweep goes on."""
    with hub_parts(data=tmp_path / "data", database_url=database_url) as context:
        fill(context, tmp_path)
        for number in range(3):
            left_over(context, b"%d" % number)
        settings = {"HUB_DATA": str(tmp_path / "data"), "HUB_DATABASE_URL": database_url}
        process = subprocess.Popen(
            [sys.executable, "-m", "hub_server", "sweep"], stderr=subprocess.PIPE, text=True,
            env=variables({**settings, "HUB_FAULT_POINT": "during-sweep"}),
        )  # fmt: skip
        assert process.stderr is not None
        with process.stderr as lines:
            assert any("fault point during-sweep" in line for line in iter(lines.readline, ""))
            process.send_signal(signal.SIGKILL)
            process.wait(PATIENCE)
        assert fsck(context).findings == []
    done = run_server("sweep", settings=settings)
    assert (done.returncode, "removed 2 blobs" in done.stderr) == (0, True)
