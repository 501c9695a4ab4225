import importlib
import json
import shutil
import sys

import pytest

from tests.support.archives import MODULE
from verifiers.cli.train import run as train
from verifiers.envs.provenance import environment_ref
from verifiers.errors import (
    ConfigError,
    EnvironmentInstallError,
    EnvironmentNotFoundError,
    ExitCode,
    HubUnavailableError,
)
from verifiers.evals.config import resolve
from verifiers.evals.lookup import find_environment
from verifiers.hub import prepare as module
from verifiers.hub.fetch import sha256_of
from verifiers.hub.prepare import Preparer
from verifiers.hub.target import find_target

PROJECT = '[project]\nname = "demo-env"\n[tool.verifiers.eval]\nnum_examples = 3\n'
DEFAULTS = {"extra_metadata/pyproject.toml": PROJECT}


@pytest.fixture
def owner(hub, place, release, monkeypatch):
    """An owner with two versions of `demo-env`; what is prepared goes into the virtual environment of `place`."""
    target = find_target(str(place.folder))
    monkeypatch.setattr(module, "find_target", lambda _: target)
    monkeypatch.syspath_prepend(str(place.site))
    monkeypatch.delitem(sys.modules, "demo_env", raising=False)
    owner = hub.owner()
    for version in ("0.1.0", "0.2.0"):
        release(owner, version=version, dist_info=DEFAULTS)
    yield owner
    sys.modules.pop("demo_env", None)


def local_folder(tmp_path, version="0.1.0"):
    folder = tmp_path / "environments" / "demo_env"
    folder.mkdir(parents=True)
    (folder / "demo_env.py").write_text(MODULE)
    (folder / "pyproject.toml").write_text(f'[project]\nname = "demo-env"\nversion = "{version}"\n')
    return folder


def test_a_pinned_id_is_installed_once_and_then_asks_nobody(hub, owner, place, monkeypatch):
    """The notice names the digest; what is known to be that release needs no network."""
    told = []
    found = Preparer(hub.url, note=told.append)(f"{owner.slug}/demo-env@0.1.0", False)
    assert (found.env_id, found.version, found.local) == (f"{owner.slug}/demo-env@0.1.0", "0.1.0", False)
    assert "sha256:" in told[-1] and found.path.parent == place.site
    monkeypatch.setattr(module, "HubClient", None)
    again = Preparer(hub.url)(f"{owner.slug}/demo-env@0.1.0", False)
    assert again.path == found.path


def test_an_id_without_a_version_is_the_latest_and_says_which(hub, owner, place):
    """It is pinned from then on: in the settings, the run's folder and its records."""
    [evaluation] = resolve([f"{owner.slug}/demo-env"], {"model": "m", "api_base_url": "http://127.0.0.1:9/v1"},
                           Preparer(hub.url))  # fmt: skip
    assert evaluation.config.env_id == f"{owner.slug}/demo-env@0.2.0" == evaluation.environment.env_id
    assert evaluation.config.num_examples == 3  # what its own pyproject proposes


def test_records_name_the_release(hub, owner, place):
    """Owner, version and the wheel's digest, also for an id without an owner."""
    Preparer(hub.url)(f"{owner.slug}/demo-env@0.1.0", False)
    __import__("demo_env")
    wheel = place.folder.parent / "dist" / owner.slug / "demo_env-0.1.0-py3-none-any.whl"
    named = {"name": f"{owner.slug}/demo-env", "version": "0.1.0", "digest": f"sha256:{sha256_of(wheel)}"}
    assert environment_ref(f"{owner.slug}/demo-env@0.1.0") == environment_ref("demo-env") == named


def test_no_folder_stands_in_for_a_release(hub, owner, place, tmp_path):
    """Where a hub is named, an id with an owner is the hub's, whatever lies in ./environments."""
    folder = local_folder(tmp_path)
    env_id = f"{owner.slug}/demo-env@0.1.0"
    settings = {"model": "m", "api_base_url": "http://127.0.0.1:9/v1"}
    with pytest.raises(EnvironmentNotFoundError, match="of that owner"):
        resolve([env_id], settings)
    assert resolve(["demo-env"], settings)[0].environment.path == folder.relative_to(tmp_path)
    sys.path.remove(str(folder))
    importlib.invalidate_caches()
    found = resolve([env_id], settings, Preparer(hub.url))[0].environment
    assert not found.local and found.path.parent == place.site
    assert find_environment(env_id).path == found.path  # as workers and checks look for it


def test_without_a_hub_only_what_is_installed_is_found(hub, owner, place, tmp_path):
    """A folder of the name is not; the error says how to name a hub."""
    env_id = f"{owner.slug}/demo-env@0.1.0"
    local_folder(tmp_path)
    with pytest.raises(ConfigError, match="no hub was named") as missing:
        Preparer()(env_id, False)
    assert "VF_HUB_URL" in missing.value.hint
    with pytest.raises(EnvironmentNotFoundError) as path:
        Preparer()("environments/demo_env", False)
    assert "./environments/demo_env" in path.value.hint
    installed = Preparer(hub.url)(env_id, False)
    found = Preparer()(env_id, False)
    assert (found.path, found.local) == (installed.path, False)


def test_another_owners_package_is_another_package(hub, owner, place, release):
    """The right one takes its place, with a word; without a hub it is refused."""
    other = hub.owner()
    release(other)
    Preparer(hub.url)(f"{owner.slug}/demo-env@0.1.0", False)
    with pytest.raises(EnvironmentNotFoundError, match="is installed"):
        find_environment(f"{other.slug}/demo-env@0.1.0")
    told = []
    found = Preparer(hub.url, note=told.append)(f"{other.slug}/demo-env@0.1.0", False)
    assert found.env_id == f"{other.slug}/demo-env@0.1.0" and "takes the place of" in told[0]


def test_a_package_that_is_worked_on_is_not_replaced(hub, owner, place, tmp_path):
    """An editable installation stays, and the hint names the ways on."""
    info = place.site / "demo_env-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: demo-env\nVersion: 0.1.0\n")
    (info / "direct_url.json").write_text(json.dumps({"url": tmp_path.as_uri(), "dir_info": {"editable": True}}))
    with pytest.raises(EnvironmentInstallError) as refused:
        Preparer(hub.url)(f"{owner.slug}/demo-env@0.1.0", False)
    assert "--isolated" in refused.value.hint
    shutil.rmtree(info)


@pytest.mark.parametrize("dry_run", [False, True])
def test_what_is_not_to_be_installed_here_is_only_fetched(hub, owner, place, dry_run):
    """For a virtual environment of its own, or to show the settings: the verified wheel and the author's defaults."""
    found = Preparer(hub.url, dry_run=dry_run)(f"{owner.slug}/demo-env@0.1.0", not dry_run)
    [wheel] = found.hub_wheels
    assert wheel.name == "demo-env" and wheel.sha256 in wheel.path and wheel.url.startswith(hub.url)
    assert found.defaults == {"num_examples": 3} and place.installed() == {}


def test_a_hub_that_is_gone_is_told(owner, place):
    """Nothing else is played instead."""
    with pytest.raises(HubUnavailableError):
        Preparer("http://127.0.0.1:9")(f"{owner.slug}/demo-env@0.1.0", False)


def test_a_dry_run_of_training_says_what_it_would_install(hub, owner, place, capfd, tmp_path):
    """With version and digest, for what is trained on and what is evaluated on; nothing is installed, or loaded."""
    env_id = f"{owner.slug}/demo-env"
    settings = [f"model.path={tmp_path}", f"env={env_id}@0.1.0", f"eval.environments={env_id}@0.2.0"]
    assert train([*settings, "--dry-run", "--hub-url", hub.url]) == ExitCode.OK
    shown = capfd.readouterr().out
    for line, version in (("environment", "0.1.0"), ("evaluated on", "0.2.0")):
        wheel = place.folder.parent / "dist" / owner.slug / f"demo_env-{version}-py3-none-any.whl"
        assert f"# {line}: {env_id} {version} sha256:{sha256_of(wheel)[:12]}, would be installed" in shown
    assert place.installed() == {} and "demo_env" not in sys.modules
