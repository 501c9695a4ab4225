"""`hub` as a real process of a person with nothing but a folder.

    person = Person(tmp_path, hub.url)
    ended = person.hub("whoami", "--json")
    ended.code, ended.data, ended.err
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.variables import variables

PATIENCE = 90.0


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The one JSON object on stdout."""
        (line,) = self.out.splitlines()
        return json.loads(line)


class Person:
    """Runs commands in a folder of their own, in which nothing of the machine's user is seen."""

    def __init__(self, folder: Path, hub_url: str, token: str | None = None) -> None:
        self.folder = folder
        self.credentials = folder / "credentials" / "credentials.toml"
        folder.mkdir(exist_ok=True)
        (folder / "pyproject.toml").write_text("")
        own = {"VF_CONFIG": str(folder / "user.toml"), "VF_CREDENTIALS": str(self.credentials), "NO_COLOR": "1"}
        self.variables = variables({**own, "VF_HUB_URL": hub_url, "COLUMNS": "200"})
        if token is not None:
            self.variables["VF_HUB_TOKEN"] = token

    def hub(self, *arguments: Any, stdin: str = "", **more: str) -> Ended:
        """`hub …` to its end, without a terminal."""
        done = subprocess.run(
            self._line(arguments), cwd=self.folder, env={**self.variables, **more}, input=stdin,
            capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
        return Ended(done.returncode, done.stdout, done.stderr)

    def hub_at_a_terminal(self, *arguments: Any, typed: str) -> Ended:
        """`hub …` with a terminal on stdin and stderr, at which one line is typed. `err` is what it showed."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            self._line(arguments), cwd=self.folder, env=self.variables, stdin=theirs, stderr=theirs,
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        seen = b""
        asked = False
        try:
            while chunk := os.read(ours, 65536):
                seen += chunk
                if not asked and seen.rstrip().endswith((b":", b"]")):  # the prompt: what is typed before is dropped
                    os.write(ours, f"{typed}\n".encode())
                    asked = True
        except OSError:  # the other side is closed: Linux says EIO
            pass
        out, _ = process.communicate(timeout=PATIENCE)
        os.close(ours)
        return Ended(process.returncode, out, seen.decode())

    def _line(self, arguments: tuple[Any, ...]) -> list[str]:
        return [sys.executable, "-m", "verifiers.cli.hub.main", *map(str, arguments)]
