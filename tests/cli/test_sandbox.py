"""`vf-sandbox`: what works here and why the rest does not, one command in a sandbox, and what is left of others."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from verifiers.cli.sandbox import run
from verifiers.errors import ExitCode
from verifiers.sandboxes.local import probe

LEVEL = probe.best()
HERE = ["--isolation", LEVEL]
PROGRAM = "from verifiers.cli.sandbox import main; main()"


def _events(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_doctor_says_what_works_and_how_fast(capsys: pytest.CaptureFixture[str]) -> None:
    """Every check is listed; exit code 0 where the level that was asked for can be given."""
    assert run(["doctor", *HERE]) == ExitCode.OK
    shown = capsys.readouterr().out
    assert all(check.name in shown for check in probe.checks())
    assert f"level {LEVEL} works; first output after" in shown
    assert "memory 1024 MiB" in shown and "pids 256" in shown
    assert run(["doctor", *HERE, "--json"]) == ExitCode.OK
    *checks, summary = _events(capsys)
    assert [check["name"] for check in checks] == [check.name for check in probe.checks()]
    assert (summary["passed"], summary["best"]) == (True, LEVEL)
    assert summary["start_ms"] > 0 and summary["exec_ms"] > 0


def test_doctor_fails_with_what_to_do(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1, the fix on stdout, and the level that does work."""
    missing = probe.Check("user namespaces", False, "switched off", fix="Switch them on.")
    found = {one.name: one for one in probe.checks()} | {missing.name: missing}
    monkeypatch.setattr(probe, "check", found.__getitem__)
    assert run(["doctor"]) == ExitCode.FAILED
    shown = capsys.readouterr().out
    assert "✗" in shown and "user namespaces: Switch them on." in shown
    assert f"level namespace does not work here; {probe.best()} does" in shown


def _called(*arguments: str, data: str = "") -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(line, input=data, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.skipif(LEVEL == "none", reason="doctor: nothing isolates here")
def test_a_commands_streams_and_exit_code_are_its_own() -> None:
    """Words after `--` are its own, options too; stdin goes in, bytes come out, the exit code is passed on."""
    script = "import sys; sys.stderr.write('no'); print(sys.argv[1:], sys.stdin.read()); sys.exit(77)"
    done = _called("run", *HERE, "--", "python3", "-c", script, "--json", data="given")
    assert (done.returncode, done.stdout, done.stderr) == (77, "['--json'] given\n", "no")
    assert len(_called("run", *HERE, "head -c 5000000 /dev/zero").stdout) == 5_000_000


@pytest.mark.skipif(LEVEL == "none", reason="doctor: nothing isolates here")
def test_who_has_read_enough_ends_the_command() -> None:
    """As in `| head -1`: an endless command does not go on when nobody reads it."""
    line = shlex.join([sys.executable, "-c", PROGRAM, "run", *HERE, "yes"])
    done = subprocess.run(f"{line} | head -1", shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("y\n", "")


@pytest.mark.skipif(LEVEL == "none", reason="doctor: nothing isolates here")
def test_one_word_is_a_line_for_the_shell_and_a_timeout_has_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    """124 as timeout(1), and a warning; with --json the whole result."""
    assert run(["run", *HERE, "--timeout", "0.2", "echo $((1 + 1)); sleep 1000"]) == 124
    captured = capsys.readouterr()
    assert captured.out == "2\n"
    assert "killed after 0.2 s" in captured.err
    assert run(["run", *HERE, "--json", "echo a; exit 3"]) == 3
    (event,) = _events(capsys)
    assert (event["exit_code"], event["reason"], event["stdout"]) == (3, "exited", "a\n")


@pytest.mark.skipif(LEVEL == "none", reason="doctor: nothing isolates here")
def test_files_and_folders_are_copied_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To the directory where the command starts, under their own name or another."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_text("1\n")
    (tmp_path / "file").write_text("2\n")
    files = ["--file", f"{tmp_path}/folder", "--file", f"{tmp_path}/file:other"]
    assert run(["run", *HERE, *files, "--", "cat", "folder/a", "other"]) == ExitCode.OK
    assert capsys.readouterr().out == "1\n2\n"


def test_mistakes_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """No command, and a file that is not there: exit code 2 before anything is started."""
    assert run(["run"]) == ExitCode.USAGE
    assert "no command was given" in capsys.readouterr().err
    assert run(["run", "--file", "/no/such:x", "--", "true"]) == ExitCode.USAGE
    assert "/no/such" in capsys.readouterr().err


OWNER = """
import asyncio, sys
from verifiers.sandboxes.local.provider import LocalProvider
from verifiers.sandboxes.spec import SandboxSpec

async def main():
    async with LocalProvider() as provider:
        print((await provider.create(SandboxSpec())).id, flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.mark.skipif(LEVEL != "namespace", reason="doctor: no namespaces here")
def test_sandboxes_are_listed_and_those_of_a_killed_process_reaped(capsys: pytest.CaptureFixture[str]) -> None:
    """`list` shows them with their owner; once that was killed, `reap` leaves nothing of them."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    name = owner.stdout.readline().strip()
    assert run(["list"]) == ExitCode.OK
    (line,) = [line for line in capsys.readouterr().out.splitlines() if name in line]
    assert f"process {owner.pid}" in line and "gone" not in line
    owner.kill()
    owner.communicate()
    assert run(["reap"]) == ExitCode.OK
    capsys.readouterr()
    assert run(["list", "--json"]) == ExitCode.OK
    assert name not in [event["id"] for event in _events(capsys)]


def test_a_misspelt_option_is_not_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """What begins with a dash before the command is told as an unknown option, with the one that was meant."""
    assert run(["run", *HERE, "--mem", "64", "true"]) == ExitCode.USAGE
    told = capsys.readouterr().err
    assert "unknown option --mem" in told and "Did you mean --memory?" in told
