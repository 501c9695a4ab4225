"""A submission in its place: as a program that is run, and as functions that are called.

Whatever it answers is plain data of unknown worth. Who judges it is elsewhere (`code`).
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

from verifiers.grading.code_data import NotPlainError, decode
from verifiers.grading.code_run import (
    CodeLimits,
    Conversation,
    Place,
    StoppedError,
    limited,
    wall,
    why_ended,
)
from verifiers.grading.code_tests import CodeTests
from verifiers.programs import joined

PROGRAM = "program.py"


class PlatformError(Exception):
    """Something failed where nothing of the submission has run."""


class WreckedError(Exception):
    """A sandbox failed while the submission could do harm to it: killed what runs it, or removed what it needs."""


@cache
def _candidate_program() -> str:
    folder = Path(__file__).parent
    return joined(folder / "code_data.py", folder / "code_candidate.py")


class Submission:
    """The submission in its place: as a program that is run, and as functions that are called."""

    def __init__(self, place: Place, source: str, tests: CodeTests, limits: CodeLimits, python: str) -> None:
        self.place = place
        self._source, self._tests, self._limits, self._python = source, tests, limits, python
        self._talk: Conversation | None = None
        self._unusable: StoppedError | None = None
        self._has_run = False

    async def prepare(self) -> None:
        """Write the program to a file, and see that there is an interpreter, before the submission could hinder it."""
        await self.place.write(PROGRAM, self._source.encode())
        ended = await self.place.exec([self._python, "-I", "-c", "print(6 * 7)"], timeout=wall(self._limits.seconds))
        if ended.exit_code != 0 or ended.stdout.strip() != b"42":
            raise PlatformError(f"{self._python} does not run there: {ended.stderr.decode(errors='replace')[-200:]}")

    async def printed(self, given: str, seconds: float) -> bytes:
        """What the program prints. Raises StoppedError if it does not end well."""
        self._has_run = True
        allowed = self._limits.seconds
        ended = await self.place.exec(
            limited([self._python, PROGRAM], self._limits, allowed),
            stdin=given.encode(errors="surrogateescape"),
            timeout=min(wall(allowed), seconds),
            max_output=self._limits.output,
            output_limit=4 * self._limits.output,
            kill_leftovers=True,
        )
        stopped = why_ended(ended)
        if stopped is not None:
            raise stopped
        return ended.stdout

    async def ask(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to a call. Raises StoppedError if there is none; always, if the program does not load."""
        if self._unusable is not None:
            raise self._unusable
        seconds = min(wall(self._limits.seconds), seconds)
        try:
            if self._talk is None:
                self._talk = await self._loaded(seconds)
            return await self._talk.ask(question | {"seconds": self._limits.seconds}, seconds)
        except StoppedError:
            self._talk = None  # the next call gets a new process
            raise

    async def leave(self) -> None:
        """Speak to it no more."""
        if self._talk is not None:
            await self._talk.leave()

    async def _loaded(self, seconds: float) -> Conversation:
        line = limited([self._python, "-I", "-c", _candidate_program()], self._limits, None)
        talk = await Conversation.begin(self.place, line, self._limits)
        try:
            await talk.hear(wall(self._limits.seconds))
        except StoppedError as stopped:  # nothing of the submission has run in this process
            error = WreckedError if self._has_run else PlatformError
            raise error(f"{self._python} does not start there: {stopped.reason} {stopped.detail}") from None
        self._has_run = True
        try:
            answer = await talk.ask({"units": self._units(), "seconds": self._limits.seconds}, seconds)
            if "raised" in answer:
                raise stopped_by(answer)
        except StoppedError as stopped:
            self._unusable = stopped
            await talk.end()
            raise
        return talk

    def _units(self) -> list[str]:
        """The parts of the program: a submission either continues the prompt or repeats its function."""
        prompt, name = self._tests.prompt, self._tests.entry_point
        setup = [self._tests.setup] if self._tests.setup else []
        if not prompt:
            return [self._source, *setup]
        if name is not None and not re.search(rf"(?m)^(?:async\s+def|def|class)\s+{re.escape(name)}\b", self._source):
            return [prompt + self._source, *setup]
        try:
            ast.parse(prompt)
        except SyntaxError:  # a head without a body
            return [self._source, *setup]
        return [prompt, self._source, *setup]


def stopped_by(answer: dict[str, Any]) -> StoppedError:
    kinds, message = answer.get("raised"), answer.get("message")
    kind = str(kinds[0]) if isinstance(kinds, list) and kinds else "?"
    reason = {"SyntaxError": "syntax", "IndentationError": "syntax", "TabError": "syntax", "MemoryError": "memory"}
    return StoppedError(reason.get(kind, "error"), f"{kind}: {message}"[:500])


def value_of(answer: dict[str, Any]) -> Any:
    """The plain value of an answer. Raises StoppedError if it has none."""
    if "raised" in answer:
        raise stopped_by(answer)
    try:
        return decode(answer["value"])
    except (KeyError, NotPlainError, RecursionError) as error:
        raise StoppedError("wrong", f"no plain data: {error}") from None
