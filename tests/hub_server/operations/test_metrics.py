"""What Prometheus reads, from one server process and from several."""

import httpx
import pytest

from tests.support.archives import write_wheel
from tests.support.hub import running_hub
from tests.support.uploads import post_file


def numbers(url):
    """Every sample, by its name with labels."""
    found = {}
    for line in httpx.get(f"{url}/metrics").text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[name] = float(value)
    return found


@pytest.mark.parametrize("workers", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_what_is_counted(tmp_path, workers):
    """Requests, uploads, refusals, downloads, bytes, connections and the serial; with several processes their sums."""
    with running_hub(tmp_path / "hub", workers=workers) as hub:
        owner = hub.owner()
        wheel = write_wheel(tmp_path)
        assert post_file(hub, owner.token, wheel).status_code == 200
        other = write_wheel(tmp_path, description="# Other\n")
        refused = post_file(hub, owner.token, other)
        assert refused.status_code == 400
        for _ in range(12):  # each on a connection of its own: whichever process takes it
            assert httpx.get(f"{hub.url}/{owner.slug}/simple/demo-env/").status_code == 200
        page = httpx.get(f"{hub.url}/{owner.slug}/simple/demo-env/?format=application/vnd.pypi.simple.v1%2Bjson").json()
        url = page["files"][0]["url"]
        assert httpx.get(httpx.URL(hub.url).join(url)).is_success
        found = numbers(hub.url)
        assert found['hub_requests_total{method="GET",route="/{owner}/simple/{name}/",status="200"}'] == 13
        assert found['hub_request_seconds_count{route="/{owner}/simple/{name}/"}'] == 13
        assert found['hub_uploads_total{kind="wheel"}'] == 1
        code = refused.text.rsplit("[", 1)[1].split("]")[0]
        assert found[f'hub_refusals_total{{code="{code}"}}'] == 1
        assert found["hub_downloads_total"] == 1
        assert found["hub_received_bytes_total"] > 2 * wheel.stat().st_size * 0.9
        assert found["hub_sent_bytes_total"] > wheel.stat().st_size
        assert found["hub_requests_in_flight"] == 1
        assert found["hub_journal_serial"] >= 3
        assert found["hub_free_bytes"] > 0
        assert found['hub_database_connections{state="open"}'] >= 1
        assert found["hub_inspector_restarts_total"] == 0
        assert numbers(hub.url)["hub_journal_serial"] == found["hub_journal_serial"]


def test_a_strange_method_is_no_label(tmp_path):
    """Neither methods nor addresses that somebody invents become names of numbers."""
    with running_hub(tmp_path) as hub:
        httpx.request("PROPFIND", f"{hub.url}/some/thing/that/is/not/here")
        assert 'hub_requests_total{method="OTHER",route="other",status="404"}' in numbers(hub.url)


def test_metrics_can_be_switched_off(tmp_path):
    """Who has no Prometheus shows nothing."""
    with running_hub(tmp_path, metrics=False) as hub:
        assert httpx.get(f"{hub.url}/metrics").status_code == 404
