"""Check that no trick against a grader of programs is paid for: environments with a `CodeRubric` are played with the
pack of `tricks.txt`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from verifiers.errors import GraderError
from verifiers.grading.code_asserts import AssertTest
from verifiers.grading.code_tests import CallTest, CodeTests, ScriptTest
from verifiers.rubrics.code_rubric import CodeRubric
from verifiers.types import AssistantMessage
from verifiers.validation.earned import EPSILON, allowed, number, refuse_if_blocked, where
from verifiers.validation.findings import Findings, NotCheckedError, Severity, check
from verifiers.validation.plays import Plays, plays_of
from verifiers.validation.replies import Reply, forms_of
from verifiers.validation.rubrics import environment_for, rubrics_of
from verifiers.validation.subject import Subject, as_task
from verifiers.validation.tricks import tricks


@check(
    "code-tricks",
    Severity.ERROR,
    why="A program that solves nothing makes the grader say that it is right: training finds such programs.",
    fix="Let CodeRubric run and compare: a program's exit code, its output and its own objects prove nothing.",
)
def code_tricks(subject: Subject) -> Findings:
    """No program that attacks its grader earns more than the empty reply."""
    found = next(_graded_tasks(subject), None)
    if found is None:
        return
    position, task, rubric = found
    try:
        names = names_of(rubric.tests_of(task.get("info") or {}, task.get("answer")))
    except GraderError as error:
        raise NotCheckedError(str(error)) from error
    plays = plays_of(subject)
    jobs = [
        (position, _reply(plays, rubric, trick.name, trick.source(names))) for trick in tricks() if not trick.slow
    ]
    played = plays.play("programs that attack their grader", jobs)
    paid = [one for one in played if one.reward is not None and one.reward > allowed(subject, one) + EPSILON]
    if paid:
        more = f", and so did {len(paid) - 1} others" if len(paid) > 1 else ""
        yield f"a program with {paid[0].reply.label} earned {number(paid[0].reward)}{more} ({where(paid[:1])})"
    refuse_if_blocked(played, paid)
    unscored = [one for one in played if one.reward is None]
    if unscored and not paid:
        errors = {**(unscored[0].record.get("scoring_errors") or {}), "": unscored[0].record.get("error")}
        message = next((error["message"] for error in errors.values() if error), "no reason was given")
        raise NotCheckedError(f"{len(unscored)} of {len(played)} were not scored: {message}")


def _graded_tasks(subject: Subject) -> Iterator[tuple[int, dict[str, Any], CodeRubric]]:
    """The tasks that a `CodeRubric` scores."""
    for position, row in enumerate(subject.played_rows):
        leaf = environment_for(subject.env, row)
        for rubric in rubrics_of(leaf.rubric):
            if isinstance(rubric, CodeRubric):
                yield position, as_task(row), rubric


def names_of(tests: CodeTests) -> list[str]:
    """What the functions are called that the tests ask for."""
    names = [tests.entry_point] if tests.entry_point else []
    for test in tests.cases:
        if isinstance(test, CallTest):
            names.append(test.name)
        elif isinstance(test, ScriptTest):
            names += test.names.values()
        elif isinstance(test, AssertTest):
            nodes = [node for call in test.calls for node in ast.walk(ast.parse(call, mode="eval"))]
            names += [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return list(dict.fromkeys(names))


def _reply(plays: Plays, rubric: CodeRubric, name: str, source: str) -> Reply:
    """The program in the first form that the rubric's parser takes it out of."""
    block = f"```python\n{source}```"
    texts = [block, *forms_of(block, plays.parsers), *forms_of(source, plays.parsers)]
    text = next((text for text in texts if _holds(rubric, text, source)), block)

    def say(task: Mapping[str, Any], messages: Any, state: Any) -> str:  # noqa: ARG001 - every reply has these
        return text

    return Reply(f"the trick '{name}'", say)


def _holds(rubric: CodeRubric, text: str, source: str) -> bool:
    return source.strip() in str(rubric.parser.parse_answer([AssistantMessage(text)]) or "")
