"""A disk that takes nothing more is said as such."""

import errno
import hashlib
import os
import resource

import httpx
import pytest
from fastapi.testclient import TestClient

from hub_server.app import create_app
from hub_server.maintenance.first_token import bootstrap
from hub_server.publishing.receive import FormReceiver
from hub_server.settings import Settings
from tests.support.archives import make_wheel, wheel_name
from tests.support.hub import running_hub
from tests.support.uploads import BOUNDARY, post_upload, upload_body


def test_a_full_disk_is_a_503(tmp_path, monkeypatch):
    """503 with a sentence, and nothing is left; once there is room the same upload is taken."""
    settings = Settings(data=tmp_path)
    token = bootstrap(settings, "alice")
    sent = {
        "content": upload_body(wheel_name(), make_wheel()),
        "headers": {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"},
        "auth": ("__token__", token),
    }

    def full(self, data):
        self._path.write_bytes(data)
        raise OSError(errno.ENOSPC, "No space left on device")

    with TestClient(create_app(settings)) as client:
        with monkeypatch.context() as patch:
            patch.setattr(FormReceiver, "feed", full)
            refused = client.post("/legacy/", **sent)
        assert (refused.status_code, refused.headers["content-type"]) == (503, "text/plain; charset=utf-8")
        assert "[no-space]" in refused.text
        assert list((tmp_path / "incoming").iterdir()) == []
        assert client.post("/legacy/", **sent).status_code == 200


@pytest.mark.slow
def test_what_was_sent_before_the_disk_was_full_is_kept(tmp_path):
    """Of a server that may write no more: 503 at both doors. With room again a session goes on where it ended."""
    name, wheel = wheel_name(), make_wheel(files={"demo_env/data.bin": os.urandom(3_000_000)})
    promised = [{"name": name, "size": len(wheel), "sha256": hashlib.sha256(wheel).hexdigest()}]
    with running_hub(tmp_path) as hub:
        owner, server = hub.owner(), hub.process.pid
        place = f"/api/v1/{owner.slug}/demo-env/releases"
        with httpx.Client(
            base_url=hub.url, headers={"Authorization": f"Bearer {owner.token}"}, timeout=60
        ) as http:
            session = http.post(place, json={"version": "0.1.0", "files": promised}).json()["id"]
            resource.prlimit(server, resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
            for refused in (
                post_upload(hub, owner.token, name, wheel),
                http.put(f"{place}/{session}/{name}", content=wheel),
            ):
                assert (refused.status_code, "no-space" in refused.text) == (503, True), refused.text
            resource.prlimit(server, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            here = int(http.head(f"{place}/{session}/{name}").headers["Upload-Offset"])
            assert 0 < here <= 1_000_000
            rest = http.put(
                f"{place}/{session}/{name}", content=wheel[here:], headers={"Upload-Offset": str(here)}
            )
            assert rest.status_code == 204, rest.text
            assert http.post(f"{place}/{session}/publish").status_code == 201
        assert list((tmp_path / "incoming").iterdir()) == []
