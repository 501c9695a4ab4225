"""A server that is killed at each named point of a publication: nothing is torn, and the client's retry succeeds."""

from __future__ import annotations

import hashlib
import signal
import threading
import time

import httpx
import pytest
from sqlalchemy import select

from hub_server.database import Database
from hub_server.journal import HubState, JournalEvent
from hub_server.packages.models import File, Project, Release
from hub_server.storage import FolderStorage
from tests.hub_server.publishing.test_races import published
from tests.support.archives import make_wheel, wheel_name
from tests.support.hub import PATIENCE, run_server, running_hub
from tests.support.uploads import post_upload
from verifiers.errors import HubUnavailableError
from verifiers.hub.build import Built
from verifiers.hub.push import carry_out, make_plan

POINTS = ("after-temp-file", "after-blob", "before-commit", "after-commit")


def kill_at(hub, point, send):
    """Send while the server stops at the point, then kill it as a power cut would."""
    failed = []

    def call():
        try:
            send()
        except (httpx.HTTPError, HubUnavailableError) as error:
            failed.append(error)

    sender = threading.Thread(target=call)
    sender.start()
    end = time.monotonic() + PATIENCE
    while not any(f"fault point {point}" in line for line in hub.log):
        assert time.monotonic() < end, "the point was not reached:\n" + "".join(hub.log)
        time.sleep(0.01)
    hub.stop(signal.SIGKILL)
    sender.join(PATIENCE)
    assert failed, "the client was answered"


def check(data, url):
    """Index, rows, serials and blobs agree, as `hub fsck` says, too; returns the published files."""
    fsck = run_server("fsck", settings={"HUB_DATA": str(data), "HUB_DATABASE_URL": url})
    assert fsck.returncode == 0, fsck.stdout + fsck.stderr
    database, storage = Database(url), FolderStorage(data)
    with database.read() as session:
        files = list(session.scalars(select(File)))
        releases, projects = list(session.scalars(select(Release))), list(session.scalars(select(Project)))
        serials = list(session.scalars(select(JournalEvent.serial).order_by(JournalEvent.serial)))
        last = session.scalar(select(HubState.serial))
    database.close()
    assert serials == list(range(1, (last or 0) + 1))
    assert len(releases) == len(projects) == len({file.release_id for file in files})
    for file in files:
        for digest in filter(None, (file.sha256, file.metadata_sha256)):
            assert hashlib.sha256(b"".join(storage.read(digest))).hexdigest() == digest
    return files


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("point", POINTS)
def test_an_upload_survives_a_kill(database_url, tmp_path, point):
    """The release is there only if it was committed; the same upload again is a 200, and one file is there."""
    wheel = make_wheel()
    with running_hub(tmp_path, database_url=database_url, fault_point=point) as hub:
        owner = hub.owner()
        kill_at(hub, point, lambda: post_upload(hub, owner.token, wheel_name(), wheel))
    assert len(check(tmp_path, database_url)) == (1 if point == "after-commit" else 0)
    with running_hub(tmp_path, database_url=database_url) as hub:
        again = post_upload(hub, owner.token, wheel_name(), wheel)
        assert (again.status_code, "already" in again.text) == (200, point == "after-commit"), again.text
        assert published(hub, owner) == {wheel_name(): (hashlib.sha256(wheel).hexdigest(), wheel)}
    assert len(check(tmp_path, database_url)) == 1


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("point", POINTS[1:])
def test_a_session_survives_a_kill(database_url, tmp_path, point):
    """The next push goes on with the session that was being published."""
    folder = tmp_path / "built"
    folder.mkdir()
    wheel = folder / wheel_name()
    wheel.write_bytes(make_wheel())
    built, data = Built(wheel), tmp_path / "data"

    def push(hub):
        with hub.client(owner.token) as client:
            client.http.timeout = httpx.Timeout(PATIENCE)
            return carry_out(client, make_plan(client, built))

    with running_hub(data, database_url=database_url, fault_point=point) as hub:
        owner = hub.owner()
        kill_at(hub, point, lambda: push(hub))
    with running_hub(data, database_url=database_url) as hub:
        with hub.client(owner.token) as client:
            state = make_plan(client, built).state
        assert state == ("published" if point == "after-commit" else "new project")
        assert push(hub).created == (point != "after-commit")
        assert list(published(hub, owner)) == [wheel_name()]
    assert len(check(data, database_url)) == 1
