"""What fsck finds: nothing in a healthy hub, and each kind of damage by its code."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from hub_server.accounts.service import create_owner
from hub_server.maintenance.fsck import fsck
from tests.support.filled_hub import fill, hub_parts
from tests.support.hub import run_server


@pytest.fixture
def context(tmp_path, database_url):
    with hub_parts(data=tmp_path / "data", database_url=database_url) as context:
        fill(context, tmp_path)
        yield context


def execute(context, statement):
    with context.database.write() as session:
        session.execute(text(statement))


def first_wheel(context):
    with context.database.read() as session:
        query = "SELECT sha256, metadata_sha256 FROM files WHERE kind = 'wheel' ORDER BY id"
        return session.execute(text(query)).first()


def codes(context, **options):
    return {finding.code for finding in fsck(context, **options).findings}


def test_a_healthy_hub_has_no_findings(context):
    """Everything is looked at, and found as it should be."""
    report = fsck(context)
    assert report.findings == []
    assert (report.projects, report.files) == (3, 5)
    assert report.bytes > 0


def test_a_healthy_hub_in_an_object_store(tmp_path, bucket):
    """Blobs elsewhere are looked at, too."""
    with hub_parts(data=tmp_path / "data", storage=bucket) as context:
        fill(context, tmp_path)
        assert fsck(context).findings == []
        digest = first_wheel(context)[0]
        context.storage.store.put(f"blobs/{digest[:2]}/{digest[2:4]}/{digest}", b"other")
        assert codes(context) == {"blob-size", "blob-digest"}


def test_changed_bytes_of_the_same_size(context):
    """A flipped bit is found by hashing, and not by --quick."""
    path = context.storage.local_path(first_wheel(context)[0])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert codes(context) == {"blob-digest"}
    assert codes(context, hash_blobs=False) == set()


def test_missing_and_short_blobs(context):
    """A blob that is gone, and one that was cut short."""
    path = context.storage.local_path(first_wheel(context)[0])
    path.write_bytes(path.read_bytes()[:-1])
    assert codes(context, hash_blobs=False) == {"blob-size"}
    path.unlink()
    assert codes(context) == {"blob-missing"}


@pytest.mark.parametrize("step", ["size", "read", "local_path"])
def test_what_is_deleted_and_swept_meanwhile_is_no_finding(context, monkeypatch, step):
    """Whichever step of a look at a file comes after that."""
    inner = getattr(context.storage, step)

    def sweep_beside(digest, *more):
        found = inner(digest, *more)
        execute(context, "UPDATE files SET deleted_at = uploaded_at")
        for path in context.storage.root.glob("??/??/*"):
            path.unlink()
        return found

    monkeypatch.setattr(context.storage, step, sweep_beside)
    assert codes(context) == set()


def test_a_hub_that_works_meanwhile_has_no_findings(context):
    """Rows that are compared are of one moment."""

    def work():
        for number in range(200):
            with context.database.write() as session:
                create_owner(session, f"meanwhile-{number}")

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        while not working.done():
            assert codes(context, hash_blobs=False) == set()
        working.result()


def test_sidecars(context):
    """METADATA beside a wheel that is gone, has other bytes, or is that of another wheel."""
    path = context.storage.local_path(first_wheel(context)[1])
    kept = path.read_bytes()
    path.write_bytes(b"other")
    assert codes(context) == {"sidecar-digest"}
    path.unlink()
    assert codes(context) == {"sidecar-missing"}
    path.write_bytes(kept)
    execute(context, "UPDATE files SET metadata_sha256 = sha256 WHERE kind = 'wheel'")
    assert codes(context) == {"sidecar-differs"}
    execute(context, "UPDATE files SET metadata_sha256 = NULL WHERE kind = 'wheel'")
    assert codes(context) == {"sidecar-missing"}


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("UPDATE hub_state SET serial = serial + 1", "journal-gap"),
        ("UPDATE projects SET serial = 1", "project-serial"),
        ("UPDATE projects SET serial = 10000", "project-serial"),
        ("UPDATE files SET blake2b_256 = 'x' WHERE id = 1", "blob-digest"),
        ("UPDATE files SET size = size + 1 WHERE id = 1", "blob-size"),
        ("UPDATE files SET deleted_at = uploaded_at WHERE kind = 'wheel'", "release-empty"),
        ("UPDATE files SET project_id = 2 WHERE id = 1", "file-project"),
    ],
)  # fmt: skip
def test_rows_that_contradict_each_other(context, statement, code):
    """Each contradiction has a code of its own."""
    execute(context, statement)
    assert code in codes(context)


def test_a_session_that_holds_a_version_it_should_not(context):
    """A session is open exactly if it holds its version."""
    execute(
        context,
        "INSERT INTO upload_sessions "
        "(id, owner_id, name, version, visibility, state, open_key, created_at, expires_at) VALUES "
        "('s', 1, 'a', '1', 'public', 'published', 'alice/a@1', '2026-01-01', '2026-01-02')",
    )
    assert codes(context) == {"session-key"}


def test_the_command(tmp_path):
    """It prints a line a finding, or JSON, and exits 1 if there is one."""
    with hub_parts(data=tmp_path / "data") as context:
        fill(context, tmp_path)
        settings = {"HUB_DATA": str(tmp_path / "data")}
        clean = run_server("fsck", settings=settings)
        assert (clean.returncode, clean.stdout) == (0, "")
        context.storage.local_path(first_wheel(context)[0]).unlink()
    found = run_server("fsck", settings=settings)
    assert found.returncode == 1
    assert found.stdout.startswith("blob-missing: alice/demo-env/")
    as_json = json.loads(run_server("fsck", "--json", "--quick", settings=settings).stdout)
    assert [one["code"] for one in as_json["findings"]] == ["blob-missing"]


def test_it_makes_no_hub(tmp_path):
    """Where there is no hub it says so, and makes nothing."""
    done = run_server("fsck", settings={"HUB_DATA": str(tmp_path / "none")})
    assert (done.returncode, "there is no hub in" in done.stderr) == (2, True)
    assert not (tmp_path / "none").exists()
