"""A disk that takes nothing more is said as such."""

import errno

from fastapi.testclient import TestClient

from hub_server.app import create_app
from hub_server.maintenance.first_token import bootstrap
from hub_server.publishing.receive import FormReceiver
from hub_server.settings import Settings
from tests.support.archives import make_wheel, wheel_name
from tests.support.uploads import BOUNDARY, upload_body


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
        assert (refused.status_code, refused.json()["code"]) == (503, "no-space")
        assert list((tmp_path / "incoming").iterdir()) == []
        assert client.post("/legacy/", **sent).status_code == 200
