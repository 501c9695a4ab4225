"""Checks that play: whatever the model writes, a rollout ends, does not fail, and has a reward.

What a broken environment shows first is told first, and playing stops once it does not end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from verifiers.validation.earned import alike, all_of, error_of, grouped, refuse_if_blocked, where
from verifiers.validation.findings import Finding, Findings, Severity, check
from verifiers.validation.plays import Played, plays_of
from verifiers.validation.subject import Subject

HOOKS = re.compile(r"(prepare_sandbox|setup_state) ")
GOLD = (
    "Mend the task's gold answer or its tests, in the data set; docs/guides/code-grading.md has the forms of tests. "
    "Where the grader ran out of time, raise its limit."
)
SANDBOX = "Mend the hook, or the sandbox: `vf-sandbox doctor` says what works here. The reply is not to blame."


@check(
    "rollouts",
    Severity.ERROR,
    why="The model may write anything; a rollout that fails over it has no reward and is missing from every mean.",
    fix="Answer a reply that can not be read with a message to the model, or count it as wrong.",
)
def rollouts(subject: Subject) -> Findings:
    """Whatever the model writes, the environment's own code does not fail."""
    plays = plays_of(subject)
    everything = all_of(plays)
    failed = [one for one in everything if one.record["outcome"] == "failed" and not one.endless and not one.blocked]
    for some in grouped(failed, lambda one: alike(error_of(one)["message"])).values():
        error = error_of(some[0])
        fix = SANDBOX if error.get("kind") == "sandbox" or HOOKS.match(error["message"]) else ""
        yield Finding(f"{error['message']} ({where(some)})", fix)
    refuse_if_blocked(everything, failed)


@check(
    "endings",
    Severity.WARNING,
    why="A model that never says the right words is asked until its context or the money is used up.",
    fix="Set max_turns, or a stop condition that does not depend on what the model writes.",
)
def endings(subject: Subject) -> Findings:
    """A rollout ends, whatever the model writes."""
    endless = [one for one in all_of(plays_of(subject)) if one.endless]
    if endless:
        yield f"a rollout goes on after {len(endless[0].state.get('trajectory') or ())} turns ({where(endless)})"


@check(
    "rollout-time",
    Severity.ERROR,
    why="A rollout that waits for ever holds a place in every run, and is never scored.",
    fix="Bound what the environment waits for or computes; `timeout_seconds` bounds a rollout.",
)
def rollout_time(subject: Subject) -> Findings:
    """A rollout ends in time, whatever the model writes."""
    plays = plays_of(subject)
    all_of(plays)
    if plays.overran:
        yield plays.overran


@check(
    "rewards",
    Severity.ERROR,
    why="A reward function that raises, or returns no finite number, leaves its rollout without a reward.",
    fix="Mend the function: no answer, odd characters and empty replies are part of every run.",
)
def rewards(subject: Subject) -> Findings:
    """Every reward function returns a number, whatever the model wrote."""
    everything = all_of(plays_of(subject))
    # What can not be called for want of an argument is told by `reward-arguments`.
    uncallable = tuple(
        str(problem).partition(", which")[0] for problem in subject.env.check() if problem.check == "reward-arguments"
    )
    yield from _scoring_failures(
        everything,
        lambda error: "TimeoutError" not in error["error_chain_str"] and not error["message"].startswith(uncallable),
    )
    unscored = [one for one in everything if one.record["outcome"] == "unscored" and not one.blocked]
    refuse_if_blocked(everything, unscored)


@check(
    "reward-time",
    Severity.ERROR,
    why="Each rollout waits for it, and past the time limit the rollout has no reward.",
    fix="Bound what is compared or computed; `verifiers.grading` has graders in processes that can be killed.",
)
def reward_time(subject: Subject) -> Findings:
    """Every reward function returns in time."""
    yield from _scoring_failures(
        all_of(plays_of(subject)), lambda error: "TimeoutError" in error["error_chain_str"]
    )


def _scoring_failures(played: Iterable[Played], wanted: Callable[[Mapping[str, Any]], bool]) -> Iterator[Finding]:
    found: dict[str, tuple[Mapping[str, Any], list[Played]]] = {}
    for one in played:
        errors = [] if one.blocked else list((one.record.get("scoring_errors") or {}).values())
        if one.record["outcome"] == "unscored" and not errors and not one.blocked:
            errors = [error_of(one)]  # the whole rubric failed
        for error in errors:
            if wanted(error):
                _, some = found.setdefault(alike(error["message"]), (error, []))
                some.append(one)
    for error, some in found.values():
        yield Finding(f"{error['message']} ({where(some)})", GOLD if error.get("kind") == "grader" else "")
