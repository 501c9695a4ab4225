"""Writes environments, sound ones and broken ones, and validates them, in this process or in one of their own."""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path
from typing import Any

from verifiers.validation.child import run_checks
from verifiers.validation.findings import CHECKS, Request, Result, Severity, Status
from verifiers.validation.supervise import Report, validate

NUMBERS = itertools.count()

CARD = """
# sound

## Task
Add.

## Prompt
The question.

## Reward
`right`: 1 if the reply is the sum.

## Arguments
| name | default | meaning |
|---|---|---|
| `count` | 8 | tasks |

## Data and licence
Made in the module.
"""

PROJECT = """
[project]
name = "{name}"
version = "0.1.0"
keywords = ["test"]
license = "Apache-2.0"
dependencies = ["verifiers>=0.1"]
"""

SOUND = """
import datetime
import itertools

import verifiers as vf

COUNT = itertools.count()


def right(completion, answer, state):
    text = completion[-1]["content"]
    return float(text.strip() == answer)


def tasks(first, last):
    return [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(first, last)]


def load_environment(count: int = 8):
    return vf.SingleTurnEnv(
        dataset=tasks(100, 100 + count), eval_dataset=tasks(200, 200 + count), rubric=vf.Rubric([right])
    )


def oracle(task, messages, state):
    return task["answer"]
"""


class Environments:
    """Writes environments below a folder. Names are never used twice: a module is imported once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, source: str = SOUND, project: str = PROJECT, card: str | None = CARD) -> str:
        """Write one; `{name}` in the project is its name. Returns the name."""
        name = f"toy_{next(NUMBERS)}"
        place = self.folder / name
        place.mkdir()
        (place / f"{name}.py").write_text(textwrap.dedent(source))
        if project:
            (place / "pyproject.toml").write_text(project.replace("{name}", name))
        if card is not None:
            (place / "README.md").write_text(card)
        return name

    def request(self, name: str, **options: Any) -> Request:
        return Request(name, **{"env_dir": str(self.folder), "num_examples": 3, "timeout": 60.0, **options})

    def here(self, name: str, **options: Any) -> list[Result]:
        """All results, made in this process."""
        events: list[dict[str, Any]] = []
        run_checks(self.request(name, **options), events.append)
        return [Result.from_event(event) for event in events if event["event"] == "result"]

    def apart(self, name: str, **options: Any) -> Report:
        """The report of a process of its own."""
        return validate(self.request(name, **options))


def found(results: list[Result]) -> dict[str, str]:
    """Errors and warnings: check → what was found. Fails for a check that failed itself."""
    broken = [result.note for result in results if "the check itself failed" in result.note]
    assert broken == [], broken  # this module's assertions are not rewritten by pytest
    told = [result for result in results if result.status is Status.FOUND]
    serious = [result for result in told if CHECKS[result.check].severity is not Severity.INFO]
    return {result.check: "\n".join(one.what for one in result.findings) for result in serious}


def by_check(results: list[Result]) -> dict[str, Result]:
    return {result.check: result for result in results}
