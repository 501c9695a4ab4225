import json
import sys

from tests.hub.conftest import ALONE, Place
from tests.support.archives import pyproject_text, write_sdist
from tests.support.publish import publish_files
from verifiers.envs.origin import hub_origin
from verifiers.hub import install
from verifiers.hub.fetch import sha256_of
from verifiers.hub.install import uv


def test_a_release_is_installed_by_its_digest_and_noted(hub, place, release):
    """The pinned version comes, although there is a newer one, and says afterwards which wheel of which hub it is."""
    owner = hub.owner()
    wheel = release(owner)
    release(owner, version="0.2.0")
    ended = place.hub("install", f"{owner.slug}/demo-env@0.1.0", "--json")
    assert ended.code == 0, ended.err
    told = json.loads(ended.out)
    assert [(one["id"], one["state"]) for one in told["packages"]] == [(f"{owner.slug}/demo-env@0.1.0", "installed")]
    origin = hub_origin(place.distribution("demo-env"))
    assert (origin.hub, origin.id, origin.sha256) == (hub.url, f"{owner.slug}/demo-env@0.1.0", sha256_of(wheel))
    assert place.hub("verify").code == 0


def test_nothing_is_done_twice(hub, place, release):
    """A second call finds all there; the newest is another one, and takes its place."""
    owner = hub.owner()
    release(owner)
    place.hub("install", f"{owner.slug}/demo-env")
    stamp = (place.site / "demo_env.py").stat().st_ctime_ns
    again = place.hub("install", f"{owner.slug}/demo-env@0.1.0")
    assert again.code == 0 and "is installed already" in again.out
    assert (place.site / "demo_env.py").stat().st_ctime_ns == stamp
    release(owner, version="0.2.0")
    newer = place.hub("install", f"{owner.slug}/demo-env")
    assert "takes the place of" in newer.err and place.installed() == {"demo-env": "0.2.0"}


def test_what_else_is_installed_stays_as_it_is(hub, place, release):
    """An unrelated package is not upgraded, although the hub has a newer one."""
    owner = hub.owner()
    for version in ("1.0", "2.0"):
        release(owner, "other-env", version)
    release(owner)
    place.hub("install", f"{owner.slug}/other-env@1.0")
    place.hub("install", f"{owner.slug}/demo-env")
    assert place.installed() == {"demo-env": "0.1.0", "other-env": "1.0"}


def test_all_or_nothing(hub, place, release):
    """One id that can not be had fails the call, is named, and nothing is installed."""
    owner = hub.owner()
    release(owner)
    ids = [f"{owner.slug}/{name}" for name in ("demo-env", "none", "demo-env@9")]
    ended = place.hub("install", *ids)
    assert ended.code == 1 and f"{owner.slug}/none" in ended.err and place.installed() == {}


def test_two_packages_of_one_name_are_refused(hub, place, release):
    """Equal distribution names, or equal modules: one would overwrite the other."""
    one, other = hub.owner(), hub.owner()
    release(one)
    release(other)
    release(other, "third-env", files={"demo_env/__init__.py": b"load_environment = None\n"})
    for second in ("demo-env", "third-env"):
        ended = place.hub("install", f"{one.slug}/demo-env", f"{other.slug}/{second}")
        assert ended.code == 1 and place.installed() == {}, ended.err
        assert "demo-env@0.1.0" in ended.err and "demo" in ended.err


def test_what_a_package_needs_from_the_hub_comes_along(hub, place, release, tmp_path):
    """Its hub dependency is pinned by the hub, and installed by digest as it is."""
    owner = hub.owner()
    base = release(owner, "base-env", "1.5")
    needs = {"Requires-Dist": ["base-env>=1.2"]}
    project = pyproject_text("demo-env", "0.1.0").replace("verifiers>=0.1", "base-env>=1.2")
    project += f'[tool.verifiers.hub]\ndependencies = ["{owner.slug}/base-env>=1.2"]\n'
    publish_files(hub, owner, write_sdist(tmp_path, pyproject=project, headers=needs))
    release(owner, headers=needs)
    ended = place.hub("install", f"{owner.slug}/demo-env")
    assert ended.code == 0, ended.err
    assert hub_origin(place.distribution("base-env")).sha256 == sha256_of(base)


def test_files_that_someone_edited_in_uvs_cache_do_not_come_along(hub, place, release, tmp_path, capfd, monkeypatch):
    """uv links installed files to its cache: an edit in one place would be installed in the next."""
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("UV_LINK_MODE", "hardlink")
    owner = hub.owner()
    release(owner)
    assert place.hub("install", f"{owner.slug}/demo-env").code == 0
    with (place.site / "demo_env.py").open("a") as file:
        file.write("# edited\n")
    other = Place(tmp_path / "other", hub.url, capfd)
    assert other.hub("install", f"{owner.slug}/demo-env").code == 0
    assert "# edited" not in (other.site / "demo_env.py").read_text()
    assert other.hub("verify").code == 0 and place.hub("verify").code == 1


def test_a_dry_run_installs_nothing(hub, place, release):
    """It says what would be."""
    owner = hub.owner()
    release(owner)
    ended = place.hub("install", f"{owner.slug}/demo-env", "--dry-run")
    assert ended.code == 0 and "would be installed" in ended.out and place.installed() == {}


def test_private_packages_come_with_the_token_and_show_it_to_no_one(hub, place, release, monkeypatch):
    """Without the token there is no such package; with it, neither uv nor the installed metadata get to see it."""
    owner = hub.owner()
    release(owner)
    with hub.client(owner.token) as client:
        client.request("PATCH", f"/api/v1/{owner.slug}/demo-env", json={"visibility": "private"})
    assert place.hub("install", f"{owner.slug}/demo-env").code == 1
    monkeypatch.setenv("VF_HUB_TOKEN", owner.token)
    ended = place.hub("install", f"{owner.slug}/demo-env", "--verbose")
    assert ended.code == 0, ended.err
    told = place.distribution("demo-env").read_text("direct_url.json")
    assert owner.token not in ended.out + ended.err + told


def test_the_systems_own_python_is_left_alone(hub, place, release, monkeypatch):
    """A clear word, and what to do."""
    from verifiers.hub import target

    owner = hub.owner()
    release(owner)
    found = target.find_target(str(place.folder))
    system = target.Target(found.python, found.version, found.prefix, found.paths, virtual=False, managed=True)
    monkeypatch.setattr(target, "find_target", lambda _: system)
    ended = place.hub("install", f"{owner.slug}/demo-env")
    assert ended.code == 2 and "no virtual environment is active" in ended.err and "uv venv" in ended.err


def test_a_pin_on_another_version_of_verifiers_is_relaxed_on_request_only(hub, place, release):
    """What is installed stays; without consent nothing else is installed."""
    info = place.site / "verifiers-1.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: verifiers\nVersion: 1.0.0\n")
    owner = hub.owner()
    release(owner, headers={"Requires-Dist": ["verifiers==0.1.5"]})
    refused = place.hub("install", f"{owner.slug}/demo-env")
    assert refused.code == 1 and "--yes" in refused.err and place.installed() == {"verifiers": "1.0.0"}
    assert place.hub("install", f"{owner.slug}/demo-env", "--yes").code == 0
    assert place.installed() == {"verifiers": "1.0.0", "demo-env": "0.1.0"}


def test_vf_install_is_the_same(hub, place, release, monkeypatch, capfd):
    """An id with an owner goes to the hub; the pinned id is what to evaluate next."""
    from verifiers.cli import install
    from verifiers.hub import target

    owner = hub.owner()
    release(owner)
    found = target.find_target(str(place.folder))
    monkeypatch.setattr(target, "find_target", lambda _: found)
    assert install.run([f"{owner.slug}/demo-env", "--hub-url", hub.url]) == 0
    assert f"vf-eval {owner.slug}/demo-env@0.1.0" in capfd.readouterr().out
    assert hub_origin(place.distribution("demo-env")).id == f"{owner.slug}/demo-env@0.1.0"


def test_another_active_environment_is_mentioned(hub, place, release, monkeypatch):
    """The command may belong to another Python than the one that was activated."""
    from verifiers.hub import target

    owner = hub.owner()
    release(owner)
    found = target.find_target(str(place.folder))
    monkeypatch.setattr(target, "find_target", lambda _: found)
    for active, said in (("/elsewhere", True), (str(place.folder), False)):
        monkeypatch.setenv("VIRTUAL_ENV", active)
        ended = place.hub("install", f"{owner.slug}/demo-env", python=False)
        assert ended.code == 0 and ("--python /elsewhere" in ended.err) == said


def test_mistakes_are_told(hub, place, release):
    """No hub, no Python, no id, a lock beside ids."""
    assert place.hub("install").code == 2
    assert place.hub("install", "demo-env").code == 2
    assert place.hub("install", "a/b", "--python", "/nowhere", python=False).code == 2
    assert place.hub("install", "a/b", "pylock.toml").code == 2
    gone = place.hub("install", "a/b", url="http://127.0.0.1:9")
    assert gone.code == 4 and "does not answer" in gone.err


def test_the_source_is_pulled_and_kept(hub, place, release, tmp_path):
    """Verified, unpacked beside us, and put over nothing unless asked to."""
    owner = hub.owner()
    release(owner)
    publish_files(hub, owner, write_sdist(tmp_path, headers=ALONE))
    ended = place.hub("pull", f"{owner.slug}/demo-env@0.1.0", python=False)
    assert ended.code == 0, ended.err
    folder = tmp_path / "demo-env"
    assert (folder / "pyproject.toml").is_file() and (folder / "demo_env.py").is_file()
    (folder / "demo_env.py").write_text("mine")
    again = place.hub("pull", f"{owner.slug}/demo-env@0.1.0", python=False)
    assert again.code == 1 and "--force" in again.err and (folder / "demo_env.py").read_text() == "mine"
    assert place.hub("pull", f"{owner.slug}/demo-env@0.1.0", "--force", python=False).code == 0
    assert (folder / "demo_env.py").read_text() != "mine"


def test_a_release_without_source_gives_its_wheel(hub, place, release, tmp_path):
    """And says so; a folder of one's own choice."""
    owner = hub.owner()
    release(owner)
    ended = place.hub("pull", f"{owner.slug}/demo-env", "there", python=False)
    assert ended.code == 0 and "no source archive" in ended.err and (tmp_path / "there" / "demo_env.py").is_file()


def test_uv_does_not_get_the_token(monkeypatch):
    """It may run other people's code, to build what has no wheel."""
    monkeypatch.setenv("VF_HUB_TOKEN", "secret")
    code = "import os; print(os.environ.get('VF_HUB_TOKEN'), 'PATH' in os.environ)"
    ended = uv(["run", "--no-project", "--python", sys.executable, "python", "-c", code], capture_output=True)
    assert ended.stdout.split() == [b"None", b"True"]


def test_the_packed_sdk_is_found_once_it_is_whole(tmp_path, monkeypatch):
    """Another process that installs meanwhile, or after this one was killed, never takes half a wheel."""
    seen = []

    class Ours:
        def digest(self):
            return "tree:0123456789abcdef"

        async def wheel(self, folder):
            wheel = folder / "verifiers-1-py3-none-any.whl"
            wheel.write_bytes(b"half")
            seen.extend(tmp_path.glob("hub/sdk/*/*.whl"))
            wheel.write_bytes(b"whole")
            return wheel

    monkeypatch.setattr(install, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(install, "sdk_wheel", lambda *_: None)
    monkeypatch.setattr("verifiers.rollouts.workers.wheels.our_source", Ours)
    lines = {install._sdk_line(None, None, lambda _: None) for _ in range(2)}
    (wheel,) = tmp_path.glob("hub/sdk/*/*")
    assert (seen, lines, wheel.read_bytes()) == ([], {f"verifiers @ {wheel.as_uri()}"}, b"whole")
