"""`vf-eval` as a real process, and what must hold of a run whatever went wrong in it.

    command = Command(tmp_path)
    command.environment("toy", SOURCE)
    ended = command.run("toy", server, "-n", 4)
    records = settled(ended.folder, planned=4)
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.mock_openai import MockOpenAI
from tests.support.variables import variables

PATIENCE = 90.0
"""Seconds after which a command that should have ended is killed, so that a failing test ends."""


@dataclass(frozen=True)
class Ended:
    """How a command ended. `folder` is its run's, None if it made none."""

    code: int
    out: str
    err: str
    folder: Path | None


class Command:
    """Runs commands in a folder of their own, in which nothing of the user's is seen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "pyproject.toml").write_text("")
        own = {"VF_CONFIG": str(folder / "user.toml"), "HF_HOME": str(folder / "hf"), "NO_COLOR": "1"}
        self.variables = variables(own)

    def environment(self, name: str, source: str) -> None:
        """Write a local environment."""
        place = self.folder / "environments" / name
        place.mkdir(parents=True)
        (place / f"{name}.py").write_text(source)
        (place / "pyproject.toml").write_text(f'[project]\nname = "{name}"\nversion = "0.1.0"\n')

    def line(self, name: str, server: MockOpenAI, *flags: Any) -> list[str]:
        """The command line that evaluates an environment with one rollout a task, against the mock's model `m`."""
        given = ["-b", server.base_url, "-m", "m", "-r", 1, "-o", "outputs", *flags]
        return [sys.executable, "-m", "verifiers.cli.eval", name, *map(str, given)]

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """A process in this folder."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            list(arguments), cwd=self.folder, env=self.variables, text=True, **{**pipes, **options}
        )

    def run(self, name: str, server: MockOpenAI, *flags: Any, shell: str | None = None) -> Ended:
        """Evaluate to the end. `shell` is a line in which "$@" is the command."""
        line = self.line(name, server, *flags)
        return self.end(self.start(*line) if shell is None else self.start("bash", "-c", shell, "-", *line))

    def end(self, process: subprocess.Popen[str]) -> Ended:
        """Wait for the end. A command that does not end is killed, and the test fails."""
        try:
            out, err = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"the command did not end:\n{out}\n{err}") from None
        return Ended(process.returncode, out or "", err or "", self.run_folder())

    def run_folder(self) -> Path | None:
        """The folder of the newest run."""
        found = sorted(self.folder.glob("outputs/**/results.jsonl"), key=lambda path: path.stat().st_mtime)
        return found[-1].parent if found else None

    def wait_for_records(self, number: int) -> Path:
        """The run's folder, as soon as it holds that many records."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            folder = self.run_folder()
            if folder is not None and (folder / "results.jsonl").read_bytes().count(b"\n") >= number:
                return folder
            time.sleep(0.02)
        raise AssertionError("no records appeared")


def settled(folder: Path | None, planned: int) -> list[dict[str, Any]]:
    """The records of a finished run, after a look at what must hold: each planned rollout once, a number for scored
    ones only, a named error for each other, and figures that are those of the records."""
    assert folder is not None
    records = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert len({record["rollout_id"] for record in records}) == len(records) == planned
    for record in records:
        scored = record["outcome"] in ("ok", "truncated")
        assert scored == (record["reward"] is not None)
        assert scored or record["error"]["kind"] not in ("", "internal")
    rewards = [record["reward"] for record in records if record["reward"] is not None]
    summary = json.loads((folder / "summary.json").read_text())
    outcomes = ("ok", "failed", "unscored", "truncated")
    counted = {outcome: sum(record["outcome"] == outcome for record in records) for outcome in outcomes}
    assert summary["counts"] == counted and sum(counted.values()) == planned
    assert summary["reward"]["n"] == len(rewards)
    assert summary["reward"]["mean"] == (math.fsum(rewards) / len(rewards) if rewards else None)
    left_out = [record["error"]["kind"] for record in records if record["reward"] is None]
    assert {kind: left_out.count(kind) for kind in left_out} == {
        kind: group["count"] for kind, group in summary["errors"].items()
    }
    return records
