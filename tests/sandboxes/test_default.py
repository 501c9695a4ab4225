"""The provider that a user gets without naming one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from verifiers.errors import ConfigError
from verifiers.sandboxes.default import new_provider, sandbox_settings
from verifiers.sandboxes.docker.provider import DockerProvider
from verifiers.sandboxes.local.provider import LocalProvider
from verifiers.sandboxes.node.cluster import NodesProvider
from verifiers.sandboxes.prime.provider import PrimeProvider

SCRIPT = """
import asyncio, multiprocessing, os, sys
from verifiers.sandboxes.default import default_provider
from verifiers.sandboxes.spec import SandboxSpec, command

async def rollouts():
    first, second = await asyncio.gather(default_provider(), default_provider())
    assert first is second is await default_provider()
    boxes = await asyncio.gather(*(first.create(SandboxSpec(isolation=LEVEL)) for _ in range(3)))
    assert (await boxes[0].exec("echo hi")).stdout == b"hi\\n"
    await boxes[0].start(command(f"sleep {MARK}", timeout=None))
    await boxes[1].delete()
    tasks.append(asyncio.create_task(boxes[0].delete()))
    await asyncio.sleep(0)
    return first

LEVEL, MARK = sys.argv[1:]
tasks = []
assert asyncio.run(rollouts()) is not asyncio.run(rollouts())
loop = asyncio.new_event_loop()  # which nobody ends
loop.run_until_complete(rollouts())
child = multiprocessing.get_context("fork").Process(target=lambda: asyncio.run(rollouts()))
child.start()
child.join()
assert child.exitcode == 0
provider = loop.run_until_complete(default_provider())
assert provider.stats().used, provider.stats()
print("end")
"""


@pytest.fixture
def no_files(monkeypatch, tmp_path):
    """No settings of the user or of the project."""
    monkeypatch.setenv("VF_CONFIG", str(tmp_path / "user.toml"))
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("VF_SANDBOX_")]:
        monkeypatch.delenv(name)


def test_settings_have_origins_and_the_first_that_says_something_wins(no_files, monkeypatch, tmp_path):
    """Variable, project, user, default."""
    (tmp_path / "user.toml").write_text('[sandbox]\nprovider = "http://user:1, unix:/two"\nready = 3\nmax_alive = 5\n')
    (tmp_path / "pyproject.toml").write_text("[tool.verifiers.sandbox]\nready = 2\nmax_alive = 4\n")
    monkeypatch.setenv("VF_SANDBOX_MAX_ALIVE", "7")
    settings = sandbox_settings()
    assert {name: setting.value for name, setting in settings.items() if name != "max_starting"} == {
        "provider": "http://user:1, unix:/two",
        "level": "namespace",
        "max_alive": 7,
        "ready": 2,
    }
    origins = [settings[name].origin for name in ("max_alive", "ready", "provider", "level")]
    assert origins == ["VF_SANDBOX_MAX_ALIVE", str(tmp_path / "pyproject.toml"), str(tmp_path / "user.toml"), "default"]
    pool = new_provider(settings)
    assert isinstance(pool.provider, NodesProvider) and (pool.max_alive, pool.ready) == (7, 2)


def test_without_settings_it_is_this_machine_with_limits_of_its_size(no_files):
    """Nothing has to be set."""
    for name in ("docker", "podman"):
        chosen = new_provider(sandbox_settings({"VF_SANDBOX_PROVIDER": name})).provider
        assert isinstance(chosen, DockerProvider) and chosen.name == name
    assert isinstance(new_provider(sandbox_settings({"VF_SANDBOX_PROVIDER": "prime"})).provider, PrimeProvider)
    pool = new_provider(sandbox_settings())
    assert isinstance(pool.provider, LocalProvider)
    assert 16 <= pool.max_alive <= 1000 and pool.max_starting >= 4


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("PROVIDER", "locale", "VF_SANDBOX_PROVIDER"), ("MAX_ALIVE", "0", "at least 1"), ("LEVEL", "jail", "landlock")],
)
def test_a_wrong_setting_is_named(no_files, monkeypatch, name, value, said):
    """The error has the origin, or what may be set."""
    monkeypatch.setenv(f"VF_SANDBOX_{name}", value)
    with pytest.raises(ConfigError) as raised:
        new_provider(sandbox_settings())
    assert said in f"{raised.value} {raised.value.hint}"


def test_an_unknown_setting_in_a_file_is_named(no_files, tmp_path):
    """With what it may have meant."""
    (tmp_path / "user.toml").write_text("[sandbox]\nmax_aliv = 1\n")
    with pytest.raises(ConfigError, match="max_aliv"):
        sandbox_settings()


async def level():
    async with LocalProvider() as provider:
        return (await provider.capabilities()).isolation


async def test_each_loop_and_process_has_one_and_leaves_nothing(tmp_path):
    """Loops one after the other, one that nobody ends, a forked worker: sandboxes and files are gone with them."""
    mark = f"98{os.getpid()}"
    environment = {**os.environ, "TMPDIR": str(tmp_path), "VF_SANDBOX_LEVEL": await level()}
    script = [sys.executable, "-c", SCRIPT, await level(), mark]
    ended = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=120)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("end\n", "", 0)
    assert list(tmp_path.iterdir()) == []
    commands = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(file.read_bytes())
        except OSError:
            continue
    assert not any(mark.encode() in line and b"sleep" in line for line in commands)
