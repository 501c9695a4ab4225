import tomllib

import pytest
from packaging.pylock import Pylock

from verifiers.envs.origin import hub_origin
from verifiers.errors import ConfigError
from verifiers.hub.fetch import sha256_of
from verifiers.hub.lock_file import read_lock, to_text


@pytest.fixture
def locked(hub, place, release, tmp_path, monkeypatch):
    """An owner whose `demo-env` needs `helper` from an index of the user's; the first of its versions is locked."""
    owner, other = hub.owner(), hub.owner()
    helper = f"helper-{owner.slug}"
    release(other, helper, "3.1")
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{hub.url}/simple/")
    for version in ("0.1.0", "0.2.0"):
        release(owner, version=version, headers={"Requires-Dist": [f"{helper}>=3"]})
    ended = place.hub("lock", f"{owner.slug}/demo-env@0.1.0")
    assert ended.code == 0, ended.err
    return owner, helper, tmp_path / "pylock.toml"


def test_a_lock_pins_everything_by_digest(hub, locked, tmp_path):
    """The hub's package by its address and the hub's facts, the rest by uv from the user's index, as in PEP 751."""
    owner, helper, path = locked
    document = tomllib.loads(path.read_text())
    Pylock.from_dict(document)
    packages = {one["name"]: one for one in document["packages"]}
    assert set(packages) == {"demo-env", helper}
    wheel = tmp_path / "dist" / owner.slug / "demo_env-0.1.0-py3-none-any.whl"
    archive = packages["demo-env"]["archive"]
    assert archive["hashes"] == {"sha256": sha256_of(wheel)} and archive["size"] == wheel.stat().st_size
    assert archive["url"].startswith(f"{hub.url}/files/{owner.slug}/demo-env/") and archive["upload-time"]
    assert packages["demo-env"]["index"] == f"{hub.url}/{owner.slug}/demo-env/simple/"
    assert all(file["hashes"]["sha256"] for file in packages[helper]["wheels"])
    table = document["tool"]["verifiers"]
    assert (table["hub"], table["requirements"]) == (hub.url, [f"{owner.slug}/demo-env@0.1.0"])
    assert [one["id"] for one in table["packages"]] == [f"{owner.slug}/demo-env@0.1.0"]


def test_the_same_serial_gives_the_same_bytes(place, locked, release, tmp_path):
    """Whatever was published since; without a serial the newest is locked."""
    owner, _, path = locked
    serial = read_lock(path).serial
    before = place.hub("lock", f"{owner.slug}/demo-env", "--serial", serial, "-o", "pylock.one.toml")
    assert before.code == 0, before.err
    release(owner, version="0.3.0")
    place.hub("lock", f"{owner.slug}/demo-env", "--serial", serial, "-o", "pylock.two.toml")
    place.hub("lock", f"{owner.slug}/demo-env", "-o", "pylock.three.toml")
    one, two, three = ((tmp_path / f"pylock.{name}.toml").read_bytes() for name in ("one", "two", "three"))
    assert one == two and b"@0.2.0" in one and b"@0.3.0" in three


def test_a_lock_is_installed_exactly_and_again_without_the_hub(hub, place, locked):
    """Pinned versions, known by their wheels afterwards; from the cache where the hub is gone, with a word on yanks."""
    owner, helper, path = locked
    ended = place.hub("install", "-r", path)
    assert ended.code == 0, ended.err
    assert place.installed() == {"demo-env": "0.1.0", helper: "3.1"}
    assert hub_origin(place.distribution("demo-env")).id == f"{owner.slug}/demo-env@0.1.0"
    assert place.hub("verify", path).code == 0
    place.uv("uninstall", "demo-env")
    lost = path.with_name("pylock.lost.toml")
    lost.write_text(path.read_text().replace(f'hub = "{hub.url}"', 'hub = "http://127.0.0.1:9"'))
    ended = place.hub("install", lost)
    assert ended.code == 0 and "yanked is not known" in ended.err and "demo-env" in place.installed()


def test_a_hub_that_does_not_tell_keeps_nothing_from_being_installed(hub, place, locked):
    """What was locked has become private: it comes from the cache, and its own sentence is passed on."""
    owner, _, path = locked
    with hub.client(owner.token) as client:
        client.request("PATCH", f"/api/v1/{owner.slug}/demo-env", json={"visibility": "private"})
    ended = place.hub("install", "-r", path)
    assert ended.code == 0 and "demo-env" in place.installed(), ended.err
    assert "yanked is not known: " in ended.err and f"{owner.slug}/demo-env" in ended.err


def test_installers_take_the_lock_and_leave_the_same_traces(place, locked):
    """`uv pip sync` installs it too, and what it notes says which wheel of which hub that was."""
    _, helper, path = locked
    synced = place.uv("sync", path)
    assert synced.returncode == 0, synced.stderr
    assert place.installed() == {"demo-env": "0.1.0", helper: "3.1"}
    assert hub_origin(place.distribution("demo-env")).sha256 == read_lock(path).packages[0].sha256
    assert place.hub("verify").code == place.hub("verify", path).code == 0


@pytest.mark.slow
def test_pip_takes_the_lock(installers, locked):
    """Its experimental reading of pylock.toml installs the same."""
    _, helper, path = locked
    python = installers.venv()
    ended = installers.pip(python, "install", "-r", path)
    assert ended.code == 0, ended.said
    listed = installers.pip(python, "list").out
    assert "demo-env" in listed and helper in listed


def test_a_lock_that_was_changed_by_hand_installs_nothing(place, locked):
    """Several digests for one package, or one that the hub has no bytes for."""
    _, _, path = locked
    lock = read_lock(path)
    text, digest = path.read_text(), lock.packages[0].sha256
    path.write_text(text.replace(digest, "0" * 64, 1))
    assert place.hub("install", "-r", path).code == 2
    path.write_text(text.replace(digest, "0" * 64))
    assert place.hub("install", "-r", path).code == 1
    assert place.installed() == {}


def test_what_is_no_lock_of_ours_is_refused(place, tmp_path):
    """A lock of another tool, of a later release, and a name that installers do not know."""
    path = tmp_path / "pylock.toml"
    for text, said in (
        ('lock-version = "1.0"\npackages = []\n', "was not written by hub lock"),
        ('[tool.verifiers]\nschema-version = 99\n', "another release"),
        ('[tool.verifiers]\nschema-version = 1\n', "no sound lock"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=said):
            read_lock(path)
    assert place.hub("lock", "a/b", "-o", "my.lock").code == 2
    assert place.hub("install", "-r", tmp_path / "none.toml").code == 2


def test_the_users_token_goes_to_no_hub_that_a_lock_names(place, locked, monkeypatch):
    """A lock may come from anyone: `VF_HUB_TOKEN` is for the user's own hub."""
    from verifiers.cli.hub.flags import HubFlags

    monkeypatch.setenv("VF_HUB_TOKEN", "secret")
    flags = HubFlags(hub_url="https://mine.example")
    assert (flags.token_for("https://mine.example"), flags.token_for("https://theirs.example")) == ("secret", None)
    with flags.client_for("https://mine.example") as own, flags.client_for("https://theirs.example") as other:
        assert (own.token, other.token) == ("secret", "")


def test_text_and_document_are_one(locked):
    """What is read is what was written, byte for byte."""
    path = locked[-1]
    assert to_text(tomllib.loads(path.read_text())) == path.read_text()
