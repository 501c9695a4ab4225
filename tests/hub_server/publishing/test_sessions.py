"""Upload sessions: wheel and source archive become visible together, uploads resume, one session a version."""

from __future__ import annotations

import hashlib
import secrets
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.archives import make_sdist, make_wheel, sdist_name, wheel_name
from tests.support.uploads import BOUNDARY, upload_body


class Author:
    """A publisher who speaks to a hub without the SDK."""

    def __init__(self, hub, owner, name="demo-env"):
        self.root = f"/api/v1/{owner.slug}/{name}/releases"
        headers = {"Authorization": f"Bearer {owner.token}"}
        self.http = httpx.Client(base_url=hub.url, headers=headers, timeout=60)

    def open(self, files: dict[str, bytes], version="0.1.0", **more) -> httpx.Response:
        listed = [
            {"name": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in files.items()
        ]
        return self.http.post(self.root, json={"version": version, "files": listed, **more})

    def send(self, session: str, name: str, data: bytes, offset: int | None = None) -> httpx.Response:
        headers = {} if offset is None else {"Upload-Offset": str(offset)}
        return self.http.put(f"{self.root}/{session}/{name}", content=data, headers=headers)

    def publish(self, session: str, **body) -> httpx.Response:
        return self.http.post(f"{self.root}/{session}/publish", json=body or None)

    def all(self, files: dict[str, bytes], **more) -> httpx.Response:
        opened = self.open(files, **more)
        assert opened.status_code == 201, opened.text
        session = opened.json()["id"]
        for name, data in files.items():
            assert self.send(session, name, data).status_code == 204
        return self.publish(session)


def release(name="demo-env", version="0.1.0", **content) -> dict[str, bytes]:
    wheel, sdist = make_wheel(name, version, **content), make_sdist(name, version, **content)
    return {wheel_name(name, version): wheel, sdist_name(name, version): sdist}


@pytest.fixture
def author(hub):
    made = Author(hub, hub.owner())
    yield made
    made.http.close()


def incoming(hub) -> list[Path]:
    return [path for path in (hub.data / "incoming").iterdir() if path.name.startswith("session-")]


def post_upload_for(author: Author, filename: str, data: bytes) -> httpx.Response:
    """The same by the installers' route."""
    content_type = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    return author.http.post("/legacy/", content=upload_body(filename, data), headers=content_type)


def index(author: Author) -> list[str]:
    project = author.root.removeprefix("/api/v1").removesuffix("/releases")
    name = project.rsplit("/", 1)[1]
    page = author.http.get(
        f"{project}/simple/{name}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
    )
    return [file["filename"] for file in page.json()["files"]] if page.status_code == 200 else []


def test_wheel_and_source_become_visible_together(hub, author):
    """Nothing is seen until the session is published, then both files are; publishing again is a 200."""
    files = release()
    session = author.open(files).json()
    for name, data in files.items():
        assert author.send(session["id"], name, data).status_code == 204
        assert index(author) == []
    done = author.publish(session["id"])
    assert done.status_code == 201, done.text
    assert done.json()["id"].endswith("/demo-env@0.1.0")
    assert sorted(index(author)) == sorted(files)
    again = author.publish(session["id"])
    assert (again.status_code, again.json()["created"]) == (200, False)
    assert not [path for path in incoming(hub) if session["id"] in path.name]


def test_an_upload_resumes_where_it_broke_off(author):
    """HEAD tells how many bytes are here; a PUT goes on there, and one that would leave a hole is refused."""
    files = release()
    session = author.open(files).json()["id"]
    name, data = next(iter(files.items()))
    place = f"{author.root}/{session}/{name}"
    assert author.send(session, name, data[:100]).headers["Upload-Offset"] == "100"
    assert author.http.head(place).headers["Upload-Offset"] == "100"
    hole = author.send(session, name, data[200:], 200)
    assert (hole.status_code, hole.json()["code"], hole.headers["Upload-Offset"]) == (
        409,
        "wrong-offset",
        "100",
    )
    rest = author.send(session, name, data[60:], 60)
    assert rest.headers["Upload-Offset"] == str(len(data)), rest.text
    assert author.http.head(place).headers["Upload-Length"] == str(len(data))


def test_bytes_that_were_not_promised_are_refused(author):
    """Other bytes, or more, than the session was promised are refused and forgotten."""
    files = release()
    session = author.open(files).json()["id"]
    name, data = next(iter(files.items()))
    wrong = author.send(session, name, b"x" * len(data))
    assert (wrong.status_code, wrong.json()["code"]) == (400, "digest")
    assert author.http.head(f"{author.root}/{session}/{name}").headers["Upload-Offset"] == "0"
    assert author.send(session, name, data + b"x").json()["code"] == "too-large"
    assert author.publish(session).json()["code"] == "session-incomplete"


def test_one_session_a_version(hub, author):
    """A second one is told where the first is; once that is aborted, or published, another can be opened."""
    files = release()
    first = author.open(files)
    second = author.open(files)
    assert (second.status_code, second.json()["code"]) == (409, "session-open")
    assert second.headers["Location"] == first.headers["Location"]
    stranger = Author(hub, hub.owner())
    stranger.root = author.root
    assert stranger.open(files).status_code == 403
    stranger.http.close()
    assert author.http.delete(first.headers["Location"]).status_code == 204
    assert author.http.get(first.headers["Location"]).json()["state"] == "aborted"
    assert author.open(files).status_code == 201


def test_files_that_are_there_need_no_bytes(author):
    """A session for published files says so, and publishing it changes nothing; other bytes are refused at once."""
    files = release()
    assert author.all(files).status_code == 201
    session = author.open(files).json()
    assert all(file["stored"] for file in session["files"])
    again = author.publish(session["id"])
    assert (again.status_code, again.json()["created"]) == (200, False)
    other = author.open(release(description="# Other\n"))
    assert (other.status_code, other.json()["code"]) == (400, "file-exists")


def test_a_refused_release_leaves_nothing(hub, author):
    """A bad source archive keeps the good wheel out, and the session's bytes are gone."""
    files = release()
    name = sdist_name()
    files[name] = make_sdist(without=["pyproject.toml"])
    session = author.open(files).json()["id"]
    for filename, data in files.items():
        author.send(session, filename, data)
    refused = author.publish(session)
    assert refused.status_code == 400, refused.text
    assert set(refused.json()) >= {"code", "message", "hint", "docs"}
    assert index(author) == []
    assert not [path for path in incoming(hub) if session in path.name]
    assert author.all(release()).status_code == 201


def test_a_check_report_travels_along(author):
    """A report is taken for the wheel whose digest it names, and refused for another."""
    files = release()
    session = author.open(files).json()["id"]
    for filename, data in files.items():
        author.send(session, filename, data)
    made = {
        "made_at": "2026-11-30T12:00:00Z",
        "sdk_version": "1.0.0",
        "python": "3.11.7",
        "platform": "linux-x86_64",
    }
    other = {"wheel": wheel_name(), "wheel_sha256": "0" * 64, "checks": [], **made}
    assert author.publish(session, report=other).json()["code"] == "files-disagree"
    session = author.open(files).json()["id"]
    for filename, data in files.items():
        author.send(session, filename, data)
    report = {**other, "wheel_sha256": hashlib.sha256(files[wheel_name()]).hexdigest()}
    assert author.publish(session, report=report).status_code == 201


def test_a_private_project_is_made_by_a_session(hub, author):
    """Visibility is chosen when the project is made, and not changed by a release."""
    assert (
        author.all(release(version="0.1.0+mine"), version="0.1.0+mine", visibility="private").status_code
        == 201
    )
    public = author.open(release(version="0.2.0"), "0.2.0", visibility="public")
    assert (public.status_code, public.json()["code"]) == (409, "visibility-differs")
    assert author.all(release(version="0.2.0"), version="0.2.0").json()["visibility"] == "private"
    with httpx.Client(base_url=hub.url) as anybody:
        name = author.root.removeprefix("/api/v1").removesuffix("/releases")
        assert anybody.get(f"{name}/simple/demo-env/").status_code == 401


def test_publishing_and_aborting_take_turns(hub, author):
    """Whichever is first decides: the release is there exactly if the session says that it was published."""
    for number in range(4):
        version = f"0.{number}.0"
        files = release(version=version)
        session = author.open(files, version).json()["id"]
        for name, data in files.items():
            author.send(session, name, data)
        with ThreadPoolExecutor(2) as threads:
            published = threads.submit(author.publish, session)
            aborted = threads.submit(author.http.delete, f"{author.root}/{session}")
        answers = (published.result().status_code, aborted.result().status_code)
        assert answers in ((201, 404), (404, 204)), (published.result().text, aborted.result().text)
        state = author.http.get(f"{author.root}/{session}").json()["state"]
        there = author.http.get(f"{author.root.removesuffix('/releases')}/{version}").status_code
        assert (state, there) == (("published", 200) if answers[0] == 201 else ("aborted", 404))
        assert [path for path in incoming(hub) if session in path.name] == []


@pytest.mark.parametrize("session", ["x", "a" * 300])
def test_a_session_that_never_was(author, session):
    """Publishing or aborting it is a 404."""
    assert author.publish(session).status_code == 404
    assert author.http.delete(f"{author.root}/{session}").status_code == 404


def test_a_huge_request_is_not_read_into_memory(hub, author):
    """A JSON body of more than some MiB is a 413 in the one shape, for whoever sends it."""
    body = b'{"version": "0.1.0", "files": [], "more": "' + b"x" * (5 << 20) + b'"}'
    answer = httpx.post(f"{hub.url}{author.root}", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, set(answer.json())) == (413, {"code", "message", "hint", "docs"})


def test_a_large_file_is_streamed(author):
    """The limit of JSON bodies is not that of files."""
    files = release(files={"demo_env_data.bin": secrets.token_bytes(5 << 20)})
    assert author.all(files).status_code == 201
    other = make_wheel("other-env", files={"other_env_data.bin": secrets.token_bytes(5 << 20)})
    assert post_upload_for(author, wheel_name("other-env"), other).status_code == 200


def slow_put(author: Author, session: str, name: str, size: int) -> socket.socket:
    """A PUT whose headers are sent, and whose bytes are still to come."""
    address = author.http.base_url
    token = author.http.headers["Authorization"]
    line = f"PUT {author.root}/{session}/{name} HTTP/1.1\r\nHost: hub\r\nExpect: 100-continue\r\n"
    connection = socket.create_connection((address.host, address.port), 60)
    connection.sendall(f"{line}Authorization: {token}\r\nContent-Length: {size}\r\n\r\n".encode())
    assert b" 100 " in connection.recv(100)  # the hub waits for the bytes
    return connection


def test_a_put_that_still_runs_changes_nothing_of_what_is_published(hub, author):
    """Its bytes come after another PUT has sent the file and the session is published: 409, and nothing changes."""
    name, data = wheel_name(), make_wheel()
    session = author.open({name: data}).json()["id"]
    with slow_put(author, session, name, len(data)) as slow:
        assert author.send(session, name, data).status_code == 204
        assert author.publish(session).status_code == 201
        slow.sendall(b"x" * len(data))
        assert b" 409 " in slow.recv(1000)
    digest = hashlib.sha256(data).hexdigest()
    project = author.root.removeprefix("/api/v1").removesuffix("/releases")
    assert author.http.get(f"/files{project}/{digest}/{name}").content == data
    assert [path for path in incoming(hub) if session in path.name] == []


def test_a_put_goes_on_from_what_a_slow_one_has_sent(author):
    """The newer PUT counts, and the older one can not take its place again."""
    name, data = wheel_name(), make_wheel()
    session = author.open({name: data}).json()["id"]
    assert author.send(session, name, data[:100]).status_code == 204
    with slow_put(author, session, name, len(data)) as slow:
        assert author.send(session, name, data[:50], 0).status_code == 204
        assert author.send(session, name, data[50:200], 50).status_code == 204
        slow.sendall(b"x" * len(data))
        assert b" 409 " in slow.recv(1000)
    assert author.send(session, name, data[200:], 200).status_code == 204
    assert author.publish(session).status_code == 201


@pytest.mark.parametrize("session", ["x", "x" * 5000, "9" * 300, "%C3%A9", "%00", "..%2f.."])
def test_an_id_that_no_session_has_is_404(author, session):
    """However long or strange it is; nothing is made in the file system for it."""
    assert author.publish(session).status_code in (400, 404)
    assert author.send(session, "x.whl", b"x").status_code in (400, 404)
