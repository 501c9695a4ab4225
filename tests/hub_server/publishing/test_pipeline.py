"""What publishing decides beside the rules for files: names, versions, ages, room, hub packages; on both databases."""

from __future__ import annotations

import dataclasses
import datetime as dt
import fcntl
import hashlib
import os
import secrets
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import select, update

from hub_server.accounts.service import Principal, create_owner
from hub_server.context import Context
from hub_server.database import Database, now
from hub_server.inspector import Inspector
from hub_server.journal import JournalEvent, current_serial
from hub_server.migrations.upgrade import upgrade
from hub_server.packages.models import File, Project, Release
from hub_server.problems import Denied, Problem
from hub_server.publishing import sessions
from hub_server.publishing.errors import InspectorsBusy, NoSession
from hub_server.publishing.models import UploadSession
from hub_server.publishing.pipeline import Publication, publish
from hub_server.publishing.receive import Upload
from hub_server.settings import Settings
from hub_server.storage import FolderStorage
from tests.support.archives import make_sdist, make_wheel, sdist_name, wheel_name
from verifiers.hub.package.facts import Policy
from verifiers.hub.package.refusal import RefusedError
from verifiers.hub.schema import NewFile, NewSession


class Desk:
    """Where files are handed in, without HTTP."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.principals: dict[str, Principal] = {}

    def owner(self, slug: str, *scopes: str) -> Principal:
        if slug not in self.principals:
            with self.context.database.write() as session:
                made = create_owner(session, slug)
                session.flush()
                self.principals[slug] = Principal(made.id, slug, "", frozenset(scopes or ("publish:new",)), ())
        return self.principals[slug]

    def upload(self, filename: str, data: bytes) -> Upload:
        path = self.context.storage.incoming / f"test-{secrets.token_hex(8)}"
        path.write_bytes(data)
        return Upload(path, filename, len(data), hashlib.sha256(data).hexdigest())

    def files(self, *files: tuple[str, bytes], owner: str = "alice", **more) -> Publication:
        uploads = [self.upload(*file) for file in files]
        try:
            return publish(Publication(self.context, self.owner(owner), owner, uploads, **more))
        finally:
            for upload in uploads:
                upload.path.unlink(missing_ok=True)

    def wheel(self, name="demo-env", version="0.1.0", tag="py3-none-any", **more) -> Publication:
        content = {key: more.pop(key) for key in ("files", "headers", "description") if key in more}
        return self.files((wheel_name(name, version, tag), make_wheel(name, version, tags=(tag,), **content)), **more)

    def source(self, name="demo-env", version="0.1.0", dependencies=(), **more) -> Publication:
        """A wheel and its source, which declares hub packages."""
        requires = ["verifiers>=0.1", *(one.partition("/")[2] for one in dependencies)]
        tool = f"\n[tool.verifiers.hub]\ndependencies = {list(dependencies)!r}\n".replace("'", '"')
        headers = {"Requires-Dist": requires}
        files = more.pop("files", None)
        return self.files(
            (wheel_name(name, version), make_wheel(name, version, files, headers=headers)),
            (sdist_name(name, version), make_sdist(name, version, headers=headers, tool=tool)), **more,
        )  # fmt: skip

    def change(self, model, **values) -> None:
        with self.context.database.write() as session:
            session.execute(update(model).values(**values))

    def all(self, model) -> list:
        with self.context.database.read() as session:
            return list(session.scalars(select(model)))

    def blobs(self) -> set[str]:
        return {blob.digest for blob in self.context.storage.blobs()}


@pytest.fixture(scope="module")
def inspector():
    """Processes that all tests of this module share."""
    made = Inspector(1)
    yield made
    made.close()


@pytest.fixture
def desk(database_url, tmp_path: Path, inspector):
    settings = Settings(data=tmp_path, database_url=database_url, max_project_size=40_000)
    context = Context(settings, Database(database_url), FolderStorage(tmp_path), inspector)
    upgrade(context.database)
    yield Desk(context)
    context.database.close()


def test_a_release_is_rows_blobs_and_one_event(desk):
    """Wheel and source are one change: one serial on the project, the release, both files and the journal."""
    desk.source()
    (project,), (release,), files = desk.all(Project), desk.all(Release), desk.all(File)
    event = desk.all(JournalEvent)[-1]
    assert {project.serial, release.serial, *(file.serial for file in files)} == {event.serial}
    assert (event.action, event.project_id, event.version) == ("release.publish", project.id, "0.1.0")
    wheel = next(file for file in files if file.kind == "wheel")
    assert desk.blobs() == {*(file.sha256 for file in files), wheel.metadata_sha256}
    assert (release.version, release.given_version) == ("0.1", "0.1.0")
    assert project.plain_name == "demo-env"


def test_the_same_bytes_change_nothing(desk):
    """No new serial, no new row, no new blob."""
    assert desk.wheel().created
    with desk.context.database.read() as session:
        before = current_serial(session)
    assert not desk.wheel().created
    with desk.context.database.read() as session:
        assert current_serial(session) == before


def test_a_refusal_leaves_nothing_behind(desk):
    """No row, no blob, no file on its way; also where the second of two files is the bad one."""
    good = (wheel_name(), make_wheel())
    with pytest.raises(RefusedError):
        desk.files(good, (sdist_name(), make_sdist(without=["PKG-INFO"])))
    assert desk.all(Project) == desk.all(Release) == desk.all(File) == []
    assert desk.blobs() == set()
    assert list(desk.context.storage.incoming.iterdir()) == []


def test_the_files_of_a_release_are_of_one_version(desk):
    """A wheel and a source archive of another version, or package, are not published together."""
    for other in (sdist_name("demo-env", "0.2.0"), sdist_name("other-env")):
        with pytest.raises(Problem, match="the files are of"):
            desk.files((wheel_name(), make_wheel()), (other, make_sdist()))


def test_the_plain_name_goes_to_the_first_public_project(desk):
    """A second owner's project of that name has none, and a private one never takes it."""
    desk.wheel("one-env", owner="alice", visibility="private")
    desk.wheel("one-env", owner="bob")
    desk.wheel("one-env", owner="carol")
    plain = {(project.owner.slug, project.plain_name) for project in desk.all(Project)}
    assert plain == {("alice", None), ("bob", "one-env"), ("carol", None)}


def test_local_versions_are_for_private_projects(desk):
    """`1.0+mine` is taken where nobody else sees it."""
    desk.wheel(version="1.0+mine", visibility="private")
    with pytest.raises(RefusedError) as refused:
        desk.wheel("other-env", version="1.0+mine")
    assert refused.value.code == "local-version"


@pytest.mark.parametrize("status", ["archived", "quarantined"])
def test_a_closed_project_takes_nothing(desk, status):
    """Archived and quarantined projects refuse; a deprecated one does not."""
    desk.wheel()
    desk.change(Project, status=status)
    with pytest.raises(Problem, match=status):
        desk.wheel(version="0.2.0")
    desk.change(Project, status="deprecated")
    assert desk.wheel(version="0.2.0").created


def test_a_deleted_version_stays_taken(desk):
    """Neither its file names nor its number come back; the refusal suggests to yank instead."""
    desk.wheel()
    desk.change(File, deleted_at=now())
    desk.change(Release, deleted_at=now())
    with pytest.raises(Problem, match="deleted") as refused:
        desk.wheel()
    assert "yank" in refused.value.hint
    for again in ("0.1.0", "0.1"):
        with pytest.raises(Problem, match="deleted") as refused:
            desk.wheel(version=again, tag="py3-none-linux_x86_64")
        assert refused.value.code == "deleted-version"


def test_a_release_takes_more_wheels_for_a_while(desk):
    """A platform's wheel may join, until the release is two weeks old, or yanked; one source archive only."""
    desk.wheel()
    assert desk.wheel(tag="py3-none-linux_x86_64").created
    assert len(desk.all(Release)) == 1
    desk.change(Release, yanked_at=now(), yank_reason="wrong")
    with pytest.raises(Problem, match="yanked"):
        desk.wheel(tag="py3-none-macosx_11_0_arm64")
    desk.change(Release, yanked_at=None, created_at=now() - dt.timedelta(days=15))
    with pytest.raises(Problem, match="14 days"):
        desk.wheel(tag="py3-none-macosx_11_0_arm64")


def test_equal_versions_are_one_release(desk):
    """`0.1` is `0.1.0`: it is no other release, and no file of this one."""
    desk.wheel(version="0.1.0")
    with pytest.raises(Problem, match="spelt otherwise"):
        desk.wheel(version="0.1")


def test_a_project_has_only_so_much_room(desk):
    """The files of all versions together stay below the limit; those of deleted ones take no room."""
    desk.wheel(version="0.1.0", files={"demo_env_data.bin": secrets.token_bytes(30_000)})
    with pytest.raises(Problem, match="more than 40,000") as refused:
        desk.wheel(version="0.2.0", files={"demo_env_data.bin": secrets.token_bytes(30_000)})
    assert refused.value.code == "project-size"
    assert len(desk.all(Release)) == 1
    with desk.context.database.write() as session:
        session.execute(update(Release).values(deleted_at=now()))
        session.execute(update(File).values(deleted_at=now()))
    assert desk.wheel(version="0.2.0", files={"demo_env_data.bin": secrets.token_bytes(30_000)}).created


def test_new_projects_need_their_own_scope(desk):
    """A token that may publish makes no project."""
    desk.owner("alice", "publish")
    with pytest.raises(Denied, match="publish:new"):
        desk.wheel()


def test_content_that_does_not_match_record_may_only_be_remarked(desk):
    """With HUB_STRICT_RECORD=false a wrong hash is a warning of the release."""
    wheel = make_wheel(record=lambda rows: [[rows[0][0], "sha256=" + "A" * 43, rows[0][2]], *rows[1:]])
    with pytest.raises(RefusedError):
        desk.files((wheel_name(), wheel))
    desk.context.settings.strict_record = False
    desk.files((wheel_name(), wheel))
    (release,) = desk.all(Release)
    assert "demo_env.py" in release.warnings[0]


# --- hub packages -----------------------------------------------------------------------------------------------


def refused(desk, *dependencies, **more) -> str:
    with pytest.raises(RefusedError) as error:
        desk.source(dependencies=dependencies, **more)
    assert error.value.code == "hub-dependency"
    return error.value.message


def test_declared_hub_packages_must_be_there(desk):
    """The package, a release that fits, and the right to see it."""
    assert "no bob/base-env" in refused(desk, "bob/base-env>=1")
    desk.wheel("base-env", "0.9", owner="bob")
    assert "no release of bob/base-env" in refused(desk, "bob/base-env>=1")
    desk.wheel("base-env", "1.0", owner="bob")
    assert desk.source(dependencies=["bob/base-env>=1"]).created
    desk.wheel("secret-env", "1.0", owner="bob", visibility="private")
    assert "no bob/secret-env" in refused(desk, "bob/secret-env", version="0.2.0")
    assert "is private" in refused(desk, "bob/secret-env", name="bobs-env", owner="bob")
    (release,) = [one for one in desk.all(Release) if one.facts["name"] == "demo-env"]
    assert release.facts["hub_dependencies"] == ["bob/base-env>=1"]


def test_no_two_packages_of_one_name_in_all_that_is_needed(desk):
    """A name that comes twice, from two owners, far below, can not be installed."""
    desk.wheel("base-env", "1.0", owner="bob")
    desk.wheel("base-env", "1.0", owner="carol")
    desk.source("middle-env", dependencies=["bob/base-env"], owner="dave")
    assert "can not be installed together" in refused(desk, "dave/middle-env", "carol/base-env")
    assert desk.source(dependencies=["dave/middle-env", "bob/base-env"]).created


def test_no_two_packages_with_one_module(desk):
    """Two packages that bring the same top-level module clash."""
    desk.wheel("base-env", "1.0", owner="bob", files={"helpers_of_env.py": b""})
    desk.wheel("other-env", "1.0", owner="bob", files={"helpers_of_env.py": b""})
    assert "'helpers_of_env'" in refused(desk, "bob/base-env", "bob/other-env")


# --- sessions ---------------------------------------------------------------------------------------------------


def open_session(desk, wheel: bytes) -> tuple[Principal, UploadSession]:
    """A session for one wheel, whose bytes are here."""
    alice = desk.owner("alice")
    file = NewFile(name=wheel_name(), size=len(wheel), sha256=hashlib.sha256(wheel).hexdigest())
    made = sessions.create(desk.context, alice, "alice", "demo-env", NewSession(version="0.1.0", files=[file]))
    writer = sessions.FileWriter(desk.context, made.files[0], 0)
    writer.feed(wheel)
    assert writer.finish() == len(wheel)
    return alice, made


def test_a_session_ends_after_a_day(desk):
    """Its bytes go, nobody can go on with it, and another one can be opened; that is what the sweeper calls, too."""
    alice, made = open_session(desk, make_wheel())
    desk.change(UploadSession, expires_at=now() - dt.timedelta(seconds=1))
    with desk.context.database.read() as session, pytest.raises(NoSession):
        sessions.find(session, alice, "alice", "demo-env", made.id)
    assert sessions.abort_expired(desk.context) == 1
    assert list(desk.context.storage.incoming.iterdir()) == []
    open_session(desk, make_wheel())
    desk.change(UploadSession, expires_at=now() - dt.timedelta(seconds=1))
    open_session(desk, make_wheel())  # one that expired makes way by itself
    assert sorted(one.state for one in desk.all(UploadSession)) == ["aborted", "aborted", "open"]


@pytest.mark.parametrize("ender", ["sweeper", "next session"])
def test_a_session_that_ends_while_it_is_published_is_published(desk, monkeypatch, ender):
    """Who would end it and remove its bytes waits."""
    alice, made = open_session(desk, make_wheel())
    waits = threading.Event()
    enders = {
        "sweeper": lambda: sessions.abort_expired(desk.context),
        "next session": lambda: open_session(desk, make_wheel(description="other")),
    }
    end = threading.Thread(target=enders[ender])

    def flock(file, kind):
        waits.set()
        fcntl.flock(file, kind)

    def expire_and_publish(publication):
        desk.change(UploadSession, expires_at=now() - dt.timedelta(seconds=1))
        monkeypatch.setattr("verifiers.locks.fcntl", SimpleNamespace(flock=flock, LOCK_EX=fcntl.LOCK_EX))
        end.start()
        while end.is_alive() and not waits.is_set():
            time.sleep(0.001)
        return publish(publication)

    monkeypatch.setattr(sessions, "publish", expire_and_publish)
    assert sessions.publish_session(desk.context, alice, "alice", "demo-env", made.id, None)[1]
    end.join()
    assert next(one.state for one in desk.all(UploadSession) if one.id == made.id) == "published"


def test_the_check_report_is_kept_with_the_release(desk):
    """The release, the report and the session's end are one transaction."""
    wheel = make_wheel()
    alice, made = open_session(desk, wheel)
    report = {"wheel_sha256": hashlib.sha256(wheel).hexdigest(), "checks": []}
    assert sessions.publish_session(desk.context, alice, "alice", "demo-env", made.id, report)[1]
    (release,), (session,) = desk.all(Release), desk.all(UploadSession)
    assert (release.check_report, session.state, session.open_key) == (report, "published", None)
    assert list(desk.context.storage.incoming.iterdir()) == []


def test_who_finds_no_inspector_is_told_to_come_again(desk, tmp_path):
    """503 with Retry-After while the only process is at another account's file; nothing is published."""
    inspector = Inspector(1, waiting=0.2)
    desk.context = dataclasses.replace(desk.context, inspector=inspector)
    os.mkfifo(tmp_path / "slow")
    slow = threading.Thread(target=refused_after_all, args=(inspector, tmp_path / "slow"))
    slow.start()
    while not inspector._held["mallory"]:
        time.sleep(0.01)
    with pytest.raises(InspectorsBusy) as busy:
        desk.wheel()
    (tmp_path / "slow").open("wb").close()  # what the process has been waiting for
    slow.join()
    assert (busy.value.status, busy.value.headers["Retry-After"]) == (503, "10")
    assert desk.all(Release) == []
    assert desk.wheel().created
    inspector.close()


def refused_after_all(inspector, path):
    with pytest.raises(RefusedError):
        inspector.inspect(path, wheel_name(), Policy(), "mallory")
