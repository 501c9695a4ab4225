"""A hub whose blobs are in an object store, as installers and operators see it."""

import httpx
import pytest

from tests.support.archives import make_wheel, write_wheel
from tests.support.hub import run_server, running_hub
from tests.support.uploads import post_file


@pytest.fixture
def hub(tmp_path, bucket):
    with running_hub(tmp_path / "hub", storage=bucket, workers=2) as hub:
        yield hub


def page_of(hub, owner):
    accept = {"Accept": "application/vnd.pypi.simple.v1+json"}
    return httpx.get(f"{hub.url}/{owner.slug}/simple/demo-env/", headers=accept).json()


def test_what_was_uploaded_is_served(hub, tmp_path):
    """Whole, in ranges, its METADATA, and HEAD; by an address without a signature or an expiry (astral-sh/uv#10609)."""
    owner = hub.owner()
    wheel = write_wheel(tmp_path, files={"demo_env_data.bin": bytes(range(256)) * 20_000})
    assert post_file(hub, owner.token, wheel).text.endswith("published\n")
    assert "already published" in post_file(hub, owner.token, wheel).text
    (file,) = page_of(hub, owner)["files"]
    assert "?" not in file["url"]
    url = httpx.URL(hub.url).join(file["url"])
    assert httpx.get(url).content == wheel.read_bytes()
    part = httpx.get(url, headers={"Range": "bytes=-100"})
    assert (part.status_code, part.content) == (206, wheel.read_bytes()[-100:])
    assert httpx.head(url).headers["Content-Length"] == str(wheel.stat().st_size)
    assert httpx.get(f"{url}.metadata").text.startswith("Metadata-Version")


def test_nothing_is_left_on_the_machine(hub, tmp_path):
    """After uploads, taken and refused, the local folder is empty, and the store has only what rows name."""
    owner = hub.owner()
    wheel = write_wheel(tmp_path)
    assert post_file(hub, owner.token, wheel).is_success
    wheel.write_bytes(make_wheel(description="# Other\n"))
    assert post_file(hub, owner.token, wheel).status_code == 400
    assert list((hub.data / "incoming").iterdir()) == []
    done = run_server("fsck", settings=hub.settings)
    assert (done.returncode, "in 1 projects, 1 files" in done.stderr) == (0, True)


def test_a_store_that_is_gone_is_a_503(tmp_path, bucket, object_store):
    """While the store does not answer the hub is not ready and says why; an upload may be sent again."""
    with running_hub(tmp_path / "hub", storage=bucket) as hub:
        owner = hub.owner()
        assert httpx.post(f"{object_store}/moto-api/reset").is_success
        answer = httpx.get(f"{hub.url}/readyz", timeout=60)
        assert (answer.status_code, "no bucket for" in answer.json()["message"]) == (503, True)
        upload = post_file(hub, owner.token, write_wheel(tmp_path))
        assert (upload.status_code, "Retry-After" in upload.headers) == (503, True)
        httpx.put(f"{object_store}/{bucket.split('/')[2]}")
        assert post_file(hub, owner.token, write_wheel(tmp_path)).is_success
