"""The pages of the indexes, on a live hub."""

import pytest

from tests.support.archives import write_wheel

JSON = "application/vnd.pypi.simple.v1+json"


@pytest.fixture
def published(hub, publishers, tmp_path):
    """A function that publishes wheels of a fresh name and returns its owner, the name and an HTTP client."""

    def publish(name, *versions):
        owner = hub.owner()
        wheels = [write_wheel(tmp_path, name, version) for version in versions]
        ended = publishers.uv_publish(hub.url, owner.token, *wheels)
        assert ended.code == 0, ended.said
        return owner.slug

    return publish


def test_a_page_says_what_installers_need(hub, published):
    """Version 1.4: hashes, sizes, upload times, METADATA, versions in their order."""
    owner = published("page-env", "0.10.0", "0.9.0", "0.10.0rc1")
    with hub.client() as client:
        page = client.http.get(f"/{owner}/simple/page-env/", headers={"Accept": JSON}).json()
    assert page["meta"]["api-version"] == "1.4"
    assert (page["name"], page["_env"]) == ("page-env", f"{owner}/page-env")
    assert page["versions"] == ["0.9.0", "0.10.0rc1", "0.10.0"]
    assert page["project-status"] == {"status": "active"}
    for file in page["files"]:
        assert len(file["hashes"]["sha256"]) == len(file["core-metadata"]["sha256"]) == 64
        assert file["upload-time"].endswith("Z")
        assert file["size"] > 0
        assert file["yanked"] is False
        assert file["requires-python"] == ">=3.11"
