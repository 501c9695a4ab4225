"""Is a program right? `grade_code(source, tests, run=…)` on extracted source, with tests of any kind of `code_tests`.

    grade = await grade_code(extract_code(reply), read_tests(task["info"]["tests"]), run=in_sandboxes(provider))
    grade.verdict, grade.fraction, grade.first_failure
    reward = reward_of(grade.verdict)                     # raises for what is no score

The rules, each of which has its tricks in `validation/tricks.py`:

- A submission runs in a sandbox that nobody else uses, and expected values never enter it. It returns plain data, which
  is compared as data in this process; test code that is more than simple asserts runs in a second sandbox and talks to
  the submission through plain data only.
- A test is passed if its answer came, was asked for, came once, and is right. Everything else fails it with a reason:
  an early exit, a crash, too much time, memory or output, a forged record.
- A failure of the platform is raised (`SandboxError`), and a fault of the tests is `bad_gold`: neither is a score. A
  submission that makes its own sandbox unusable, and then a second one, has failed the test.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from verifiers.errors import SandboxBusyError, SandboxError, SandboxPathError, SandboxUnreachableError
from verifiers.grading.code_asserts import AssertTest
from verifiers.grading.code_compare import same, same_output
from verifiers.grading.code_data import encode
from verifiers.grading.code_run import CodeLimits, Conversation, Place, Run, StoppedError, limited
from verifiers.grading.code_submission import PlatformError, Submission, WreckedError, value_of
from verifiers.grading.code_tests import CallTest, CodeTests, ScriptTest, StdinTest, Test
from verifiers.grading.verdict import Verdict
from verifiers.programs import joined

_ANSWERS = ("value", "object", "raised", "message")
_QUESTIONS = ("name", "object", "attribute", "args", "kwargs", "keep")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One test. reason: "" if passed, else wrong, error, timeout, memory, output_limit, crashed, syntax, no_verdict or
    not_run; detail: for people. seconds: on the clock."""

    test: str
    passed: bool
    reason: str = ""
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CodeGrade:
    """The verdict on a submission, and the outcome of each test in order."""

    verdict: Verdict
    outcomes: tuple[Outcome, ...] = ()

    @property
    def passed(self) -> int:
        """How many tests were passed."""
        return sum(outcome.passed for outcome in self.outcomes)

    @property
    def fraction(self) -> float:
        """The share of the tests that were passed; 0.0 if none ran."""
        return self.passed / len(self.outcomes) if self.outcomes else 0.0

    @property
    def first_failure(self) -> Outcome | None:
        """The first test that was not passed."""
        return next((outcome for outcome in self.outcomes if not outcome.passed), None)


class _BadTestsError(Exception):
    """The tests fail by themselves, whatever the submission is."""


async def grade_code(
    source: str | None, tests: CodeTests, *, run: Run, limits: CodeLimits | None = None, python: str = "python3"
) -> CodeGrade:
    """Grade one program.

    Args:
        source: the program, or None if there is none.
        tests: see `code_tests.read_tests`.
        run: enters fresh, isolated places: one for the submission, and one for test code that is no simple asserts.
        limits: of each test and of all.
        python: the interpreter, in that place.

    Returns:
        `right` if every test was passed, `wrong`, `no_answer` or `unparsable` (no Python, or too long) otherwise;
        `bad_gold` if the tests fail by themselves.

    Raises:
        SandboxError: the platform failed.
    """
    limits = limits or CodeLimits()
    if source is None or not source.strip():
        return CodeGrade(Verdict.NO_ANSWER)
    if len(source) > limits.source or not _is_text(source):
        return CodeGrade(Verdict.UNPARSABLE)
    try:
        outcomes = await _Grading(source, tests, run, limits, python).outcomes()
    except _BadTestsError as error:
        return CodeGrade(Verdict.BAD_GOLD, (Outcome("the test code", False, "error", str(error)),))
    return CodeGrade(_verdict(outcomes), tuple(outcomes))


def _is_text(source: str) -> bool:
    try:
        return "\0" not in source and bool(source.encode())
    except UnicodeEncodeError:
        return False


def _verdict(outcomes: Sequence[Outcome]) -> Verdict:
    if outcomes and all(outcome.passed for outcome in outcomes):
        return Verdict.RIGHT
    return Verdict.UNPARSABLE if any(one.reason == "syntax" for one in outcomes) else Verdict.WRONG


@cache
def _judge_program() -> str:
    folder = Path(__file__).parent
    return joined(folder / "code_data.py", folder / "code_judge.py")


class _Grading:
    """All tests of one submission."""

    def __init__(self, source: str, tests: CodeTests, run: Run, limits: CodeLimits, python: str) -> None:
        self._source, self._tests, self._run, self._limits, self._python = source, tests, run, limits, python
        self._deadline = 0.0
        self._timeouts = 0

    async def outcomes(self) -> list[Outcome]:
        """The outcome of every test, in order."""
        done: list[list[Outcome]] = []
        died_at = -1
        self._deadline = time.monotonic() + self._limits.total_seconds
        while len(done) < len(self._tests.cases):
            try:
                await self._go_on(done)
            except PlatformError as error:
                raise SandboxError(str(error)) from error
            except WreckedError:
                # Once may be the platform's fault; in a fresh sandbox, at the same test, it is the submission's.
                if died_at == len(done):
                    ended = StoppedError("crashed", "it made its sandbox unusable, twice")
                    done.append([_failed(self._tests.cases[died_at], ended)])
                died_at = len(done)
        return [outcome for outcomes in done for outcome in outcomes]

    async def _go_on(self, done: list[list[Outcome]]) -> None:
        """Grade what is not done yet, in fresh places."""
        tests = self._tests.cases[len(done) :]
        asked = time.monotonic()
        async with self._run(2 if any(isinstance(test, ScriptTest) for test in tests) else 1) as places:
            self._deadline += time.monotonic() - asked  # a queue for sandboxes is not the submission's time
            submission = Submission(places[0], self._source, self._tests, self._limits, self._python)
            if any(isinstance(test, StdinTest) for test in tests):
                await submission.prepare()
            try:
                for test in tests:
                    with _wrecked():
                        outcomes = await self._outcomes_of(test, submission, places[-1])
                    done.append(outcomes)
            finally:
                with _wrecked():
                    await submission.leave()

    def _left(self) -> float:
        """Seconds until the deadline of all tests. Raises StoppedError if there are none."""
        left = self._deadline - time.monotonic()
        if left <= 0 or self._timeouts >= self._limits.timeouts:
            raise StoppedError("not_run", "too much time was spent on other tests")
        return left

    async def _outcomes_of(self, test: Test, submission: Submission, judges: Place) -> list[Outcome]:
        began = time.monotonic()
        try:
            if isinstance(test, ScriptTest):
                return await self._script(test, submission, judges)
            passed = await self._passes(test, submission)
            stopped = None if passed else StoppedError("wrong")
        except StoppedError as error:
            stopped = error
            self._timeouts += error.reason == "timeout"
        return [_failed(test, stopped, began) if stopped else Outcome(_name_of(test), True, seconds=_since(began))]

    async def _passes(self, test: StdinTest | CallTest | AssertTest, submission: Submission) -> bool:
        if isinstance(test, StdinTest):
            printed = await submission.printed(test.input, self._left())
            return same_output(printed.decode(errors="replace"), test.output)
        if isinstance(test, CallTest):
            args, kwargs = [encode(arg) for arg in test.args], {name: encode(arg) for name, arg in test.kwargs.items()}
            question = {"name": test.name, "args": args, "kwargs": kwargs, "keep": False}
            value = value_of(await submission.ask(question, self._left()))
            return any(same(value, expected) for expected in test.expected)
        answers = [await submission.ask({"expression": call}, self._left()) for call in test.calls]
        values = [value_of(answer) for answer in answers]
        try:
            return test.holds(values)
        except Exception as error:  # boundary: comparing what it gave raises, as in `abs(None - 1) < 0.1`
            raise StoppedError("wrong", f"{type(error).__name__}: {error}"[:500]) from None

    # --- test code in a sandbox of its own --------------------------------------------------------------------------

    async def _script(self, test: ScriptTest, submission: Submission, place: Place) -> list[Outcome]:
        began = time.monotonic()
        report = await self._judged(test, submission, place)
        entries = [
            Outcome(str(text), passed is True, "" if passed is True else "wrong", str(detail))
            for text, passed, detail in report["entries"]
        ]
        if not report["calls"]:
            raise _BadTestsError(report["ended"] or "it never calls the submission")
        if report["ended"]:
            return [*entries, _failed(test, StoppedError("wrong", report["ended"]), began)]
        return entries or [Outcome(_name_of(test), True, seconds=_since(began))]

    async def _judged(self, test: ScriptTest, submission: Submission, place: Place) -> dict[str, Any]:
        """The judge's report. Raises StoppedError if it gives none once the submission was asked something.

        What the tests do before that has a time of its own: a slow submission must not make them look bad.
        """
        self._left()
        began = time.monotonic()
        line = limited([self._python, "-I", "-c", _judge_program()], self._limits, self._limits.total_seconds)
        calls, nonce = 0, secrets.token_hex(16)
        with _judging():
            judge = await Conversation.begin(place, line, self._limits)
        tests = {"code": test.code, "setup": test.setup, "names": dict(test.names), "call": test.call, "nonce": nonce}
        try:
            with _judging():
                await judge.tell(tests, self._limits.total_seconds)
                message = await judge.hear(self._limits.total_seconds)
            self._deadline += time.monotonic() - began
            while "nonce" not in message:
                calls += 1
                reply = await self._reply(message, submission)
                with _judging():
                    await judge.tell(reply, self._left())
                    message = await judge.hear(self._left())
            with _judging():
                ended = await judge.wait(self._left())
        except StoppedError as stopped:
            if not calls:
                raise _BadTestsError(f"{stopped.reason} {stopped.detail}".strip()) from None
            raise
        finally:
            with _judging():
                await judge.leave()
        if message["nonce"] != nonce or ended.exit_code != 0:
            raise StoppedError("no_verdict", "the judge did not end well")
        return message

    async def _reply(self, message: dict[str, Any], submission: Submission) -> dict[str, Any]:
        """What the submission answers to the judge; only known parts of either go through."""
        question = {key: message[key] for key in _QUESTIONS if key in message}
        try:
            answer = await submission.ask(question, self._left())
        except StoppedError as stopped:
            self._timeouts += stopped.reason == "timeout"
            return {"no_answer": f"{stopped.reason} {stopped.detail}".strip()}
        reply = {key: answer[key] for key in _ANSWERS if key in answer}
        if "raised" in reply:
            kinds = reply["raised"] if isinstance(reply["raised"], list) else []
            return {"raised": [str(kind) for kind in kinds] or ["?"], "message": str(reply.get("message"))[:500]}
        return reply if reply.keys() & {"value", "object"} else {"no_answer": "an answer that is none"}


@contextlib.contextmanager
def _wrecked() -> Iterator[None]:
    try:
        yield
    except (SandboxUnreachableError, SandboxBusyError):  # the way to it, which nothing inside has to do with
        raise
    except (SandboxError, SandboxPathError) as error:
        raise WreckedError from error


@contextlib.contextmanager
def _judging() -> Iterator[None]:
    try:
        yield
    except (SandboxError, SandboxPathError) as error:
        raise PlatformError(f"the sandbox of the tests failed: {error}") from error


def _failed(test: Test, stopped: StoppedError, began: float | None = None) -> Outcome:
    return Outcome(_name_of(test), False, stopped.reason, stopped.detail, _since(began) if began else 0.0)


def _since(began: float) -> float:
    return time.monotonic() - began


def _name_of(test: Test) -> str:
    """A test in a few words, for people."""
    if isinstance(test, AssertTest):
        text = test.source
    elif isinstance(test, CallTest):
        text = f"{test.name}({', '.join(map(repr, test.args))})"
    else:
        text = f"input {test.input!r}" if isinstance(test, StdinTest) else (test.call or test.code)
    return text if len(text) <= 200 else f"{text[:197]}..."
