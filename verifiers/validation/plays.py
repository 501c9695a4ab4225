"""Rollouts of the environment under validation, played with a scripted model through the real engine.

Nothing leaves the machine unless that was allowed. Rollouts that needed a judge, another machine that was refused, or
a sandbox that this machine can not give are marked as blocked: what they earned says nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from verifiers.clients.scripted import ScriptedClient
from verifiers.envs.environment import Environment
from verifiers.error_text import error_record
from verifiers.errors import (
    AuthenticationError,
    Error,
    MissingExtraError,
    MissingKeyError,
    SandboxUnsupportedError,
)
from verifiers.rollouts.engine import Engine
from verifiers.rollouts.plan import plan_rollouts
from verifiers.rubrics.judge_rubric import JudgeRubric
from verifiers.types import RolloutOutput, State
from verifiers.validation.findings import NotCheckedError
from verifiers.validation.keys import KEY_NAME
from verifiers.validation.replies import EMPTY, FAMILIES, Family, Reply, attempts_at, replies_of
from verifiers.validation.rubrics import environments_of, parsers_of, rubrics_of
from verifiers.validation.subject import Subject, as_task

TURNS = 200
"""A rollout that has had so many turns of one reply does not end by itself."""
FEWER_TURNS = 10
"""Where that is known, the others are not waited for as long."""
AT_A_TIME = 8
EMPTY_REPLY = Reply("' '", lambda task, messages, state: EMPTY)


class _EndlessError(Exception):
    """The scripted model has been asked too often."""


@dataclass(frozen=True, slots=True)
class Played:
    """One rollout. `blocked` says what its scoring lacked; `endless` that it was stopped after too many turns."""

    position: int
    reply: Reply
    record: RolloutOutput
    state: State
    endless: bool = False
    blocked: str = ""

    @property
    def reward(self) -> float | None:
        """What it earned, None if that is not known."""
        return None if self.blocked else self.record["reward"]


class Plays:
    """Plays replies to the chosen tasks; each reply to each task once, unless `again`."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.env: Environment = subject.env
        self.rows = subject.played_rows
        self.parsers = parsers_of(self.env)
        self.good: dict[int, Reply] = {}
        """Task → a reply that earned the maximum."""
        self._jobs: dict[str, list[tuple[int, Reply]]] = {}
        self._played: dict[tuple[str, int], Played] = {}
        self._runner = asyncio.Runner()
        self._turns = TURNS
        self.overran = ""
        """Which replies led to rollouts that did not end in time."""
        self._stopped = ""
        self._seconds = subject.request.timeout * 0.8
        """For one batch of rollouts: less than what ends the whole process."""
        for _, leaf in environments_of(self.env):
            for rubric in rubrics_of(leaf.rubric):
                _limit(rubric, subject.request.timeout / 4)

    def close(self) -> None:
        """Close the event loop."""
        self._runner.close()

    # --- what is played -------------------------------------------------------------------------------------------

    def empty(self) -> list[Played]:
        """The empty reply, to every task."""
        return self.play("the empty reply", [(position, EMPTY_REPLY) for position in range(len(self.rows))])

    def family(self, family: Family) -> list[Played]:
        """The replies of a family, to every task."""
        if family.name not in self._jobs:
            self._jobs[family.name] = [
                (position, reply)
                for position, row in enumerate(self.rows)
                for reply in replies_of(family, as_task(row), self.parsers, self.subject.request.seed)
            ]
        return self.play(f"replies of the kind '{family.name}'", self._jobs[family.name])

    def everything(self) -> list[Played]:
        """The empty reply and all families."""
        return [*self.empty(), *(played for family in FAMILIES for played in self.family(family))]

    def so_far(self) -> list[Played]:
        """What was played, where playing had to stop."""
        return list(self._played.values())

    def attempts(self) -> list[Reply]:
        """Ways to earn the maximum without an oracle."""
        return attempts_at(self.parsers)

    # --- playing --------------------------------------------------------------------------------------------------

    def play(self, what: str, jobs: Sequence[tuple[int, Reply]], *, again: bool = False) -> list[Played]:
        """Play replies to tasks by position; what was played before is not played again.

        Raises NotCheckedError if an earlier reply showed that playing does not come to an end.
        """
        owed = [job for job in jobs if again or (job[1].label, job[0]) not in self._played]
        if owed and self._stopped:
            raise NotCheckedError(self._stopped)
        fresh: dict[tuple[str, int], Played] = {}
        if owed:
            self.subject.tell(f"playing {what}")
            fresh = {(one.reply.label, one.position): one for one in self._run(what, owed)}
        if not again:
            self._played |= fresh
        found = fresh if again else self._played
        return [found[label, position] for position, reply in jobs if (label := reply.label, position) in found]

    def _run(self, what: str, jobs: Sequence[tuple[int, Reply]]) -> list[Played]:
        network = self.subject.network
        attempts, hosts = network.attempts, len(network.hosts)
        guard = nullcontext() if self.subject.request.allow_network else network.refused()
        with guard:
            done = self._runner.run(self._play_all(jobs))
        if len(done) < len(jobs):
            self.overran = f"{what}: {len(jobs) - len(done)} rollouts had not ended after {self._seconds:g} s"
            self._stopped = "a rollout does not end in time"
        if any(_timed_out(played.record) for played in done):
            self._stopped = "a reward function does not return"
        if any(played.endless for played in done):
            self._turns = FEWER_TURNS
        if not self.subject.request.allow_network and network.attempts > attempts:
            self._note_blocked(done, network.hosts[hosts:] or network.hosts)
        if done and all(played.blocked for played in done):
            self._stopped = f"needs {done[0].blocked}"  # clients try again and again: once is enough
        return done

    async def _play_all(self, jobs: Sequence[tuple[int, Reply]]) -> list[Played]:
        places = asyncio.Semaphore(AT_A_TIME)
        done: list[Played] = []

        async def play(position: int, reply: Reply) -> None:
            async with places:
                done.append(await self._play_one(position, reply))

        tasks = [asyncio.ensure_future(play(*job)) for job in jobs]
        _, waiting = await asyncio.wait(tasks, timeout=self._seconds)
        for task in waiting:
            task.cancel()
        await asyncio.wait(tasks, timeout=10)
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
        return sorted(done, key=lambda one: one.position)

    async def _play_one(self, position: int, reply: Reply) -> Played:
        row = self.rows[position]
        task = as_task(row)
        asked, turns = 0, self._turns

        def say(prompt: Any, state: Any = None) -> Any:
            nonlocal asked
            asked += 1
            if asked > turns:
                raise _EndlessError(f"the model was asked {turns} times")
            return reply.say(task, prompt, state)

        kept: list[tuple[RolloutOutput, State]] = []
        engine = Engine(self.env, ScriptedClient(say), "scripted")
        plan = plan_rollouts([row])
        try:
            await engine.play([row], plan, lambda record, state: kept.append((record, state)))
        except Error as error:  # what would have ended a run
            return Played(position, reply, _without_record(error), State(), blocked=_lacking_here(error))
        record, state = kept[0]
        return Played(position, reply, record, state, endless=asked > turns, blocked=_lacking(record))

    def _note_blocked(self, done: list[Played], hosts: Sequence[str]) -> None:
        judged = any(
            isinstance(rubric, JudgeRubric)
            for _, leaf in environments_of(self.env)
            for rubric in rubrics_of(leaf.rubric)
        )
        what = f"{'a judge' if judged else 'the network'} ({', '.join(hosts)})"
        for number, played in enumerate(done):
            done[number] = Played(
                played.position, played.reply, played.record, played.state, played.endless, what
            )

    # --- scoring again ----------------------------------------------------------------------------------------

    def score_again(self, played: Played) -> float | None:
        """The reward of a finished rollout that is scored once more."""
        state = played.state
        state["reward"] = state["metrics"] = state["error"] = None
        state.pop("scoring_errors", None)
        rubric = self.env.rubric

        async def score() -> None:
            await (rubric.score_group([state]) if rubric.requires_group else rubric.score_rollout(state))

        with self.subject.network.refused():
            self._runner.run(score())
        reward: float | None = state["reward"]
        return reward


def plays_of(subject: Subject) -> Plays:
    """The rollouts of a subject; the same object each time."""
    if subject.plays is None:
        _ = subject.splits  # or there is nothing to play
        subject.plays = Plays(subject)
    plays: Plays = subject.plays
    return plays


def is_blocked(played: Sequence[Played]) -> str:
    """What the first of these rollouts lacked whose scoring was blocked; empty if none was."""
    return next((one.blocked for one in played if one.blocked), "")


def _limit(rubric: Any, seconds: float) -> None:
    own = rubric.reward_timeout
    rubric.reward_timeout = seconds if own is None else min(own, seconds)
    if isinstance(rubric, JudgeRubric):
        rubric.judge_timeout = min(rubric.judge_timeout, seconds)
        rubric.judge_retries = 0


def _lacking_here(error: Error) -> str:
    """What an error that ends runs says is missing: a key, or what this machine needs for sandboxes."""
    if isinstance(error, MissingKeyError | AuthenticationError):
        return f"a judge ({error})"
    if isinstance(error, SandboxUnsupportedError | MissingExtraError):
        return f"what this machine does not have: {error}. {error.hint or ''}".strip()
    return ""


def _lacking(record: Mapping[str, Any]) -> str:
    """What the errors of a record say that its scoring lacked: a judge, or a key that is not set."""
    for error in (record.get("error"), *(record.get("scoring_errors") or {}).values()):
        if error and error["kind"] == "judge":
            return f"a judge ({error['message']})"
        for name in KEY_NAME.findall(error["message"]) if error else ():
            if not os.environ.get(name):
                return f"the key {name}"
    return ""


def _timed_out(record: Mapping[str, Any]) -> bool:
    errors = (record.get("scoring_errors") or {}).values()
    return any("TimeoutError" in str(one["error_chain_str"]) for one in errors)


def _without_record(error: Error) -> RolloutOutput:
    return RolloutOutput({"reward": None, "metrics": {}, "outcome": "failed", "error": error_record(error)})
