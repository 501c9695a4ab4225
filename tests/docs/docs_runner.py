"""Run one page's code blocks in order, as a reader would: one folder, one Python session, one shell per block.

Everything stays on this machine. A command that names a hosted model talks to a loopback endpoint, because
`OPENAI_BASE_URL` points there; `-m local` is the real embedded model. What a block shows as output must appear in
the real output, in order; `…` stands for anything.
"""

import ast
import contextlib
import io
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docs_pages import ROOT, Block

COMMANDS = ("sandboxd", "vf-eval", "vf-init", "vf-install", "vf-sandbox", "vf-sft", "vf-train", "vf-validate")
TIME_LIMIT_S = 240


class Session:
    """What the blocks of one page share."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.folder = folder
        self.env = dict(env)
        self.namespace: dict[str, Any] = {"__name__": "__main__"}
        shutil.copytree(
            ROOT / "environments",
            folder / "environments",
            ignore=shutil.ignore_patterns("outputs", "__pycache__", "*.egg-info"),
        )

    def run(self, block: Block) -> None:
        """Run or check one block by its language; an unknown language is an error of the page."""
        if name := block.directions.get("file"):
            target = self.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text)
        handler = {
            "python": self.python,
            "console": self.console,
            "toml": self.toml,
            "json": lambda block: json.loads(block.text),
            "text": lambda _: None,
        }.get(block.language)
        assert handler, f"{block.place}: a block says which language it is in, one of those that are tested"
        handler(block)

    def python(self, block: Block) -> None:
        """Execute in the page's namespace; comparing what it prints with a following `text` block is not done."""
        padded = "\n" * block.line + block.text
        code = compile(
            padded, str(block.page), "exec", dont_inherit=True, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        )
        if "checked" in block.directions or "file" in block.directions:
            return
        with contextlib.redirect_stdout(io.StringIO()):
            exec(code, self.namespace)  # noqa: S102 - running the documentation is the point

    def toml(self, block: Block) -> None:
        """Parse it; an evaluation's file is read by the command itself, and a `--dry-run` shows that it resolves."""
        parsed = tomllib.loads(block.text)
        if isinstance(parsed.get("eval"), list) and (name := block.directions.get("file")):
            self.shell(f"vf-eval {name} --dry-run", block, expected_code=0)

    def console(self, block: Block) -> None:
        """Lines after `$ ` are commands, a final backslash continues one; the others must be seen in the output."""
        commands, shown = parse_console(block.text)
        assert commands, f"{block.place}: a console block shows commands after `$ `"
        if "checked" in block.directions:
            for command in commands:
                self.check(command, block)
            return
        for number, command in enumerate(commands):
            last = number == len(commands) - 1
            output = self.shell(command, block, int(block.directions.get("exit", "0")) if last else 0)
            missing = first_missing(shown[number], output)
            assert missing is None, f"{block.place}: not in the output of `{command}`: {missing!r}\n{output}"

    def shell(self, command: str, block: Block, expected_code: int) -> str:
        """Run one command in the page's folder; returns stdout and stderr as they came."""
        done = subprocess.run(
            ["/bin/bash", "-euo", "pipefail", "-c", command],
            cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=TIME_LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == expected_code, (
            f"{block.place}: `{command}` ended with {done.returncode}, not {expected_code}\n{done.stdout}"
        )
        return done.stdout

    def check(self, command: str, block: Block) -> None:
        """As much as can be said about a command that is not run: its options parse, its make target exists."""
        program, *arguments = command.split()
        if program == "vf-eval":
            self.shell(f"{command} --dry-run", block, expected_code=0)
        elif program == "make":
            done = subprocess.run(
                ["make", "-n", "-C", str(ROOT), *arguments], capture_output=True, check=False
            )
            assert done.returncode == 0, f"{block.place}: no make target for `{command}`"
        else:
            self.shell(f"bash -n <<< {json.dumps(command)}", block, expected_code=0)


def parse_console(text: str) -> tuple[list[str], list[list[str]]]:
    """The commands of a console block, and for each the output lines shown below it."""
    commands: list[str] = []
    shown: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            commands.append(line[2:])
            shown.append([])
        elif commands and commands[-1].endswith("\\"):
            commands[-1] += "\n" + line
        elif commands and line.strip():
            shown[-1].append(line)
    return commands, shown


def first_missing(shown: list[str], output: str) -> str | None:
    """The first shown line that does not come in the output after those before it, or None."""
    lines = iter(re.sub(r"\x1b\[[0-9;]*m", "", output).splitlines())
    for wanted in shown:
        pattern = re.compile(r"\s*" + ".*".join(map(spaced, wanted.strip().split("…"))) + r"\s*")
        if not any(pattern.fullmatch(line) for line in lines):
            return wanted
    return None


def spaced(text: str) -> str:
    """A pattern for the text in which any run of blanks stands for any other: columns may be wider."""
    return r"\s+".join(re.escape(word) for word in re.split(r"\s+", text))


def page_environment(base: Mapping[str, str], base_url: str) -> dict[str, str]:
    """The environment variables of a page's commands: our commands first on PATH, a loopback endpoint, no colours."""
    path = f"{Path(sys.executable).parent}:{base.get('PATH', '')}"
    return {**base, "PATH": path, "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "loopback", "NO_COLOR": "1"}
