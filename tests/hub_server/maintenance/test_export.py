"""Export and import: the same hub on the other database and the other storage."""

import dataclasses
import json
import tarfile

import httpx
import pytest
from sqlalchemy import inspect, select

from hub_server.accounts.service import create_token, find_owner
from hub_server.maintenance.bundle import BundleError
from hub_server.maintenance.export import export, exported_tables
from hub_server.maintenance.fsck import fsck
from hub_server.maintenance.load import load
from hub_server.packages import manage
from hub_server.packages.models import File
from tests.support.archives import write_wheel
from tests.support.filled_hub import fill, hub_parts, owner_of, publish_files
from tests.support.hub import run_server, running_hub
from verifiers.errors import ConfigError
from verifiers.hub.schema import Yank


def rows_of(context):
    """Every row of every table that is exported."""
    with context.database.engine.connect() as connection:
        return {
            table.name: [tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key))]
            for table in exported_tables()
        }


@pytest.mark.parametrize("suffix", ["", ".tar"])
@pytest.mark.parametrize("way", ["there", "back"])
def test_the_other_database_and_storage(tmp_path, postgresql, bucket, suffix, way):
    """From SQLite and a folder to PostgreSQL and an object store, and the other way: every row and blob arrives."""
    sides = [{}, {"database_url": postgresql(), "storage": bucket}]
    first, second = sides if way == "there" else reversed(sides)
    target = tmp_path / f"export{suffix}"
    with hub_parts(data=tmp_path / "one", **first) as old:
        fill(old, tmp_path)
        written = export(old, target)
        before = rows_of(old)
    with hub_parts(data=tmp_path / "two", **second) as new:
        assert load(new, target) == written
        assert rows_of(new) == before
        assert fsck(new).findings == []
        # It goes on where the old one was: numbers and serials are not used twice.
        publish_files(new, "carol", write_wheel(tmp_path, name="next-env"))
        assert fsck(new).findings == []


@pytest.mark.slow
def test_the_indexes_have_the_same_bytes(tmp_path, postgresql):
    """A client sees no difference, down to the entity tag."""
    pages = ["/simple/", "/alice/simple/demo-env/", "/alice/demo-env/simple/demo-env/"]
    seen = []
    for name, more in (("one", {}), ("two", {"database_url": postgresql()})):
        data = tmp_path / name
        with hub_parts(data=data, **more) as context:
            if name == "one":
                fill(context, tmp_path)
                export(context, tmp_path / "export")
            else:
                load(context, tmp_path / "export")
        with running_hub(data, public_url="https://hub.example.org", **more) as hub:
            accept = {"Accept": "application/vnd.pypi.simple.v1+json"}
            answers = [httpx.get(hub.url + page, headers=accept) for page in pages]
            seen.append([(answer.status_code, answer.content, answer.headers["ETag"]) for answer in answers])
    assert [status for status, *_ in seen[0]] == [200, 200, 200]
    assert seen[0] == seen[1]


def test_an_interrupted_export_goes_on(tmp_path, monkeypatch):
    """Blobs that are there are not written again; without its manifest an export is refused."""
    with hub_parts(data=tmp_path / "data") as context:
        fill(context, tmp_path)
        reads = []
        read = context.storage.read

        def failing(digest, *rest):
            reads.append(digest)
            if len(reads) == 4:
                raise KeyboardInterrupt
            return read(digest, *rest)

        monkeypatch.setattr(context.storage, "read", failing)
        with pytest.raises(KeyboardInterrupt):
            export(context, tmp_path / "export")
        with hub_parts(data=tmp_path / "other") as other, pytest.raises(BundleError, match="did not finish"):
            load(other, tmp_path / "export")
        manifest = export(context, tmp_path / "export")
        assert len(reads) == 4 + manifest["blobs"]["count"] - 3
    with hub_parts(data=tmp_path / "other") as other:
        load(other, tmp_path / "export")
        assert fsck(other).findings == []


def test_an_interrupted_import_is_begun_again(tmp_path):
    """Rows come last and all at once: a damaged blob leaves the hub empty, and the mended export goes in."""
    with hub_parts(data=tmp_path / "data") as context:
        fill(context, tmp_path)
        export(context, tmp_path / "export")
        with context.database.read() as session:
            digest = session.scalars(select(File.sha256)).first()
    blob = tmp_path / "export" / "blobs" / digest[:2] / digest[2:4] / digest
    kept = blob.read_bytes()
    blob.write_bytes(b"damaged")
    with hub_parts(data=tmp_path / "other") as other:
        with pytest.raises(BundleError, match=f"{digest} of the export has other bytes"):
            load(other, tmp_path / "export")
        assert fsck(other).files == 0
        blob.write_bytes(kept)
        load(other, tmp_path / "export")
        assert fsck(other).findings == []


def test_changed_rows_are_noticed(tmp_path):
    """A table whose file was edited is refused, and nothing of it is kept."""
    with hub_parts(data=tmp_path / "data") as context:
        fill(context, tmp_path)
        export(context, tmp_path / "export")
    table = tmp_path / "export" / "tables" / "owners.jsonl"
    table.write_text(table.read_text().replace('"bob"', '"eve"'))
    with hub_parts(data=tmp_path / "other") as other:
        with pytest.raises(BundleError, match=r"owners\.jsonl"):
            load(other, tmp_path / "export")
        assert rows_of(other)["owners"] == []


def test_only_into_an_empty_hub(tmp_path):
    """A hub that has anything is left alone."""
    with hub_parts(data=tmp_path / "data") as context:
        fill(context, tmp_path)
        export(context, tmp_path / "export")
        with pytest.raises(ConfigError, match="not empty"):
            load(context, tmp_path / "export")
        with pytest.raises(ConfigError, match="holds an export already"):
            export(context, tmp_path / "export")


def test_a_missing_blob_is_said_at_export(tmp_path):
    """An export never leaves out what a row names."""
    with hub_parts(data=tmp_path / "data") as context:
        fill(context, tmp_path)
        next(path for path in context.storage.root.glob("??/??/*")).unlink()
        with pytest.raises(BundleError, match="missing"):
            export(context, tmp_path / "export.tar")
    assert not (tmp_path / "export.tar").exists()


def test_the_commands(tmp_path):
    """`export` writes a .tar that only its owner reads, `import` reads it."""
    with hub_parts(data=tmp_path / "data") as context:
        fill(context, tmp_path)
        tables = set(inspect(context.database.engine).get_table_names())
    target = tmp_path / "hub.tar"
    done = run_server("export", target, "--json", settings={"HUB_DATA": str(tmp_path / "data")})
    assert done.returncode == 0, done.stderr
    assert target.stat().st_mode & 0o777 == 0o600
    assert set(json.loads(done.stdout)["tables"]) == tables - {"alembic_version", "upload_sessions", "session_files"}
    with tarfile.open(target) as tar:
        assert tar.getnames()[-1] == "manifest.json"
    done = run_server("import", target, settings={"HUB_DATA": str(tmp_path / "new")})
    assert done.returncode == 0, done.stderr
    new = {"HUB_DATA": str(tmp_path / "new")}
    assert run_server("fsck", settings=new).returncode == 0
    owners = json.loads(run_server("admin", "list-owners", "--json", settings=new).stdout)["owners"]
    assert [(one["owner"], one["projects"]) for one in owners] == [("alice", 2), ("bob", 1)]


def test_no_export_there(tmp_path):
    """What is none is named."""
    (tmp_path / "file").write_text("x")
    for source in (tmp_path / "file", tmp_path / "nothing", tmp_path):
        done = run_server("import", source, settings={"HUB_DATA": str(tmp_path / "new")})
        assert done.returncode == 1
        assert "Traceback" not in done.stderr


def test_a_hub_with_a_past_is_sound_and_moves(tmp_path, database_url):
    """After yanks, deletions, transfers and derived tokens nothing is found, and an import is the same hub."""
    with hub_parts(data=tmp_path / "one", database_url=database_url) as old:
        fill(old, tmp_path)
        alice, bob = owner_of(old, "alice"), owner_of(old, "bob")
        both = dataclasses.replace(alice, site_admin=True)
        steps = [
            lambda session: manage.yank(session, alice, "alice", "demo-env", "0.1.0", Yank(reason="broken")),
            lambda session: manage.yank(session, bob, "bob", "demo-env", "0.1.0", Yank(reason="leak", cause="leak")),
            lambda session: manage.unyank(session, bob, "bob", "demo-env", "0.1.0"),
            lambda session: manage.delete_release(session, alice, "alice", "demo-env", "0.2.0"),
            lambda session: manage.set_status(session, alice, "alice", "hidden-env", "deprecated", "old"),
            lambda session: manage.set_visibility(session, alice, "alice", "hidden-env", "public"),
            lambda session: manage.transfer_name(session, both, "alice", "demo-env", "bob"),
            lambda session: _token_of_a_token(session, "alice"),
        ]
        for step in steps:
            with old.database.write() as session:
                step(session)
        assert fsck(old).findings == []
        export(old, tmp_path / "export")
        before = rows_of(old)
    with hub_parts(data=tmp_path / "two") as new:
        load(new, tmp_path / "export")
        assert rows_of(new) == before
        assert fsck(new).findings == []


def _token_of_a_token(session, slug):
    """A token whose parent has a later place in the order of ids."""
    owner = find_owner(session, slug)
    parent = create_token(session, owner, "parent", ["read"])[0]
    parent.id = "zzzz"
    session.flush()
    create_token(session, owner, "child", ["read"], parent_id="zzzz")[0].id = "0000"
