"""grade_code in real sandboxes: every kind of test, every way to fail, and tricks that must not pay."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.sandbox_providers import PROVIDERS
from verifiers.errors import SandboxDiedError, SandboxError, SandboxUnreachableError
from verifiers.grading.code import CodeGrade, grade_code
from verifiers.grading.code_run import CodeLimits, Run
from verifiers.grading.code_tests import CodeTests, read_tests
from verifiers.grading.verdict import Verdict
from verifiers.rubrics.code_rubric import grading_spec, in_sandboxes
from verifiers.sandboxes.sandbox import Provider
from verifiers.validation.tricks import Trick, tricks

LIMITS = CodeLimits(seconds=1, memory=256, total_seconds=30, timeouts=1)
RIGHT = """
def mix(a, b):
    return a * b + 7

if __name__ == "__main__":
    print(mix(*map(int, input().split())))
"""
FORMS: dict[str, Any] = {
    "call": [{"name": "mix", "args": [3, 4], "expected": 19}],
    "assert": "assert mix(5, 6) == 37\nassert abs(mix(1, 2) - 9) < 1e-6",
    "script": "for i in range(3):\n    assert mix(i, i) == i * i + 7",
    "stdin": [{"input": "3 4\n", "output": "19\n"}],
}
ALL = CodeTests(tuple(test for form in FORMS.values() for test in read_tests(form).cases))


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def provider(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Provider]:
    async with PROVIDERS["local"](tmp_path_factory.mktemp("sandboxes")) as provider:
        yield provider


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run(provider: Provider) -> Run:
    return await run_in(provider)


async def run_in(provider: Provider) -> Run:
    level = (await provider.capabilities()).isolation
    return in_sandboxes(provider, replace(grading_spec(LIMITS), isolation=level))


async def graded(run: Run, source: str | None, form: Any, **limits: Any) -> CodeGrade:
    return await grade_code(source, read_tests(form), run=run, limits=replace(LIMITS, **limits))


def reasons(grade: CodeGrade) -> list[str]:
    return [outcome.reason for outcome in grade.outcomes]


async def test_right_program_passes_tests_of_every_kind(run: Run):
    """Calls, asserts, test code and programs that print: all are passed by the right program."""
    grade = await graded(run, RIGHT, ALL)
    assert grade.verdict is Verdict.RIGHT and grade.fraction == 1.0 and grade.first_failure is None
    assert grade.passed == len(grade.outcomes) == 5


async def test_partial_results_are_kept(run: Run):
    """Each test has its outcome, whatever the ones before it did to the process; the first failure says why."""
    bad = "if a == 3: raise KeyError('three')\n    if a == 5: import os; os.kill(os.getpid(), 11)\n    return"
    source = RIGHT.replace("return", bad)
    grade = await graded(run, source, ALL)
    assert grade.verdict is Verdict.WRONG and reasons(grade) == ["error", "crashed", "", "", "error"]
    assert grade.first_failure is not None and "KeyError: 'three'" in grade.first_failure.detail
    assert grade.fraction == 2 / 5


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("x = bytearray(10**9)", "memory"),
        ("return 'x' * 3_000_000", "output_limit"),
        ("import os; os._exit(0)", "no_verdict"),
        ("import os; os.abort()", "crashed"),
        ("return [][1]", "error"),
        ("return None", "wrong"),
    ],
)
async def test_every_way_to_fail_has_its_reason(run: Run, body: str, reason: str):
    """A program over its time, memory or output has failed the test; so has one that ends, breaks or is wrong."""
    grade = await graded(run, f"def f(x):\n    {body}", [{"name": "f", "args": [1], "expected": 2}])
    assert grade.verdict is Verdict.WRONG and reasons(grade) == [reason]


@pytest.mark.parametrize(
    ("program", "reason"),
    [("while True: pass", "timeout"), ("print('x' * 3_000_000)", "output_limit"), ("print(2); exit(3)", "error"),
     ("import sys; sys.stdin.close(); print(2)", ""), ("import sys; sys.stdout.buffer.write(b'2')", ""),
     ("x = 3", "wrong"), ("print(10**5000 and 2)", ""), ("x = bytearray(10**9)", "memory")],
)  # fmt: skip
async def test_programs_that_print(run: Run, program: str, reason: str):
    """A program is right if it prints what is expected and ends with 0, within its limits."""
    grade = await graded(run, program, [{"input": "1\n", "output": "2\n"}])
    assert reasons(grade) == [reason]


@pytest.mark.parametrize(
    ("source", "verdict"),
    [(None, "no_answer"), (" \n", "no_answer"), ("def f(:", "unparsable"), ("f = '\ud800'", "unparsable"),
     ("f = 1\0", "unparsable"), ("#" * 100_001, "unparsable")],
)  # fmt: skip
async def test_what_is_no_program(run: Run, source: str | None, verdict: str):
    """Nothing, no Python, and what is too long: each has its verdict, and all are scores of 0."""
    assert (await graded(run, source, FORMS["call"])).verdict == verdict


async def test_prompt_is_continued_or_repeated(run: Run):
    """A submission is the rest of the prompt's function, or the whole of it without the prompt's imports."""
    check = "def check(candidate):\n    for i in (1, 4):\n        assert candidate(i) == math.sqrt(i)"
    row = {"prompt": "import math\n\ndef f(x):\n    '''Doc.'''\n", "entry_point": "f", "test": check}
    whole = "from __future__ import annotations\ndef f(x):\n    return math.sqrt(x)"
    for source in ("    return math.sqrt(x)\n", whole):
        assert (await graded(run, source, row)).verdict is Verdict.RIGHT
    assert (await graded(run, "    return x\n", row)).verdict is Verdict.WRONG


async def test_judge_speaks_to_objects_of_the_submission(run: Run):
    """Test code may make objects, call their methods, iterate and catch exceptions, all through plain data."""
    source = """
class Stack:
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item); return self
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __getitem__(self, i): return self.items[i]
def same(stack): return stack.items == [1, 2]
"""
    tests = """
stack = Stack()
stack.push(1).push(2)
assert len(stack) == 2 and list(stack) == [1, 2] and stack.items == [1, 2] and stack[1] == 2
assert same(stack)
try:
    stack[7]
    assert False
except IndexError:
    pass
"""
    grade = await graded(run, source, tests)
    assert grade.verdict is Verdict.RIGHT, grade
    assert (await graded(run, source.replace("[1, 2]", "[2, 1]"), tests)).verdict is Verdict.WRONG


YES = """
import cmath, collections
cmath.isclose = lambda *a, **k: True
Counter = collections.Counter = lambda *a: "no"
class Yes:
    def __getattr__(self, name): return lambda *a: True
def f(x): return Yes() if x else globals().get("WANT", "no")
"""


@pytest.mark.parametrize(
    ("setup", "code"),
    [
        ("WANT = 2", "assert f(0) == WANT"),
        ("import cmath", "assert cmath.isclose(f(0), 2)"),
        ("from collections import Counter", "assert f(0) == Counter('aab')"),
        ("", "assert f(0) == Counter('aab')"),
        ("", "assert f(1).startswith('a')"),
        ("", "for i in range(1, 3): assert f(i).issubset({i})"),
        ("", "assert f(1).__eq__(3)"),
    ],
)
async def test_a_submission_does_not_say_what_it_is_compared_with(run: Run, setup: str, code: str):
    """Neither by giving the names of the tests' own helpers, nor by objects whose methods say yes."""
    grade = await graded(run, YES, {"test_list": [code], "test_setup_code": setup})
    assert grade.verdict is Verdict.WRONG, grade


async def test_code_that_makes_objects_for_the_tests_runs_with_the_judge_or_the_submission(run: Run):
    """MBPP's trees are made by code beside the asserts, also where a condition needs a name of that code."""
    source = "class Node:\n    left = right = None\ndef depth(n): return 1 + depth(n.left) if n else 0"
    setup = "want = 2\nroot = Node()\nroot.left = Node()"
    for condition in ("2", "want"):
        form = {"test_list": ["assert depth(root.left) == 1", f"assert depth(root) == {condition}"]}
        grade = await graded(run, source, form | {"test_setup_code": setup})
        assert grade.verdict is Verdict.RIGHT, grade


@pytest.mark.parametrize(
    "tests",
    ["x = 1", "import missing_module\nfor i in range(2): assert f(i)", "while True: pass", "raise SystemExit\nf(1)"],
)
async def test_tests_that_fail_by_themselves_are_no_score(run: Run, tests: str):
    """Test code that breaks before it asks the submission anything, or never asks, is bad gold."""
    assert (await graded(run, "def f(x): return True", tests, total_seconds=1)).verdict is Verdict.BAD_GOLD


async def test_time_of_all_tests_is_bounded(run: Run):
    """After too many tests out of time, or too much time in all, the others have failed without being run."""
    forms = [{"name": "f", "args": [n], "expected": n} for n in range(4)]
    grade = await graded(run, "def f(x):\n    while x != 1: pass\n    return x", forms)
    assert reasons(grade) == ["timeout", "not_run", "not_run", "not_run"]


async def test_an_exception_does_not_end_an_iteration_of_the_judge(run: Run):
    """StopIteration out of a call would make `all(map(f, …))` true; it is an error there."""
    source = "def f(x):\n    raise StopIteration"
    grade = await graded(run, source, "values = [1, 2]\nassert all(map(f, values))")
    assert grade.verdict is Verdict.WRONG and grade.passed == 0


async def test_a_judge_whose_sandbox_fails_is_no_score(run: Run):
    """Where the second sandbox fails, the platform did: whatever the submission is."""

    @contextlib.asynccontextmanager
    async def broken(count: int) -> AsyncIterator[Any]:
        async with run(1) as (place,), _Failing(SandboxDiedError) as (judge,):
            yield [place, judge]

    with pytest.raises(SandboxError, match="of the tests"):
        await grade_code(RIGHT, read_tests(FORMS["script"]), run=broken, limits=LIMITS)


@pytest.mark.parametrize("kind", ["call", "stdin"])
async def test_a_place_without_an_interpreter_is_no_score(run: Run, kind: str):
    """Where Python does not start, no submission is wrong: the platform is."""
    with pytest.raises(SandboxError, match="no-such-python does not"):
        await grade_code(RIGHT, read_tests(FORMS[kind]), run=run, limits=LIMITS, python="no-such-python")


class Dying:
    """A place that dies at its first use, `times` times in all."""

    def __init__(self, run: Run, times: int, error: type[SandboxError] = SandboxDiedError) -> None:
        self.run, self.times, self.error = run, times, error
        self.entered = 0

    def __call__(self, count: int) -> Any:
        self.entered += 1
        return _Failing(self.error) if self.entered <= self.times else self.run(count)


class _Failing:
    def __init__(self, error: type[SandboxError]) -> None:
        self.error = error

    async def __aenter__(self) -> Any:
        return [self]

    async def __aexit__(self, *_: object) -> None:
        pass

    async def start(self, *_: Any, **__: Any) -> Any:
        raise self.error("gone")


async def test_a_dead_sandbox_is_replaced_once(run: Run):
    """One death is the platform's; a second at the same test is the submission's. A lost way to it is raised."""
    tests = read_tests(FORMS["assert"])
    assert (await grade_code(RIGHT, tests, run=Dying(run, 1), limits=LIMITS)).verdict is Verdict.RIGHT
    grade = await grade_code(RIGHT, tests, run=Dying(run, 2), limits=LIMITS)
    assert grade.verdict is Verdict.WRONG and reasons(grade) == ["crashed", ""]
    with pytest.raises(SandboxUnreachableError, match="gone"):
        await grade_code(RIGHT, tests, run=Dying(run, 1, SandboxUnreachableError), limits=LIMITS)


def named(trick: Trick) -> str:
    return trick.name.replace(" ", "-")


TYPICAL = [
    *("os._exit with 0", "os._exit in atexit", "an int equal to everything", "a lying __class__", "a pickle bomb"),
    *("patched builtins", "patched json", "patched sys.modules", "forged records, then gone"),
    *("the record of this call, twice", "a survivor that answers later", "planted modules", "links in place of files"),
    *("frames", "/proc", "kill everybody"),
]


@pytest.mark.parametrize(
    "trick",
    [pytest.param(one, marks=() if one.name in TYPICAL else (pytest.mark.slow,), id=named(one)) for one in tricks()],
)
async def test_no_trick_passes_a_test_of_any_kind(run: Run, trick: Trick):
    """The whole pack, on tests of every kind: not one test is passed, and there is a verdict on each."""
    grade = await graded(run, trick.source(["mix"]), ALL)
    assert grade.passed == 0 and grade.verdict in (Verdict.WRONG, Verdict.UNPARSABLE), grade
    assert len(grade.outcomes) == len(ALL.cases)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", ["node", "landlock"])
async def test_no_trick_passes_elsewhere(name: str, tmp_path: Path):
    """The pack over a node's daemon, and where there are no namespaces: the same, and the right program is right."""
    async with PROVIDERS[name](tmp_path) as provider:
        run = await run_in(provider)
        assert (await graded(run, RIGHT, ALL)).verdict is Verdict.RIGHT
        for trick in (trick for trick in tricks() if not trick.slow):
            assert (await graded(run, trick.source(["mix"]), ALL)).passed == 0, trick.name
