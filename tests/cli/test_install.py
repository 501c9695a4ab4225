import subprocess
import sys
import types
from pathlib import Path

import pytest

from verifiers.cli import install as command

pytestmark = pytest.mark.usefixtures("workspace")


@pytest.fixture
def uv(monkeypatch):
    """Records what would be installed; `returncode` is what uv ends with."""
    seen = types.SimpleNamespace(command=None, files={}, returncode=0)

    def run(arguments, **_):
        seen.command = arguments
        for option in ("--constraint", "--override"):
            if option in arguments:
                seen.files[option] = Path(arguments[arguments.index(option) + 1]).read_text().split()
        return subprocess.CompletedProcess(arguments, seen.returncode)

    monkeypatch.setattr(command.subprocess, "run", run)
    return seen


def pin(workspace, requirement):
    path = workspace / "environments/toy/pyproject.toml"
    path.write_text(
        f'[project]\nname = "toy"\nversion = "0.1.0"\ndependencies = ["numpy", "{requirement}"]\n'
    )


def test_a_local_environment_is_installed_editable_and_nothing_is_upgraded(workspace, uv, capsys):
    """Into this Python, with our own version as a constraint."""
    assert command.run(["toy"]) == 0
    folder = str(workspace / "environments/toy")
    assert uv.command[1:5] == ["pip", "install", "--python", sys.executable]
    assert uv.command[-2:] == ["-e", folder]
    assert "--upgrade" not in uv.command
    assert uv.files["--constraint"] == ["verifiers==" + command.version("verifiers")]
    assert "--override" not in uv.files
    assert "vf-eval toy -m local" in capsys.readouterr().out


def test_paths_and_other_folders_are_found(workspace, uv):
    """A path names the folder itself, -p the folder of folders."""
    assert command.run(["./environments/toy"]) == 0
    assert command.run(["toy", "-p", str(workspace / "environments")]) == 0


@pytest.mark.parametrize("requirement", ["verifiers==0.1.5", "verifiers>=0.1.3,<0.2"])
def test_a_pin_on_another_version_is_explained_and_relaxed_on_request(workspace, uv, capsys, requirement):
    """Without consent nothing is installed; with --yes the requirement is overridden."""
    pin(workspace, requirement)
    assert command.run(["toy"]) == 1
    err = capsys.readouterr().err
    assert f"toy asks for {requirement}" in err
    assert "--yes" in err
    assert uv.command is None
    assert command.run(["toy", "--yes"]) == 0
    assert uv.files["--override"] == ["verifiers"]


def test_a_requirement_that_we_satisfy_is_left_alone(workspace, uv):
    """`verifiers>=0.1.3` is what published environments ask for."""
    pin(workspace, "verifiers>=0.1.3")
    assert command.run(["toy"]) == 0
    assert "--override" not in uv.files


def test_a_repository_is_installed_from_its_branch(uv):
    """The environment's subdirectory of a Git repository."""
    assert command.run(["my-env", "-r", "--repository", "https://host/o/r", "-b", "dev"]) == 0
    assert uv.command[-1] == "my-env @ git+https://host/o/r@dev#subdirectory=environments/my_env"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["toyy"], 1, "Did you mean 'toy'?"),
        (["owner/toy@1.0"], 2, "VF_HUB_URL"),
        (["toy@1.0"], 1, "OWNER/NAME@VERSION"),
        (["toy", "-r"], 2, "no repository was named"),
        ([], 2, "--help"),
        (["toy", "--pth", "x"], 2, "Did you mean --path?"),
    ],
)
def test_mistakes_are_named(uv, capsys, arguments, code, message):
    """One message, a hint, and the exit code."""
    assert command.run(arguments) == code
    assert message in capsys.readouterr().err
    assert uv.command is None


def test_a_failing_installer_is_exit_1(uv, capsys):
    """What uv said is on the terminal; the command says that it failed."""
    uv.returncode = 2
    assert command.run(["toy"]) == 1
    assert "ended with 2" in capsys.readouterr().err
