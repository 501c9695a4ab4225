"""The upload route, with the real uv publish and the real twine."""

import pytest

from tests.support.archives import write_wheel


@pytest.mark.parametrize("tool", ["uv_publish", "twine_upload"])
def test_a_wheel_comes_in(hub, publishers, tmp_path, tool):
    """A good wheel is taken, and again; other bytes are refused with the words that tools know."""
    owner = hub.owner()
    publish = getattr(publishers, tool)
    wheel = write_wheel(tmp_path)
    first = publish(hub.url, owner.token, wheel)
    assert first.code == 0, first.said
    again = publish(hub.url, owner.token, wheel)
    assert again.code == 0, again.said
    other = publish(hub.url, owner.token, write_wheel(tmp_path, description="# Other\n"), flags=["--verbose"])
    assert other.code != 0
    assert "File already exists" in other.said
