import json

import pytest

from verifiers.hub.lock_file import read_lock


@pytest.fixture
def installed(hub, place, release):
    """An owner whose `demo-env` is installed."""
    owner = hub.owner()
    release(owner)
    assert place.hub("install", f"{owner.slug}/demo-env@0.1.0").code == 0
    return owner


def findings(place, *arguments):
    ended = place.hub("verify", *arguments, "--json")
    told = json.loads(ended.out)
    assert ended.code == (1 if told["findings"] else 0), ended.err
    return [one["code"] for one in told["findings"]]


def test_all_is_well(place, installed):
    """Nothing of a hub, and what was just installed."""
    assert findings(place) == []


def test_changed_and_lost_files_are_found(place, installed):
    """The installed files are compared with the wheel's RECORD."""
    module = place.site / "demo_env.py"
    module.unlink()  # it may be a link into uv's cache
    assert findings(place) == ["drift"]
    module.write_text("load_environment = None\n")
    assert findings(place) == ["drift"]
    again = place.hub("install", f"{installed.slug}/demo-env@0.1.0")
    assert again.code == 0 and "whose files were changed" in again.err
    assert findings(place) == []


def test_a_yank_shows_and_is_said_when_it_is_installed(hub, place, installed):
    """Reason and class; a pin still gets it, with a warning."""
    with hub.client(installed.token) as client:
        body = {"reason": "rewards an empty reply", "cause": "broken-reward"}
        client.request("POST", f"/api/v1/{installed.slug}/demo-env/0.1.0/yank", json=body)
    assert findings(place) == ["yanked"]
    ended = place.hub("install", f"{installed.slug}/demo-env@0.1.0")
    assert ended.code == 0 and "broken-reward" in ended.err and "rewards an empty reply" in ended.err
    assert place.hub("lock", f"{installed.slug}/demo-env@0.1.0").code == 0
    ended = place.hub("install", "-r", "pylock.toml")
    assert ended.code == 0 and "rewards an empty reply" in ended.err
    assert place.hub("install", f"{installed.slug}/demo-env").code == 1  # no other is left


def test_what_the_hub_no_longer_has_is_told(hub, place, installed):
    """Another digest than the installed one, no such release, no answer."""
    folder = next(place.site.glob("demo_env-*.dist-info"))
    text = (folder / "direct_url.json").read_text()
    digest = json.loads(text)["archive_info"]["hashes"]["sha256"]
    for other, code in (
        (text.replace(digest, "0" * 64), "digest"),
        (text.replace("/demo-env/", "/none/"), "gone"),
        (text.replace(hub.url, "http://127.0.0.1:9"), "unknown"),
    ):
        (folder / "direct_url.json").write_text(other)
        assert code in findings(place)


def test_an_environment_is_compared_with_a_lock(hub, place, installed, release):
    """Another version, another origin, nothing at all; a lock alone is compared with the hub only."""
    assert place.hub("lock", f"{installed.slug}/demo-env@0.1.0").code == 0
    assert findings(place, "pylock.toml") == []
    (next(place.site.glob("demo_env-*.dist-info")) / "direct_url.json").unlink()
    assert set(findings(place, "pylock.toml")) == {"origin", "drift"}
    release(installed, version="0.2.0")
    place.hub("install", f"{installed.slug}/demo-env")
    assert findings(place, "pylock.toml") == ["version"]
    place.uv("uninstall", "demo-env")
    assert findings(place, "pylock.toml") == []
    assert read_lock(place.folder.parent / "pylock.toml").sdk is None
