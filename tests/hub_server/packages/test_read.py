"""What a hub says of projects and releases, over HTTP."""

import pytest

from tests.support.stored import stored
from verifiers.errors import HubNotFoundError
from verifiers.hub.schema import ProjectInfo, ReleaseInfo, ResolveAnswer, ResolveRequest


@pytest.fixture
def store(hub):
    with stored(hub) as store:
        yield store


def test_a_project_lists_its_releases_by_version_and_names_the_latest(hub, store):
    """PEP 440 order, not that of uploads; the latest is no pre-release, no yanked and no deleted one."""
    me = hub.owner().slug
    for version in ("1.10", "1.9", "2.0rc1", "1.11", "1.12"):
        store.release(f"{me}/e", version)
    store.yank(f"{me}/e", "1.11", "wrong reward", "broken-reward")
    store.delete(f"{me}/e", "1.12")
    with hub.client() as client:
        project = client.get(f"/api/v1/{me}/e", ProjectInfo)
    assert [release.version for release in project.releases] == ["2.0rc1", "1.11", "1.10", "1.9"]
    assert project.latest == "1.10"
    assert project.index_url == f"{hub.url}/{me}/e/simple/"
    assert project.releases[1].yanked.cause == "broken-reward"
    assert len(project.releases[0].digest) == 64


def test_only_pre_releases_have_a_latest_too(hub, store):
    """The highest of them."""
    me = hub.owner().slug
    for version in ("0.1a1", "0.1b1", "0.1a2"):
        store.release(f"{me}/e", version)
    with hub.client() as client:
        assert client.get(f"/api/v1/{me}/E", ProjectInfo).latest == "0.1b1"


def test_a_release_shows_its_facts_files_and_readme(hub, store):
    """By any spelling of its version; the address of a file gives its bytes."""
    me = hub.owner().slug
    store.release(f"{me}/e", "1.0", requires_dist=["numpy>=2"], facts={"license": "MIT"})
    with hub.client() as client:
        release = client.get(f"/api/v1/{me}/e/v1.0.0", ReleaseInfo)
        (file,) = release.files
        assert len(client.request("GET", file.url).content) == file.size
    assert release.id == f"{me}/e@1.0"
    assert (release.facts["license"], release.facts["requires_dist"]) == ("MIT", ["numpy>=2"])
    assert release.readme == "# Read me\n"
    assert file.url == f"{hub.url}/files/{me}/e/{release.digest}/e-1.0-py3-none-any.whl"


def test_quarantine_shows_the_release_without_its_files(hub, store):
    """PEP 792: what is in quarantine is not offered."""
    me = hub.owner().slug
    store.release(f"{me}/e")
    store.change(f"{me}/e", status="quarantined", status_reason="looked at")
    with hub.client() as client:
        release = client.get(f"/api/v1/{me}/e/1.0", ReleaseInfo)
    assert (release.status, release.status_reason, release.files) == ("quarantined", "looked at", [])


def test_hidden_and_absent_projects_have_one_answer(hub, store):
    """404 for both, with one body; a member of the organisation sees the private one."""
    team, member = hub.owner("organisation").slug, hub.owner()
    store.release(f"{team}/hidden", visibility="private")
    store.member(team, member.slug)
    with hub.client() as client:
        hidden, absent = (client.http.get(f"/api/v1/{team}/{name}/1.0") for name in ("hidden", "absent"))
    assert (hidden.status_code, absent.status_code) == (404, 404)
    assert hidden.text.replace("hidden", "absent") == absent.text
    with hub.client(member.token) as client:
        assert client.get(f"/api/v1/{team}/hidden/1.0", ReleaseInfo).version == "1.0"


@pytest.mark.parametrize("version", ["2.0", "not-a-version", "1.1"])
def test_an_absent_release_is_404(hub, store, version):
    """A version that was never there, one that is none, and a deleted one."""
    me = hub.owner().slug
    store.release(f"{me}/e", "1.0")
    store.release(f"{me}/e", "1.1")
    store.delete(f"{me}/e", "1.1")
    with hub.client() as client, pytest.raises(HubNotFoundError, match=f"has no release {version}"):
        client.get(f"/api/v1/{me}/e/{version}", ReleaseInfo)


def test_resolve_answers_over_http_byte_for_byte_alike(hub, store):
    """The same request as of the same serial, asked in another order and after a later publish."""
    me = hub.owner().slug
    store.release(f"{me}/base", "1.0")
    store.release(f"{me}/e", "1.0", needs=[f"{me}/base>=1"])
    with hub.client() as client:
        first = client.post(
            "/api/v1/resolve", ResolveRequest(requirements=[f"{me}/e", f"{me}/base"]), ResolveAnswer
        )
        store.release(f"{me}/e", "2.0")
        body = {"requirements": [f"{me}/base", f"{me}/e"], "serial": first.serial}
        one, two = (client.http.post("/api/v1/resolve", json=body).content for _ in range(2))
    assert one == two
    assert ResolveAnswer.model_validate_json(one) == first
