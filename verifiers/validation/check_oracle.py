"""Checks that a perfect reply earns the most there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verifiers.error_text import text_of
from verifiers.types import message_text
from verifiers.validation.earned import (
    EPSILON,
    error_of,
    floor,
    grouped,
    maximum,
    number,
    refuse_if_blocked,
    tasks,
    where,
)
from verifiers.validation.findings import Finding, Findings, NotCheckedError, Severity, check
from verifiers.validation.plays import Played, plays_of
from verifiers.validation.replies import Reply, shown
from verifiers.validation.subject import Subject

TESTS = "Compare that test with the oracle's program: mend whichever is wrong."


@check(
    "oracle",
    Severity.ERROR,
    why="If perfect play does not earn the maximum, no model can, and every score is too low.",
    fix="Mend the oracle or the reward. If functions can not pay 1 each, say what is the most: "
    "`max_reward` in [tool.verifiers.validate].",
)
def oracle(subject: Subject) -> Findings:
    """The module's `oracle(task, messages, state)` earns the maximum on every task."""
    function = getattr(subject.module, "oracle", None)
    if not callable(function):
        raise NotCheckedError("the module defines no oracle")
    plays = plays_of(subject)
    raised: list[BaseException] = []

    def say(task: Any, messages: Any, state: Any) -> Any:
        try:
            return function(task, messages, state)
        except Exception as error:  # boundary: the oracle is the author's code
            raised.append(error)
            raise

    reply = Reply("the oracle", say)
    played = plays.play("the oracle", [(position, reply) for position in range(len(plays.rows))])
    if raised:
        yield Finding(f"the oracle raised {type(raised[0]).__name__}: {text_of(raised[0])}", "Mend the oracle.")
        return
    short = []
    for one in played:
        if _is_perfect(subject, one):
            plays.good[one.position] = reply
        elif one.reward is not None:
            short.append(one)
    failed = [one for one in played if one.record["outcome"] == "failed" and not one.blocked]
    for text, some in grouped(failed, lambda one: error_of(one)["message"]).items():
        yield f"a rollout of the oracle failed: {text} ({where(some)})"
    refuse_if_blocked(played, short)
    if short:
        _refuse_relative(subject)
        worst = min(short, key=lambda one: one.reward or 0.0)
        earned = f"the oracle earned {number(worst.reward)} of {maximum(subject, worst)} ({where(short)})"
        failure = _failed_test(worst)
        yield Finding(f"{earned}{_told(worst)}{failure}", TESTS if failure else "")


@check(
    "no-oracle",
    Severity.WARNING,
    why="Without a reply that is known to be perfect nobody can tell a hard task from one that can not be solved.",
    fix="Define oracle(task, messages, state) in the module: it returns a perfect reply for each turn.",
)
def no_oracle(subject: Subject) -> Findings:
    """There is an oracle, or the task's answer, plain, boxed or in the parser's form, earns the maximum."""
    if callable(getattr(subject.module, "oracle", None)):
        return
    plays = plays_of(subject)
    attempts = plays.attempts()
    best: dict[int, Played] = {}
    for reply in attempts:
        owed = [position for position in range(len(plays.rows)) if position not in plays.good]
        if not owed:
            return
        played = plays.play(f"as a perfect reply: {reply.label}", [(position, reply) for position in owed])
        for one in played:
            if _is_perfect(subject, one):
                plays.good[one.position] = reply
            elif one.reward is not None and one.reward > (_reward_of(best, one.position)):
                best[one.position] = one
        refuse_if_blocked(played, [one for one in played if one.reward is not None])
    short = [position for position in range(len(plays.rows)) if position not in plays.good]
    if short:
        _refuse_relative(subject)
        if not best:
            raise NotCheckedError("no rollout has a reward")
        most = number(max(_reward_of(best, position) for position in short))
        tried = ", ".join(one.label for one in attempts)
        yield f"none of {tried} earned the maximum on {tasks(short, len(plays.rows))}; the best earned {most}"


def _told(played: Played) -> str:
    """What a tool last said: it may be the tool that fails."""
    completion = played.record["completion"]
    told = [message_text(message) for message in completion or () if message["role"] == "tool"]
    return f"; the last tool message was {shown(told[-1])}" if told else ""


def _failed_test(played: Played) -> str:
    """The first test that a program failed, with its reason, where a `CodeRubric` ran it: the test may be wrong."""
    grade = played.state.get("code_grade")
    first = grade.get("first_failure") if isinstance(grade, Mapping) else None
    if not isinstance(first, Mapping) or not {"test", "reason", "detail"} <= first.keys():
        return ""
    detail = f": {shown(first['detail'])}" if first["detail"] else ""
    return f"; the first test that failed is {shown(first['test'])} ({first['reason']}){detail}"


def _reward_of(best: Mapping[int, Played], position: int) -> float:
    reward = best[position].reward if position in best else None
    return float("-inf") if reward is None else reward


def _is_perfect(subject: Subject, played: Played) -> bool:
    if played.reward is None or played.record["outcome"] == "failed":
        return False
    most = maximum(subject, played)
    if most is None:  # the rubric has a scale of its own: more than nothing is all that can be asked
        return played.reward > floor(plays_of(subject), played.position) + EPSILON
    return played.reward >= most - EPSILON


def _refuse_relative(subject: Subject) -> None:
    if subject.env.requires_group_rollouts:
        raise NotCheckedError("reward functions compare the rollouts of a task")
