"""Where settings come from, and what is said of wrong ones."""

import subprocess
import sys
from pathlib import Path

import pytest

from hub_server.settings import Settings, load_settings, unknown_variables
from tests.support.hub import run_server
from tests.support.variables import variables
from verifiers.errors import ConfigError

ROOT = Path(__file__).parent.parent.parent.parent


@pytest.fixture
def config(tmp_path):
    """A function that writes a settings file."""

    def write(text):
        path = tmp_path / "hub.toml"
        path.write_text(text)
        return path

    return write


def test_the_flag_wins_over_the_variable_over_the_file(config, monkeypatch):
    """The nearest to the person decides."""
    path = config("port = 1\nworkers = 1\nhost = '1.1.1.1'\n")
    assert load_settings(config=path).port == 1
    monkeypatch.setenv("HUB_PORT", "2")
    monkeypatch.setenv("HUB_CONFIG", str(path))
    found = load_settings(port=3)
    assert (found.port, load_settings().port, found.host) == (3, 2, "1.1.1.1")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("prot = 1", "there is no setting prot", "Is it port?"),
        ("database-url = 'x'", "there is no setting database-url", "Is it database_url?"),
        ("port = 'x'", "port in ", "docs/reference/settings.md"),
        ("public_url = 'hub.example.org'", "public_url in ", "docs/reference/settings.md"),
        ("port = ", "is no TOML", "Correct the place"),
    ],
)
def test_a_wrong_file(config, text, message, hint):
    """What is wrong, where it stands, and what to do."""
    with pytest.raises(ConfigError, match=message) as refused:
        load_settings(config=config(text))
    assert hint in refused.value.hint


def test_a_file_that_is_not_there(tmp_path):
    """A named file must be there: settings that are passed over in silence are worse than none."""
    with pytest.raises(ConfigError, match="can not read"):
        load_settings(config=tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("variables", "flags", "place"),
    [({"HUB_PORT": "abc"}, [], "HUB_PORT: "), ({}, ["--port", "70000"], "--port: "), ({}, ["--port", "x"], "--port")],
)
def test_a_wrong_value_is_one_line_and_exit_2(variables, flags, place):
    """It names the variable or the flag."""
    done = run_server("serve", *flags, settings=variables)
    assert done.returncode == 2
    error, hint = done.stderr.splitlines()
    assert place in error
    assert hint.startswith("hint: ")


def test_a_mistyped_flag(tmp_path):
    """It names the near miss."""
    done = run_server("serve", "--prot", "1", settings={})
    assert (done.returncode, "--port" in done.stderr) == (2, True)


def test_other_tools_variables_are_left_alone(monkeypatch):
    """Only what is nearly one of ours is mentioned."""
    monkeypatch.setenv("HUB_FAULT_POINT", "x")
    monkeypatch.setenv("HUB_SOMETHING_ELSE", "x")
    monkeypatch.setenv("HUB_PUBLC_URL", "x")
    assert unknown_variables() == ["HUB_PUBLC_URL is no setting; is it HUB_PUBLIC_URL?"]


def test_every_setting_is_documented():
    """Each has a description of its own, and a row of the reference with its variable."""
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert f"| `{name}` |" in page, f"{name} is not in docs/reference/settings.md: run `make docs`"
        assert f"`HUB_{name.upper()}`" in page
    assert "`HUB_CONFIG`" in page


def test_every_setting_is_a_flag_of_serve():
    """`serve --help` lists them all."""
    text = run_server("serve", "--help", settings={"COLUMNS": "200"}).stdout
    assert [name for name in Settings.model_fields if "--" + name.replace("_", "-") not in text] == []


@pytest.mark.parametrize(
    ("arguments", "code", "shown"),
    [
        (["serve", "--help"], 0, "--shutdown-seconds"),
        (["admin", "token", "create", "--help"], 0, "--scope"),
        (["fsck", "--data", "no/such/folder"], 2, "there is no hub in no/such/folder"),
    ],
)
def test_the_hub_command_becomes_the_servers(tmp_path, arguments, code, shown):
    """`hub serve` and its neighbours have the server's flags, help, errors and exit codes."""
    line = [sys.executable, "-m", "verifiers.cli.hub.main", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, env=variables({}))
    assert done.returncode == code
    assert shown in done.stdout + done.stderr


def test_an_empty_host_is_not_every_address(monkeypatch):
    """A variable that is set to nothing would open the hub to the whole network."""
    monkeypatch.setenv("HUB_HOST", "")
    with pytest.raises(ConfigError, match="HUB_HOST"):
        load_settings()
