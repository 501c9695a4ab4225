import sys

import pytest

from verifiers.errors import ConfigError, EnvironmentLoadError, EnvironmentNotFoundError
from verifiers.evals.lookup import find_environment


def test_a_local_environment_is_put_on_the_path(workspace, make_environment):
    """The folder comes first on sys.path, and version and defaults come from its pyproject."""
    folder = make_environment(defaults="num_examples = 9")
    found = find_environment("toy-env")
    assert sys.path[0] == str(folder)
    assert (found.version, found.local, found.defaults) == ("0.2.0", True, {"num_examples": 9})
    assert "toy-env 0.2.0" in found.described
    assert sys.path.count(str(folder)) == 1


def test_no_folder_is_an_owners(workspace, make_environment):
    """Neither the folder of that name, nor its module on the path, is played under an owner's id."""
    make_environment()
    find_environment("toy-env")
    for env_id in ("owner/toy-env", "owner/toy_env@0.2.0"):
        with pytest.raises(EnvironmentNotFoundError, match="of that owner among the installed") as missing:
            find_environment(env_id)
        assert "VF_HUB_URL" in str(missing.value.hint)
    with pytest.raises(EnvironmentNotFoundError) as path:
        find_environment("environments/toy_env")
    assert "./environments/toy_env" in str(path.value.hint)


def test_packages_and_src_layouts_are_found(workspace):
    """A package beside the pyproject or below src is as good as a single file."""
    for name, base in (("one", "one"), ("two", "src/two")):
        package = workspace / "environments" / name / base
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        found = find_environment(name)
        assert sys.path[0] == str(package.parent)
        assert (found.version, found.defaults) == (None, {})


def test_a_path_names_its_folder(workspace, make_environment):
    """An id that starts with a dot or a slash is a folder."""
    folder = make_environment()
    assert find_environment("./environments/toy_env").path == folder
    assert find_environment(str(folder)).env_id == "toy_env"
    with pytest.raises(EnvironmentNotFoundError, match="no folder"):
        find_environment("./none")


def test_an_installed_package_is_found(workspace):
    """What is importable is found, and said to be installed."""
    found = find_environment("pytest")
    assert not found.local
    assert found.version == pytest.__version__
    with pytest.raises(EnvironmentNotFoundError, match="is installed"):
        find_environment("pytest@0.0.1")


def test_defaults_of_another_project_beside_the_module_are_not_taken(workspace, monkeypatch):
    """Single-file environments share one pyproject in site-packages: its name decides whose it is."""
    site = workspace / "site"
    site.mkdir()
    (site / "mine_env.py").write_text("")
    (site / "pyproject.toml").write_text(
        '[project]\nname = "other"\n[tool.verifiers.eval]\nnum_examples = 1\n'
    )
    monkeypatch.syspath_prepend(site)
    assert find_environment("mine-env").defaults == {}
    (site / "pyproject.toml").write_text(
        '[project]\nname = "mine_env"\n[tool.verifiers.eval]\nnum_examples = 1\n'
    )
    assert find_environment("mine-env").defaults == {"num_examples": 1}


def test_an_unknown_environment_is_answered_with_near_ones(workspace, make_environment):
    """The hint has near misses of local and installed names, and how to get one."""
    make_environment()
    with pytest.raises(EnvironmentNotFoundError, match="no environment 'toy-evn'") as missing:
        find_environment("toy-evn")
    assert "Did you mean 'toy-env'?" in missing.value.hint
    assert "vf-init toy-evn" in missing.value.hint


def test_mistakes_of_a_folder_are_named(workspace, make_environment):
    """No module, another project's name, another version, broken TOML."""
    (workspace / "environments" / "empty").mkdir(parents=True)
    with pytest.raises(EnvironmentLoadError, match=r"holds no module empty\.py"):
        find_environment("empty")
    make_environment("named", project="other")
    with pytest.raises(ConfigError, match="belongs to 'other'"):
        find_environment("named")
    folder = make_environment()
    with pytest.raises(EnvironmentNotFoundError, match=r"holds version 0\.2\.0"):
        find_environment("toy-env@0.3.0")
    (folder / "pyproject.toml").write_text("[")
    with pytest.raises(ConfigError, match="no valid TOML"):
        find_environment("toy-env")
