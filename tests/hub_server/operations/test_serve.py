"""The server as an operator meets it: start, refusals, several processes, kill -9, stop."""

import json
import os
import signal
import socket
import time
from pathlib import Path

import httpx
import pytest

from tests.support.hub import PATIENCE, run_server, running_hub, start_hub


def until(condition, what):
    """Wait for something that other processes bring about."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"never: {what}")


def children(pid):
    """The server processes below a manager: those that have loaded the program, not multiprocessing's helper."""
    found = []
    for number in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        line = Path(f"/proc/{number}/cmdline").read_bytes()
        if b"spawn_main" in line:
            found.append(int(number))
    return found


def answers(hub):
    try:
        return httpx.get(f"{hub.url}/healthz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def is_gone(pid):
    """Whether a process has ended (a zombie of another parent has)."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("workers", [1, 2])
def test_it_stops_when_told_to(tmp_path, workers, number):
    """SIGTERM and SIGINT end it with 0, and the last line of the log says so."""
    hub = start_hub(tmp_path, workers=workers)
    assert httpx.get(f"{hub.url}/readyz").json() == {"status": "ready"}
    assert hub.stop(number) == 0
    assert json.loads(hub.log[-1])["event"] == "the hub has stopped"


def test_a_signal_right_after_the_address_is_not_lost(tmp_path):
    """Whoever reads the address may stop the hub at once."""
    hub = start_hub(tmp_path)
    assert hub.stop() == 0


@pytest.mark.slow
def test_a_killed_worker_is_replaced(tmp_path, database_url):
    """Requests go on while a worker is killed, and a new one takes its place."""
    with running_hub(tmp_path, workers=2, database_url=database_url) as hub:
        old = until(lambda: len(found := children(hub.process.pid)) == 2 and found, "two workers")
        until(lambda: answers(hub), "an answer")
        os.kill(old[0], signal.SIGKILL)
        new = until(lambda: len(found := set(children(hub.process.pid)) - {old[0]}) == 2 and found, "a new worker")
        assert old[1] in new
        assert [httpx.get(f"{hub.url}/readyz").status_code for _ in range(20)] == [200] * 20
        owner = hub.owner()
        assert httpx.get(f"{hub.url}/api/v1/whoami", headers={"Authorization": f"Bearer {owner.token}"}).is_success
        until(lambda: any("died and was replaced" in line for line in hub.log), "a line in the log")


@pytest.mark.slow
def test_a_killed_manager_leaves_nothing_behind(tmp_path):
    """After kill -9 of the first process its workers end, too, and another hub gets the port."""
    hub = start_hub(tmp_path, workers=2)
    workers = until(lambda: len(found := children(hub.process.pid)) == 2 and found, "two workers")
    until(lambda: answers(hub), "an answer")
    hub.stop(signal.SIGKILL)
    until(lambda: all(is_gone(one) for one in workers), "the end of the workers")
    with running_hub(tmp_path, port=int(hub.url.rsplit(":", 1)[1])) as again:
        assert answers(again)


@pytest.mark.slow
def test_after_kill_9_it_starts_again_on_the_same_data(tmp_path, database_url):
    """What was committed is there: the owner's token still works."""
    hub = start_hub(tmp_path, database_url=database_url)
    owner = hub.owner()
    assert hub.stop(signal.SIGKILL) == -signal.SIGKILL
    with running_hub(tmp_path, database_url=database_url) as hub, hub.client(owner.token) as client:
        assert client.http.get("/api/v1/whoami").json()["owner"] == owner.slug


# --- refusals ---------------------------------------------------------------------------------------------------


def refused(**settings):
    done = run_server("serve", settings={f"HUB_{name.upper()}": str(value) for name, value in settings.items()})
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    error, hint = done.stderr.splitlines()[-2:]
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")
    return done.returncode, error


def test_a_port_in_use(tmp_path):
    """It says who is in the way, and exits 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, error = refused(data=tmp_path, port=taken.getsockname()[1])
    assert code == 1
    assert "another process listens there" in error


def test_an_address_of_another_machine(tmp_path):
    """An address that is not this machine's is named."""
    code, error = refused(data=tmp_path, host="192.0.2.1", port=0)
    assert (code, "192.0.2.1" in error) == (1, True)


def test_no_such_database(tmp_path, postgresql):
    """A database that is not there is named; it may come: exit 4."""
    url = postgresql().replace("/hub", "/nosuch", 1)
    code, error = refused(data=tmp_path, database_url=url)
    assert code == 4
    assert 'database "nosuch' in error


def test_no_password_is_shown(tmp_path):
    """The address of a database that does not answer is shown without its password."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code, error = refused(data=tmp_path, database_url=f"postgresql+psycopg://me:secret@127.0.0.1:{port}/hub")
    assert (code, "secret" in error, "me:***@127.0.0.1" in error) == (4, False, True)


@pytest.mark.parametrize("url", ["nonsense", "oracle+nothing://x/y"])
def test_an_address_that_is_none(tmp_path, url):
    """A database URL that cannot be read is a wrong setting: exit 2."""
    assert refused(data=tmp_path, database_url=url)[0] == 2


def test_a_folder_that_can_not_be_made(tmp_path):
    """A data folder below a file is named."""
    (tmp_path / "file").write_text("")
    code, error = refused(data=tmp_path / "file" / "hub")
    assert (code, str(tmp_path) in error) == (4, True)


def test_a_storage_of_another_kind(tmp_path):
    """Only s3:// is known."""
    code, error = refused(data=tmp_path, storage="gs://bucket")
    assert (code, "gs://bucket" in error) == (2, True)


def test_no_such_bucket(tmp_path, bucket):
    """A bucket that is not there is found at the start, not by the first upload."""
    code, error = refused(data=tmp_path, storage="s3://nowhere/x")
    assert (code, "no bucket for s3://nowhere/x" in error) == (4, True)


# --- what it is told and tells ------------------------------------------------------------------------------------


def test_a_read_only_hub_refuses_changes(tmp_path):
    """Reading works, a change is a 503 with a code; uploads by twine and uv get the sentence alone."""
    made = run_server("admin", "create-owner", "alice", settings={"HUB_DATA": str(tmp_path)})
    assert made.returncode == 0, made.stderr
    with running_hub(tmp_path, read_only=True) as hub:
        assert httpx.get(f"{hub.url}/readyz").is_success
        answer = httpx.delete(f"{hub.url}/api/v1/tokens/1")
        assert (answer.status_code, answer.json()["code"]) == (503, "read-only")
        assert answer.headers["Retry-After"] == "10"
        upload = httpx.post(f"{hub.url}/legacy/", files={"content": ("a.whl", b"x")})
        assert (upload.status_code, upload.headers["Content-Type"]) == (503, "text/plain; charset=utf-8")
        assert upload.text.startswith("the hub is read-only")


def test_a_misspelt_variable_is_mentioned(tmp_path):
    """A HUB_ variable that is nearly a setting's is not passed over in silence."""
    with running_hub(tmp_path, databse_url="x") as hub:
        assert any("HUB_DATABSE_URL is no setting; is it HUB_DATABASE_URL?" in line for line in hub.log)


def test_it_serves_from_an_object_store(tmp_path, bucket):
    """A hub on S3 is ready."""
    with running_hub(tmp_path, storage=bucket) as hub:
        assert httpx.get(f"{hub.url}/readyz").json() == {"status": "ready"}


def test_not_ready_says_why(tmp_path):
    """Too little room on the disk is a 503 with the reason, while the process is healthy."""
    with running_hub(tmp_path, min_free_space=1 << 60) as hub:
        answer = httpx.get(f"{hub.url}/readyz")
        assert (answer.status_code, answer.json()["code"]) == (503, "not-ready")
        assert "MiB are free" in answer.json()["message"]
        assert httpx.get(f"{hub.url}/healthz").is_success
