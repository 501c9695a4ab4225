"""The upload route: the real uv publish and twine, and each answer that they can get."""

import httpx
import pytest

from tests.support.archives import make_sdist, make_wheel, sdist_name, wheel_name, write_sdist, write_wheel
from tests.support.hub import running_hub
from tests.support.uploads import multipart, post_body, post_upload, upload_body
from verifiers.hub.schema import ReleaseInfo, Whoami


def left_over(hub):
    """Files of uploads that did not end; uploads of other tests are over when this is asked."""
    return [path.name for path in (hub.data / "incoming").iterdir() if path.name.startswith("upload-")]


@pytest.mark.parametrize("tool", ["uv_publish", "twine_upload"])
def test_a_release_comes_in(hub, publishers, tmp_path, tool):
    """A good wheel and its source are taken, and again; other bytes are refused with the words that tools know."""
    owner = hub.owner()
    publish = getattr(publishers, tool)
    files = [write_wheel(tmp_path), write_sdist(tmp_path)]
    first = publish(hub.url, owner.token, *files)
    assert first.code == 0, first.said
    again = publish(hub.url, owner.token, *files)
    assert again.code == 0, again.said
    other = publish(hub.url, owner.token, write_wheel(tmp_path, description="# Other\n"), flags=["--verbose"])
    assert other.code != 0
    assert "File already exists" in other.said
    assert "[file-exists]" in other.said
    with hub.client() as client:
        release = client.get(f"/api/v1/{owner.slug}/demo-env/0.1.0", ReleaseInfo)
    assert sorted(file.kind for file in release.files) == ["sdist", "wheel"]


def test_uv_skips_what_the_index_has(hub, publishers, tmp_path):
    """`uv publish --check-url` compares digests with the index: the same is skipped, other bytes are an error."""
    owner = hub.owner()
    index = ["--check-url", f"{hub.url}/{owner.slug}/simple/"]
    wheel = write_wheel(tmp_path)
    assert publishers.uv_publish(hub.url, owner.token, wheel).code == 0
    same = publishers.uv_publish(hub.url, owner.token, wheel, flags=index)
    assert (same.code, "already exists" in same.said) == (0, True), same.said
    other = publishers.uv_publish(hub.url, owner.token, write_wheel(tmp_path, description="x"), flags=index)
    assert other.code == 2, other.said


def test_an_owner_is_named_in_the_address(hub, publishers, tmp_path):
    """`/{owner}/legacy/` publishes for that owner, to whoever may; both spellings of each address work."""
    owner, stranger = hub.owner(), hub.owner()
    refused = publishers.uv_publish(hub.url, stranger.token, write_wheel(tmp_path), owner=owner.slug)
    assert (refused.code, "403" in refused.said) == (2, True), refused.said
    for number, path in enumerate((f"/{owner.slug}/legacy", f"/{owner.slug}/legacy/", "/legacy", "/legacy/")):
        name = f"env-{number}"
        answer = post_upload(hub, owner.token, wheel_name(name), make_wheel(name), path=path)
        assert (answer.status_code, answer.text) == (
            200, f"{owner.slug}/{name}@0.1.0: {wheel_name(name)} published\n",
        )  # fmt: skip


WRONG_FORMS = {
    "another action": ({"form": {":action": "doc_upload"}}, "form"),
    "no action": ({"form": {":action": None}}, "form"),
    "another protocol": ({"form": {"protocol_version": "2"}}, "form"),
    "no name": ({"form": {"name": None}}, "form"),
    "an unknown name": ({"form": {"name": "UNKNOWN"}}, "form"),
    "no metadata version": ({"form": {"metadata_version": ""}}, "form"),
    "an egg": ({"form": {"filetype": "bdist_egg"}}, "form"),
    "a wheel as source": ({"form": {"filetype": "sdist", "pyversion": "source"}}, "form"),
    "source for a wheel": ({"form": {"pyversion": "source"}}, "form"),
    "another name": ({"form": {"name": "other-env"}}, "form"),
    "another version": ({"form": {"version": "0.4.0"}}, "form"),
    "a wrong sha256": ({"form": {"sha256_digest": "0" * 64}}, "digest"),
    "a wrong blake2": ({"form": {"blake2_256_digest": "0" * 64}}, "digest"),
    "a wrong md5": ({"form": {"md5_digest": "0" * 32}}, "digest"),
    "a digest that is none": ({"form": {"sha256_digest": "\u2603"}}, "digest"),
    "a NUL": ({"form": {"summary": "a\0b"}}, "form"),
    "a field as a file": ({"extra": [("summary", "summary.txt", b"hello")]}, "form"),
    "the file as a field": ({"extra": [("content", None, b"hello")], "content": False}, "form"),
    "no file": ({"content": False}, "form"),
    "two files": ({"extra": [("content", wheel_name(), make_wheel())]}, "form"),
    "bytes for text": ({"extra": [("summary", None, b"\xff\xfe")]}, "form"),
    "a huge field": ({"extra": [("description", None, b"x" * (5 << 20))]}, "too-large"),
    "huge fields": ({"extra": [("classifiers", None, b"x" * (3 << 20))] * 3}, "too-large"),
    "too many fields": ({"extra": [("classifiers", None, b"x")] * 2001}, "form"),
}


@pytest.mark.parametrize("case", WRONG_FORMS)
def test_a_wrong_form_is_refused(sqlite_hub, case):
    """400, in one line of plain text that ends with the code; nothing is stored."""
    changed, code = WRONG_FORMS[case]
    owner = sqlite_hub.owner()
    answer = post_upload(sqlite_hub, owner.token, wheel_name(), make_wheel(), **changed)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "text/plain; charset=utf-8"), answer.text
    assert answer.text.endswith(f"[{code}]\n")
    assert answer.text.count("\n") == 1
    assert left_over(sqlite_hub) == []
    assert httpx.get(f"{sqlite_hub.url}/{owner.slug}/simple/demo-env/").status_code == 404


BROKEN_BODIES = {
    "nothing": b"",
    "no boundary at its end": upload_body(wheel_name(), make_wheel())[:-20],
    "cut in the file": upload_body(wheel_name(), make_wheel())[:-500],
    "another boundary": b"--other\r\n\r\n",
    "a part without a name": multipart([("", None, b"x")]),
    "a header without end": b"--0123456789abcdef0123456789abcdef\r\nContent-" + b"x" * 100_000,
}


@pytest.mark.parametrize("case", BROKEN_BODIES)
def test_a_broken_body_is_refused(sqlite_hub, case):
    """400 for what is no form, and for a form that ends too early."""
    answer = post_body(sqlite_hub, sqlite_hub.owner().token, BROKEN_BODIES[case])
    assert (answer.status_code, answer.text.endswith("[form]\n")) == (400, True), answer.text
    assert left_over(sqlite_hub) == []


@pytest.mark.parametrize("content_type", ["application/json", "multipart/form-data", "multipart/form-data; boundary="])
def test_what_is_no_form_is_refused(sqlite_hub, content_type):
    """400 for another type of content."""
    answer = post_body(sqlite_hub, sqlite_hub.owner().token, b"{}", **{"Content-Type": content_type})
    assert (answer.status_code, answer.text.endswith("[form]\n")) == (400, True), answer.text


def test_a_form_may_say_much(hub):
    """A README of 1.5 MiB in the form, UNKNOWN, repeated fields, a body in chunks: all of it is taken."""
    readme = "# Long\n" + "word " * (300 << 10)
    wheel = make_wheel(description=readme)
    extra = [("classifiers", None, b"Topic :: Education"), ("classifiers", None, b"Topic :: Games/Entertainment")]
    body = upload_body(wheel_name(), wheel, {"description": readme, "home_page": "UNKNOWN"}, extra)
    owner = hub.owner()
    answer = post_body(hub, owner.token, (body[at : at + 70_000] for at in range(0, len(body), 70_000)))
    assert answer.status_code == 200, answer.text


def test_file_names_have_one_form(sqlite_hub):
    """Other spellings are refused, and the right one is named."""
    owner = sqlite_hub.owner()
    for wrong in ("Demo_Env-0.1.0-py3-none-any.whl", "demo_env-00.1.0-py3-none-any.whl", "demo-env-0.1.0.tar.gz"):
        answer = post_upload(sqlite_hub, owner.token, wrong, make_wheel(), form={"name": "demo-env"})
        assert answer.status_code == 400
        assert wrong.startswith("demo-env") or "demo_env-0.1.0-py3-none-any.whl" in answer.text


def test_who_may_not_publish_is_told_why(hub):
    """401 with a challenge, 403 for a wrong token and for one without the scope, 405 for a GET; never HTML."""
    owner = hub.owner()
    anonymous = post_upload(hub, None, wheel_name(), make_wheel())
    assert (anonymous.status_code, anonymous.headers["www-authenticate"].split()[0]) == (401, "Basic")
    wrong = post_upload(hub, "envhub_wrong", wheel_name(), make_wheel())
    assert (wrong.status_code, wrong.text.endswith("[bad-token]\n")) == (403, True)
    with hub.client(owner.token) as client:
        made = client.http.post("/api/v1/tokens", json={"name": "reader", "scopes": ["read"]})
        old = client.http.post("/api/v1/tokens", json={"name": "old", "scopes": ["publish"]})
    assert made.status_code == 201, made.text
    reader = post_upload(hub, made.json()["token"], wheel_name(), make_wheel())
    assert (reader.status_code, reader.text.endswith("[denied]\n")) == (403, True)
    publisher = post_upload(hub, old.json()["token"], wheel_name(), make_wheel())
    assert (publisher.status_code, "publish:new" in publisher.text) == (403, True)
    look = httpx.get(f"{hub.url}/{owner.slug}/legacy/")
    assert (look.status_code, f"/{owner.slug}/simple/" in look.text) == (405, True)
    for answer in (anonymous, wrong, reader, publisher, look):
        assert answer.headers["content-type"].startswith("text/plain")


def test_a_large_upload_is_refused_before_it_is_read_for_nothing(hub):
    """A body over the limit, and one of somebody who may not, end with the sentence, not with a broken connection."""
    big = b"x" * (3 << 20)
    stranger = post_upload(hub, "envhub_wrong", wheel_name(), big)
    assert stranger.status_code == 403
    other = post_upload(hub, hub.owner().token, wheel_name(), big, path=f"/{hub.owner().slug}/legacy/")
    assert other.status_code == 403
    assert left_over(hub) == []


def test_source_first_then_the_wheel(hub):
    """The order of the files does not matter to what the release says."""
    owner = hub.owner()
    tool = '\n[tool.verifiers.needs]\nsecrets = ["SEARCH_API_KEY"]\n'
    sdist = make_sdist(tool=tool)
    assert post_upload(hub, owner.token, sdist_name(), sdist).status_code == 200
    assert post_upload(hub, owner.token, wheel_name(), make_wheel()).status_code == 200
    with hub.client() as client:
        release = client.get(f"/api/v1/{owner.slug}/demo-env/0.1.0", ReleaseInfo)
    assert release.facts["needs"]["secrets"] == ["SEARCH_API_KEY"]
    assert release.facts["import_names"] == ["demo_env"]


def test_a_deleted_version_does_not_come_back(hub):
    """After a deletion the same file is refused, and yanking is suggested for the next time."""
    owner = hub.owner()
    assert post_upload(hub, owner.token, wheel_name(), make_wheel()).status_code == 200
    with hub.client(owner.token) as client:
        assert client.http.delete(f"/api/v1/{owner.slug}/demo-env/0.1.0").is_success
    again = post_upload(hub, owner.token, wheel_name(), make_wheel())
    assert (again.status_code, "yank" in again.text, again.text.endswith("[deleted-version]\n")) == (400, True, True)


def test_members_publish_for_their_organisation(hub):
    """A publisher's token is enough for `/{organisation}/legacy/`, a reader's is not."""
    team, ann, ben = hub.owner("organisation"), hub.owner(), hub.owner()
    with hub.client(team.token) as client:
        for who, role in ((ann, "publisher"), (ben, "reader")):
            place = f"/api/v1/owners/{team.slug}/members/{who.slug}"
            answer = client.http.put(place, json={"role": role})
            assert answer.is_success, answer.text
    sent = {"path": f"/{team.slug}/legacy/"}
    assert post_upload(hub, ben.token, wheel_name(), make_wheel(), **sent).status_code == 403
    assert post_upload(hub, ann.token, wheel_name(), make_wheel(), **sent).status_code == 200


@pytest.mark.slow
def test_new_projects_are_limited_where_the_hub_says_so(database_url, tmp_path):
    """The sixth new project at once is a 429 that says when to come again; the same bytes again cost nothing."""
    with running_hub(tmp_path / "data", database_url=database_url, rate_limits="true") as hub:
        owner = hub.owner()
        names = [f"env-{number}" for number in range(6)]
        answers = [post_upload(hub, owner.token, wheel_name(name), make_wheel(name)) for name in names]
        assert [answer.status_code for answer in answers] == [200] * 5 + [429]
        assert int(answers[-1].headers["retry-after"]) > 60
        assert post_upload(hub, owner.token, wheel_name("env-0"), make_wheel("env-0")).status_code == 200


def test_a_token_that_is_revoked_while_it_uploads_publishes_nothing(hub):
    """It was valid when the upload began, and is not when the release would become visible."""
    owner, wheel = hub.owner(), make_wheel()
    body = upload_body(wheel_name(), wheel, extra=[("description", None, b"x" * (3 << 20))])
    with hub.client(owner.token) as client:
        token = client.get("/api/v1/whoami", Whoami).token_id

        def pieces():
            yield body[: 2 << 20]  # more than the hub waits for before it asks who sends it
            client.request("GET", "/api/v1/whoami")
            client.request("DELETE", f"/api/v1/tokens/{token}")
            yield body[2 << 20 :]

        refused = post_body(hub, owner.token, pieces())
    assert (refused.status_code, "[bad-token]" in refused.text) == (403, True), refused.text
    assert httpx.get(f"{hub.url}/{owner.slug}/simple/demo-env/").status_code == 404
    assert left_over(hub) == []
