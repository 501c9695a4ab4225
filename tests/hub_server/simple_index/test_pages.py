"""The pages of the indexes, on a live hub."""

import gzip
import re
from html.parser import HTMLParser

import pytest

from hub_server.database import now
from tests.support.archives import write_wheel
from tests.support.hub_rows import steady

JSON = "application/vnd.pypi.simple.v1+json"
STARTS = ["/simple/", "/{owner}/simple/", "/{owner}/{name}/simple/"]


@pytest.fixture
def project(rows):
    """Owner and name of a project with three releases, the middle one by PEP 440 with a source archive."""
    owner, name = rows.owner().slug, rows.name()
    rows.release(owner, name, "0.10.0", requires_python=">=3.11,<4")
    rows.release(owner, name, "0.9.0")
    rows.release(owner, name, "0.10.0rc1", sdist=True)
    return owner, name


@pytest.mark.parametrize("start", STARTS)
def test_a_page_says_what_installers_need(http, project, start):
    """Version 1.4 in each index: hashes, sizes, upload times, METADATA; versions and files in the order of PEP 440."""
    owner, name = project
    answer = http.get(start.format(owner=owner, name=name) + f"{name}/")
    page = answer.json()
    assert answer.headers["content-type"] == JSON
    assert (page["meta"]["api-version"], page["name"], page["_env"]) == ("1.4", name, f"{owner}/{name}")
    assert page["versions"] == ["0.9.0", "0.10.0rc1", "0.10.0"]
    assert page["project-status"] == {"status": "active"}
    assert [file["filename"].split("-")[1].removesuffix(".tar.gz") for file in page["files"]] == [
        "0.9.0", "0.10.0rc1", "0.10.0rc1", "0.10.0",
    ]  # fmt: skip
    for file in page["files"]:
        assert re.fullmatch("[0-9a-f]{64}", file["hashes"]["sha256"])
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", file["upload-time"])
        assert isinstance(file["size"], int) and file["size"] > 0
        assert file["yanked"] is False
        assert file["url"].startswith("/files/") and not set(file["url"]) & set("?#")
        assert file["core-metadata"] == file["dist-info-metadata"]
        assert bool(file["core-metadata"]) is file["filename"].endswith(".whl")
    assert page["files"][-1]["requires-python"] == ">=3.11,<4"
    assert "requires-python" not in page["files"][0]


class _Page(HTMLParser):
    """The metas, and the attributes of the anchors by their text, of a page."""

    def __init__(self, text):
        super().__init__()
        self.metas, self.anchors, self._open = {}, {}, None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "meta" and "name" in attrs:
            self.metas[attrs["name"]] = attrs["content"]
        self._open = attrs if tag == "a" else None

    def handle_data(self, data):
        if self._open is not None:
            self.anchors[data] = self._open
            self._open = None


def test_the_html_page_says_the_same(http, rows, project):
    """One anchor a file, with hash, METADATA, Python and yank, escaped; version and status as metas."""
    owner, name = project
    with rows.change(owner, name) as changed:
        changed.status, changed.status_reason = "deprecated", 'use "other" & <new>'
        yanked = next(release for release in changed.releases if release.given_version == "0.9.0")
        yanked.yanked_at, yanked.yank_reason = now(), 'wrong "rewards" > 1'
    url = f"/{owner}/simple/{name}/"
    page = http.get(url).json()
    answer = http.get(url, headers={"Accept": "text/html"})
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    read = _Page(answer.text)
    assert read.metas == {
        "pypi:repository-version": "1.4",
        "pypi:project-status": "deprecated",
        "pypi:project-status-reason": 'use "other" & <new>',
    }
    assert list(read.anchors) == [file["filename"] for file in page["files"]]
    for file in page["files"]:
        anchor = read.anchors[file["filename"]]
        assert anchor["href"] == f"{file['url']}#sha256={file['hashes']['sha256']}"
        assert anchor.get("data-requires-python") == file.get("requires-python")
        metadata = file["core-metadata"] and f"sha256={file['core-metadata']['sha256']}"
        assert (anchor.get("data-core-metadata") or False) == metadata
        assert anchor.get("data-dist-info-metadata") == anchor.get("data-core-metadata")
        assert anchor.get("data-yanked", False) == file["yanked"]
    assert page["files"][0]["yanked"] == 'wrong "rewards" > 1'
    assert page["project-status"] == {"status": "deprecated", "reason": 'use "other" & <new>'}


def test_quarantine_and_deletion_take_files_off_the_page(http, rows, project):
    """A deleted release is gone from page and address, a project in quarantine keeps its page and offers nothing."""
    owner, name = project
    url = f"/{owner}/simple/{name}/"
    files = http.get(url).json()["files"]
    with rows.change(owner, name) as changed:
        next(release for release in changed.releases if release.given_version == "0.9.0").deleted_at = now()
    assert http.get(url).json()["versions"] == ["0.10.0rc1", "0.10.0"]
    assert http.get(files[0]["url"]).status_code == 404
    assert http.get(files[-1]["url"]).status_code == 200
    with rows.change(owner, name) as changed:
        changed.status = "quarantined"
    page = http.get(url).json()
    assert (page["files"], page["versions"], page["project-status"]) == ([], [], {"status": "quarantined"})
    assert http.get(files[-1]["url"]).status_code == http.get(files[-1]["url"] + ".metadata").status_code == 404


@pytest.mark.parametrize("start", STARTS)
def test_other_spellings_are_redirected(http, start):
    """To the normal name with a slash, before anybody looks whether there is such a project; the query stays."""
    start = start.format(owner="someone", name="some-env")
    for asked in ("Some_Env", "some-env", "some--env/", "SOME.env/"):
        answer = http.get(start + asked, params={"format": JSON})
        assert answer.status_code == 301
        assert answer.headers["location"].startswith(f"{start}some-env/?format=")
    assert http.get(start.rstrip("/")).headers["location"] == start


def test_what_is_no_name_is_not_there(http):
    """A name that no project can have is a plain 404, as is everything below a page."""
    for path in ("/simple/-/", "/simple/a%20b/", "/simple/%0d%0aX/", f"/simple/{'a' * 101}/", "/simple/a/b/c/"):
        assert http.get(path).status_code == 404, path
    assert http.get("/simple/a/b/").status_code == 404


def test_absent_names_answer_alike(http, project):
    """Whatever the name, index and owner: the same status, headers and body."""
    owner, name = project
    paths = ["/simple/pip/", "/simple/numpy/", f"/{owner}/simple/pip/", "/nobody-here/simple/pip/",
             f"/{owner}/{name}/simple/pip/", f"/{owner}/absent/simple/pip/", "/nobody-here/simple/"]  # fmt: skip
    answers = [http.get(path) for path in paths]
    assert {answer.status_code for answer in answers} == {404}
    assert len({answer.text for answer in answers}) == 1
    assert all(steady(answer) == steady(answers[0]) for answer in answers)


def test_an_index_is_not_written_to(http):
    """405 names what is allowed and where uploads go."""
    for path in ("/simple/", "/simple/some-env/", "/files/a/b/c/d.whl"):
        answer = http.post(path, content=b"x")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
        assert "/legacy/" in answer.json()["hint"]


def test_nothing_acceptable_is_406(http, project):
    """Never 300: a client that accepts none of the forms is told them; `?format=` overrides the header."""
    url = f"/simple/{project[1]}/"
    refused = http.get(url, headers={"Accept": "image/png"})
    assert refused.status_code == 406
    assert JSON in refused.json()["hint"]
    assert http.get(url, headers={"Accept": f"{JSON};q=0"}).status_code == 406
    chosen = http.get(url, headers={"Accept": "image/png"}, params={"format": "text/html"})
    assert chosen.headers["content-type"].startswith("text/html")
    latest = http.get(url, headers={"Accept": "application/vnd.pypi.simple.latest+json"})
    assert latest.headers["content-type"] == JSON


@pytest.mark.parametrize("path", ["/simple/", "/{owner}/simple/", "/{owner}/{name}/simple/", "/simple/{name}/"])
def test_a_known_page_is_304(http, project, path):
    """The tag of what was sent, weakened by a proxy or one of several, is answered without a body; another is not."""
    owner, name = project
    url = path.format(owner=owner, name=name)
    for encoding in ("gzip", "identity"):
        first = http.get(url, headers={"Accept-Encoding": encoding})
        tag = first.headers["etag"]
        assert re.fullmatch(r'"[^"]+"', tag)
        assert first.headers["cache-control"] == "max-age=0, must-revalidate"
        assert {"Accept", "Accept-Encoding"} <= set(first.headers["vary"].split(", "))
        for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            again = http.get(url, headers={"Accept-Encoding": encoding, "If-None-Match": known})
            assert (again.status_code, again.content) == (304, b""), known
            assert again.headers["vary"] == first.headers["vary"]
        assert http.get(url, headers={"If-None-Match": '"other"'}).status_code == 200


def test_every_representation_has_its_own_tag(http, project):
    """JSON, both HTMLs, compressed and not."""
    url = f"/simple/{project[1]}/"
    forms = [JSON, "application/vnd.pypi.simple.v1+html", "text/html"]
    asked = [{"Accept": form, "Accept-Encoding": encoding} for form in forms for encoding in ("gzip", "identity")]
    assert len({http.get(url, headers=headers).headers["etag"] for headers in asked}) == len(asked)


def test_the_compressed_body_is_the_body(http, project):
    """gzip for those who take it, with its own length; HEAD says the same and sends nothing."""
    url = f"/simple/{project[1]}/"
    plain = http.get(url, headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    with http.stream("GET", url, headers={"Accept-Encoding": "gzip"}) as answer:
        packed = b"".join(answer.iter_raw())
    assert answer.headers["content-encoding"] == "gzip"
    assert int(answer.headers["content-length"]) == len(packed) < len(plain.content)
    assert gzip.decompress(packed) == plain.content
    head = http.head(url, headers={"Accept-Encoding": "identity"})
    assert head.content == b""
    assert steady(head) == steady(plain)


def test_lists_hold_what_there_is(http, rows, project):
    """Every index lists its projects; each form of the list the same, sorted."""
    owner, name = project
    other = rows.name("another")
    rows.release(owner, other)
    listed = [one["name"] for one in http.get(f"/{owner}/simple/").json()["projects"]]
    assert listed == sorted([name, other])
    html = http.get(f"/{owner}/simple/", headers={"Accept": "text/html"}).text
    assert re.findall(r'<a href="([^"]+)/">', html) == listed
    everything = [one["name"] for one in http.get("/simple/").json()["projects"]]
    assert everything == sorted(everything)
    assert {name, other} <= set(everything)


def test_a_plain_name_is_the_first_owners(http, rows, project):
    """Files of two owners are never merged: the second is reached through its own indexes only."""
    owner, name = project
    second = rows.owner().slug
    rows.release(second, name, "9.0")
    assert http.get(f"/simple/{name}/").json()["_env"] == f"{owner}/{name}"
    assert http.get(f"/{second}/simple/{name}/").json()["versions"] == ["9.0"]


def test_a_push_shows_at_once(hub, publishers, http, tmp_path):
    """What uv publish has sent is on a page that was cached before, and the old tag no longer matches."""
    owner = hub.owner()
    for versions in (["0.1.0"], ["0.1.0", "0.2.0"]):
        wheel = write_wheel(tmp_path, "pushed-env", versions[-1])
        ended = publishers.uv_publish(hub.url, owner.token, wheel)
        assert ended.code == 0, ended.said
        page = http.get(f"/{owner.slug}/simple/pushed-env/", headers={"If-None-Match": '"older"'})
        assert page.json()["versions"] == versions
