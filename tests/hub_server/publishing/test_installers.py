"""The tools that other tests publish and install with."""


def test_the_installers_see_nothing_of_this_machine(installers, monkeypatch):
    """A setting of the machine changes nothing: pip reads no file and no variable, and is a current one."""
    monkeypatch.setenv("PIP_FIND_LINKS", "/opt/wheels")
    python = installers.venv()
    config = installers.pip(python, "config", "list")
    assert config.code == 0, config.said
    assert "find-links" not in config.out
    assert int(installers.pip(python, "--version").out.split()[1].split(".")[0]) >= 25
    assert installers.uv("--version").out.startswith("uv ")
    assert installers.twine("--version").out.startswith("twine ")
