"""`CodeRubric`: whether the program in the reply passes the task's tests, each submission in a sandbox of its own.

    rubric = CodeRubric()                  # takes the last fenced Python block, and the tests in info["tests"]

The parser takes the program out of the completion; `grading.code` runs and compares. A wrong, missing or unreadable
program is 0, and so is one that exceeds its limits. A failure of the sandboxes, and tests that can not be passed, are
no score: the rollout is unscored.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any
from weakref import WeakKeyDictionary

from verifiers.clocks import paused_clock
from verifiers.errors import GraderError
from verifiers.grading.code import CodeGrade, grade_code
from verifiers.grading.code_run import CodeLimits, Run
from verifiers.grading.code_tests import CodeTests, read_tests
from verifiers.grading.verdict import Verdict, reward_of
from verifiers.parsers.extract import extract_code
from verifiers.parsers.parser import Parser
from verifiers.rubrics.rubric import Rubric, passes_all
from verifiers.sandboxes.default import default_provider
from verifiers.sandboxes.results import ExecResult
from verifiers.sandboxes.sandbox import Process, Provider, Sandbox
from verifiers.sandboxes.spec import SandboxSpec, command
from verifiers.settings import refuse_unknown
from verifiers.types import Info, Messages, RewardFunc, State

_FORMS = ("test", "test_list", "inputs", "test_cases", "input_output")
"""Columns of published data sets by which `info` is known to be a row of one."""


class CodeRubric(Rubric):
    """Adds the reward function `correct_code` (weight 1) after the given ones, and the metrics `pass_rate`, `tests_run`
    and `timeouts`.

    The tests of a task are `info["tests"]`, or `info` itself where it is a row of HumanEval, MBPP, APPS and the like,
    or its `answer`, in any form that `grading.code_tests.read_tests` takes. The verdict and the first failing test are
    left in `state["code_grade"]`.

    Args:
        funcs, weights: further functions.
        parser: default: the environment's if it takes out an answer, else the last Python block after the thinking.
        provider: where sandboxes come from. Default: the pool that this process shares (`sandboxes.default`).
        limits: what a submission may use.
        partial: whether the reward is the share of the tests that were passed, instead of all or nothing.
        spec: the sandboxes. Default: the host's system, no network, and memory by the limits.
        python: the interpreter in them.
        at_a_time: programs graded at once; more would starve each other on this machine, and look slow.
        kwargs: as for `Rubric`; ConfigError for what it does not know.
    """

    reward_timeout: float | None = 600.0
    """`limits` come first; this is for a platform that hangs. Waiting for a free sandbox does not count."""

    def __init__(
        self,
        funcs: Iterable[RewardFunc] | None = None,
        weights: Iterable[float] | None = None,
        parser: Parser | None = None,
        provider: Provider | None = None,
        limits: CodeLimits | None = None,
        partial: bool = False,
        spec: SandboxSpec | None = None,
        python: str = "python3",
        at_a_time: int = 2 * (os.cpu_count() or 1),
        **kwargs: Any,
    ) -> None:
        chosen = parser or Parser(extract_fn=_code_of)
        super().__init__(funcs=funcs, weights=weights, parser=chosen, **kwargs)
        if parser is None:
            self._inherited_parser = chosen
        self.provider = provider
        self.limits = limits or CodeLimits()
        self.partial = partial
        self.spec = spec or grading_spec(self.limits)
        self.python = python
        self.at_a_time = at_a_time
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        self.add_reward_func(self.correct_code)
        for metric in (self.pass_rate, self.tests_run, self.timeouts):
            self.add_metric(metric)

    def _keep(self, attributes: Mapping[str, Any]) -> None:
        """Nothing reads an unknown keyword of this class, and environments pass on what users write: it is an error."""
        makers = (Rubric.__init__, CodeRubric.__init__, type(self).__init__)
        known = {name for maker in makers for name in inspect.signature(maker).parameters} - {"self", "kwargs"}
        refuse_unknown(attributes, known, f"the arguments of {type(self).__name__}")

    def bind_parser(self, parser: Parser) -> None:
        """Use the environment's parser if it takes out an answer; one that passes all text on would not."""
        if not (passes_all(parser) and self.parser is self._inherited_parser):
            super().bind_parser(parser)

    def tests_of(self, info: Info, answer: Any) -> CodeTests:
        """The tests of a task. Raises GraderError if there are none that can be read. Meant to be overridden."""
        known = bool(info.get("tests")) or any(info.get(form) for form in _FORMS)
        return read_tests(info if known else answer)

    async def get_ready(self) -> None:
        """Ask the provider what it can do: one that is not there is known before a program is paid for."""
        await (self.provider or await default_provider()).capabilities()

    async def grade(self, source: str | None, tests: CodeTests) -> CodeGrade:
        """Grade one program. Raises SandboxError if the platform fails."""
        places = self._places.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.at_a_time))
        with paused_clock():  # others are graded
            await places.acquire()
        try:
            provider = self.provider or await default_provider()
            run = in_sandboxes(provider, self.spec)
            return await grade_code(source, tests, run=run, limits=self.limits, python=self.python)
        finally:
            places.release()

    async def correct_code(
        self, parser: Parser, completion: Messages, info: Info, state: State, answer: Any = None, **kwargs: Any
    ) -> float:
        """1.0 if the program passes all tests, else 0.0 (or the share that it passes). Raises GraderError or
        SandboxError if there is no verdict."""
        state.pop("code_grade", None)
        response = parser.parse_answer(completion)
        source = str(response) if response else None
        if source is not None and "```" in source:  # a parser that passes the whole text on
            source = extract_code(source)
        grade = await self.grade(source, self.tests_of(info, answer))
        state["code_grade"] = _record(grade)
        if grade.verdict is Verdict.BAD_GOLD and grade.first_failure is not None:
            raise GraderError(f"the tests fail by themselves: {grade.first_failure.detail}")
        reward = reward_of(grade.verdict)
        return grade.fraction if self.partial else reward

    async def pass_rate(self, state: State) -> float:
        """The share of the tests that the program passed."""
        return float(_graded(state)["pass_rate"])

    async def tests_run(self, state: State) -> float:
        """How many tests there were a verdict on."""
        return float(_graded(state)["tests"])

    async def timeouts(self, state: State) -> float:
        """How many tests ran out of time."""
        return float(_graded(state)["timeouts"])


def grading_spec(limits: CodeLimits) -> SandboxSpec:
    """Sandboxes for one submission: small, and without a network."""
    return SandboxSpec(
        memory=limits.memory + limits.memory // 4 + 64,
        disk=64,
        inodes=10_000,
        pids=64,
        lifetime=4 * limits.total_seconds + 600,
        labels={"purpose": "grading"},
    )


def in_sandboxes(provider: Provider, spec: SandboxSpec | None = None) -> Run:
    """A `Run` for `grade_code` whose places are sandboxes of this provider, each made for one submission."""

    @contextlib.asynccontextmanager
    async def run(count: int) -> AsyncIterator[Sequence[_Place]]:
        async with contextlib.AsyncExitStack() as stack:
            with paused_clock():  # there may be a queue
                sandboxes = await _sandboxes(provider, spec or grading_spec(CodeLimits()), count, stack)
            yield [_Place(sandbox) for sandbox in sandboxes]

    return run


_pairing: WeakKeyDictionary[Provider, asyncio.Lock] = WeakKeyDictionary()
"""Held by who asks a provider for a second sandbox while having one: if many did, all might wait for each other."""


async def _sandboxes(
    provider: Provider, spec: SandboxSpec, count: int, stack: contextlib.AsyncExitStack
) -> list[Sandbox]:
    if count == 1:
        return [await stack.enter_async_context(await provider.create(spec))]
    async with _pairing.setdefault(provider, asyncio.Lock()):
        return [await stack.enter_async_context(await provider.create(spec)) for _ in range(count)]


class _Place:
    """A sandbox as `grading` sees it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def write(self, path: str, data: bytes) -> None:
        await self._sandbox.write(path, data)

    async def exec(self, line: Sequence[str], **options: Any) -> ExecResult:
        return await self._sandbox.exec(line, **options)

    async def start(self, line: Sequence[str], **options: Any) -> Process:
        return await self._sandbox.start(command(line, **options))


def _code_of(text: str) -> str:
    return extract_code(text) or ""


def _record(grade: CodeGrade) -> dict[str, Any]:
    first = grade.first_failure
    return {
        "verdict": grade.verdict.value,
        "tests": len(grade.outcomes),
        "pass_rate": grade.fraction,
        "timeouts": sum(outcome.reason == "timeout" for outcome in grade.outcomes),
        "first_failure": None if first is None else asdict(first),
    }


def _graded(state: State) -> Mapping[str, Any]:
    grade: Mapping[str, Any] | None = state.get("code_grade")
    if grade is None:
        raise GraderError("there is no verdict on the program")
    return grade
