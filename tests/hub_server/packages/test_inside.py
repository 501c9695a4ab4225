"""Looking into releases: what the wheel holds, one file of it, and what changed between two."""

import pytest

from hub_server.context import Context
from hub_server.packages.archives import Wheel, members_of
from tests.support.archives import MODULE, make_wheel
from tests.support.stored import stored
from verifiers.errors import HubNotFoundError, HubRefusedError
from verifiers.hub.schema import Difference, WheelContents


@pytest.fixture
def store(hub):
    with stored(hub) as store:
        yield store


def test_a_release_is_looked_into_without_a_download(hub, store):
    """The list of files, and a text file as text that no browser takes for more."""
    me = hub.owner().slug
    store.release(f"{me}/e", files={"e_data/words.txt": "zwölf\n", "e_data/page.html": "<script>alert(1)</script>"})
    with hub.client() as client:
        listing = client.get(f"/api/v1/{me}/e/1.0/files/", WheelContents)
        text = client.request("GET", f"/api/v1/{me}/e/1.0/files/e_data/words.txt")
        page = client.request("GET", f"/api/v1/{me}/e/1.0/files/e_data/page.html")
    sizes = {one.path: one.size for one in listing.members}
    assert (sizes["e.py"], sizes["e_data/words.txt"]) == (len(MODULE), 7)
    assert text.text == "zwölf\n"
    for answer in (text, page):
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("absent.py", 404, "no-such-file"), ("../e.py", 404, "no-such-file"), ("e_data", 404, "no-such-file"),
        ("e_data/picture.png", 415, "not-text"), ("e_data/latin.txt", 415, "not-text"),
        ("e_data/long.txt", 413, "member-too-large"),
    ],
)  # fmt: skip
def test_what_is_no_text_of_the_wheel_is_refused(sqlite_hub, path, status, code):
    """An absent file, a folder, bytes, another encoding, too much."""
    me = sqlite_hub.owner().slug
    with stored(sqlite_hub) as store:
        store.release(f"{me}/e", files={
            "e_data/": b"", "e_data/picture.png": b"\x89PNG\0", "e_data/latin.txt": "zwölf".encode("latin-1"),
            "e_data/long.txt": "x" * ((1 << 20) + 1),
        })  # fmt: skip
    with sqlite_hub.client() as client:
        answer = client.http.get(f"/api/v1/{me}/e/1.0/files/{path.replace('..', '%2e%2e')}")
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_private_releases_and_those_in_quarantine_are_not_looked_into(hub, store):
    """404 for who may not see them, and for everybody while files are not offered."""
    owner = hub.owner()
    store.release(f"{owner.slug}/secret", visibility="private")
    store.release(f"{owner.slug}/bad")
    store.change(f"{owner.slug}/bad", status="quarantined")
    paths = [f"/api/v1/{owner.slug}/{rest}" for rest in ("secret/1.0/files/", "secret/1.0/files/secret.py",
                                                         "secret/diff?a=1.0&b=1.0")]  # fmt: skip
    with hub.client() as client:
        assert [client.http.get(path).status_code for path in paths] == [404, 404, 404]
        assert client.http.get(f"/api/v1/{owner.slug}/bad/1.0/files/bad.py").json()["code"] == "no-wheel"
    with hub.client(owner.token) as client:
        assert [client.http.get(path).status_code for path in paths] == [200, 200, 200]


def test_a_difference_has_files_dependencies_and_metadata(hub, store):
    """Added, removed and changed files, the last with a diff where they are text; the version alone is no change."""
    me = hub.owner().slug
    store.release(
        f"{me}/e", "1.0", files={"old.txt": "x", "same.txt": "x", "data.bin": b"\0\1"}, module="a = 1\nb = 2\n",
        requires_dist=["numpy>=1", "rich"], facts={"needs": {"secrets": [], "network": False}}, summary="One",
    )  # fmt: skip
    store.release(
        f"{me}/e", "1.1", files={"new.txt": "x", "same.txt": "x", "data.bin": b"\0\2"}, module="a = 1\nb = 3\n",
        requires_dist=["numpy>=2", "rich"], facts={"needs": {"secrets": ["KEY"], "network": True}}, summary="One",
        needs=["bob/base>=1"],
    )  # fmt: skip
    with hub.client() as client:
        found = client.get(f"/api/v1/{me}/e/diff", Difference, a="1.0", b="1.1")
        same = client.get(f"/api/v1/{me}/e/diff", Difference, a="1.0", b="1")
    changes = {change.path: change for change in found.files}
    assert {path: change.change for path, change in changes.items()} == {
        "data.bin": "changed", "e.py": "changed", "new.txt": "added", "old.txt": "removed",
        "e-1.1.dist-info/METADATA": "changed",
    }  # fmt: skip
    assert changes["e.py"].diff == "--- e.py\n+++ e.py\n@@ -1,2 +1,2 @@\n a = 1\n-b = 2\n+b = 3\n"
    assert (changes["data.bin"].diff, changes["data.bin"].note) == (None, "not text")
    assert (found.dependencies.added, found.dependencies.removed) == (["numpy>=2"], ["numpy>=1"])
    assert found.hub_dependencies.added == ["bob/base>=1"]
    assert [(change.field, change.after["secrets"]) for change in found.fields] == [("needs", ["KEY"])]
    assert (same.files, same.fields) == ([], [])


def test_absent_releases_have_no_difference(sqlite_hub):
    """404 that names the version; without `b` the request is not understood."""
    me = sqlite_hub.owner().slug
    with stored(sqlite_hub) as store:
        store.release(f"{me}/e", "1.0")
    with sqlite_hub.client() as client:
        with pytest.raises(HubNotFoundError, match="has no release 2"):
            client.get(f"/api/v1/{me}/e/diff", Difference, a="1.0", b="2")
        with pytest.raises(HubRefusedError, match=r"query\.b"):
            client.get(f"/api/v1/{me}/e/diff", Difference, a="1.0")


class Remote:
    """A storage without files of this machine, as an object store is."""

    def __init__(self, folder, content):
        self.incoming = folder
        self.content = content

    def local_path(self, digest):
        return None

    def read(self, digest, start=0, end=None):
        yield from (self.content[place : place + 100] for place in range(0, len(self.content), 100))


def test_a_wheel_in_an_object_store_is_copied_while_it_is_looked_into(tmp_path):
    """And nothing of it is left."""
    context = Context(settings=None, database=None, storage=Remote(tmp_path, make_wheel("e", "1.0")), inspector=None)
    listing = members_of(context, Wheel("a/e@1.0", "e-1.0-py3-none-any.whl", "0" * 64))
    assert "e.py" in [one.path for one in listing.members]
    assert list(tmp_path.iterdir()) == []
