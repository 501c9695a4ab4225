"""Every rule on files is the server's, whatever a client sends, and what is refused leaves nothing behind."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.archives import make_wheel, wheel_name
from tests.support.hub import running_hub
from tests.support.refused import REFUSED
from verifiers.hub.package.facts import Policy

UPLOADED = [case for case in REFUSED if case.policy == Policy() and not case.filename.endswith(".zip")]
"""What the form of an upload does not decide before."""


def upload(hub, owner, filename, data):
    """What an installer's upload sends, without its own checks."""
    kind = "bdist_wheel" if filename.endswith(".whl") else "sdist"
    name, version = [*filename.removesuffix(".tar.gz").split("-"), ""][:2]
    form = {":action": "file_upload", "protocol_version": "1", "metadata_version": "2.4", "filetype": kind}
    form |= {"name": name, "version": version, "pyversion": "py3" if kind == "bdist_wheel" else "source"}
    sent = {"data": form, "files": {"content": (filename, data)}, "auth": ("__token__", owner.token)}
    return httpx.post(f"{hub.url}/legacy/", timeout=60, **sent)


def blobs(hub):
    return {path.relative_to(hub.data) for path in hub.data.rglob("*") if path.is_file() and "sqlite" not in path.name}


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A hub of these tests' own, so that what it holds can be counted."""
    with running_hub(tmp_path_factory.mktemp("hub"), inspectors=1) as running:
        yield running


@pytest.mark.slow
def test_every_rule_is_enforced_and_leaves_nothing(hub):
    """400 with the rule's code, never a 5xx; no blob, no project, no left-over."""
    owner = hub.owner()
    before = blobs(hub)
    for case in UPLOADED:
        answer = upload(hub, owner, case.filename, case.data())
        assert (answer.status_code, f"[{case.code}]" in answer.text) == (400, True), f"{case.id}: {answer.text}"
    assert blobs(hub) == before
    assert httpx.get(f"{hub.url}/{owner.slug}/simple/demo-env/").status_code == 404
    good = upload(hub, owner, wheel_name(), make_wheel())
    assert good.status_code == 200, good.text


def test_a_worker_that_is_killed_costs_one_upload_and_no_more(hub, tmp_path):
    """The next one is looked into by a new process: no 5xx, nothing accepted unseen."""
    owner = hub.owner()
    assert upload(hub, owner, wheel_name("first-env"), make_wheel("first-env")).status_code == 200
    for pid in workers_of(hub.process.pid):
        os.kill(pid, signal.SIGKILL)
    assert upload(hub, owner, wheel_name("second-env"), make_wheel("second-env")).status_code == 200


def test_hostile_and_good_uploads_at_once_get_their_own_answers(hub):
    """Eight threads, one worker."""
    owner = hub.owner()
    bad = make_wheel("bad-env", module=f"x = {'-' * 300_000}1\n")

    def send(number):
        name = f"good-env-{number}" if number % 2 else "bad-env"
        answer = upload(hub, owner, wheel_name(name), make_wheel(name) if number % 2 else bad)
        return answer.status_code, "[inspection-failed]" in answer.text

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(send, range(16)))
    assert answers == [(400, True), (200, False)] * 8


def workers_of(parent):
    """The inspecting processes of a server and of its own server processes."""
    found, parents = [], {parent}
    for path in sorted(Path("/proc").glob("[0-9]*/stat"), key=lambda one: int(one.parent.name)):
        if int(path.read_text().rpartition(")")[2].split()[1]) in parents:
            parents.add(int(path.parent.name))
            if b"package.worker" in (path.parent / "cmdline").read_bytes():
                found.append(int(path.parent.name))
    assert found
    return found
