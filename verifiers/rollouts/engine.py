"""Plays and scores many rollouts at once.

The unit is the rollout: `max_concurrent` of them generate at a time, each is tried again on its own, and one that
fails cancels nothing. A group is a join: reward functions that compare the rollouts of a task run when its last
member has finished. Generation and scoring have limits of their own and overlap.

`Engine.play` calls `on_sealed` with each record as soon as it is final; it keeps nothing else, so memory does not
grow with the run. What ends a run: an error that is `fatal` for all rollouts, an error of `on_sealed`, a raising
reward function under `on_reward_error="raise"`, and cancellation, which runs the cleanup of everything in flight.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from verifiers.clients.client import as_client
from verifiers.envs.environment import Environment, merge_sampling_args
from verifiers.envs.lifecycle import clean_up
from verifiers.error_text import error_record
from verifiers.errors import EnvironmentCodeError, RewardError, as_error, is_failure
from verifiers.loops import shielded
from verifiers.rollouts.interpreter import tuned_interpreter
from verifiers.rollouts.plan import PlannedRollout, RowReader, Rows, plan_rollouts, sampling_seed_of
from verifiers.rollouts.records import seal
from verifiers.rollouts.repair import failed_state, repaired
from verifiers.rollouts.retries import RetryPolicy
from verifiers.rubrics.scores import confirm, share_advantages
from verifiers.scopes import Limit, Scope, entered
from verifiers.types import OnRewardError, RolloutInput, RolloutOutput, SamplingArgs, State
from verifiers.types.timing import now

logger = logging.getLogger(__name__)

OnSealed = Callable[[RolloutOutput, State], None]

_NEEDS_JOIN = frozenset({"advantage", "trajectory"})
"""State columns whose values depend on the whole group."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How rollouts are played.

    max_concurrent: rollouts that generate at a time; below 1 there is no limit.
    max_concurrent_scoring: rollouts (or groups) that are scored at a time; None is as many as generate.
    max_retries: further attempts of a rollout whose failure is retryable.
    independent_scoring: refuse reward functions that need the whole group.
    on_reward_error: None leaves the choice to the environment.
    state_columns: keys of the state that records get in addition.
    whole_groups: whether columns wait for what a group's end adds to them (`advantage`); training takes each rollout as
        it ends, so that a straggler costs nobody else.
    seed: with a seed, each rollout asks the model to sample with a seed of its own, derived from it.
    rollout_limit: what one attempt of a rollout may spend; it is then truncated and scored as it stands.
    run_limit: what all of them may spend; rollouts in flight are then finished, and no other is started.
    """

    max_concurrent: int = -1
    max_concurrent_scoring: int | None = None
    max_retries: int = 0
    independent_scoring: bool = False
    on_reward_error: OnRewardError | None = None
    state_columns: tuple[str, ...] = ()
    whole_groups: bool = True
    seed: int | None = None
    rollout_limit: Limit | None = None
    run_limit: Limit | None = None
    on_log: Callable[[str], None] | None = None


@dataclass(slots=True)
class _Group:
    """The rollouts of one task: how many are owed, whether one has been started, and those that have finished."""

    owed: int
    started: bool = False
    finished: list[tuple[PlannedRollout, State]] = field(default_factory=list)


class Engine:
    """Plays rollouts of one environment against one model."""

    def __init__(
        self,
        env: Environment,
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
        options: EngineOptions | None = None,
    ) -> None:
        self.env = env
        self.client = as_client(client)
        self.model = model
        self.sampling_args = merge_sampling_args(env.sampling_args, sampling_args)
        self.options = options or EngineOptions()
        self.run = Scope(self.options.run_limit)
        self._retries = RetryPolicy(self.options.max_retries)
        self._rubric_cleans_up = env.rubric.has_cleanup
        self._scores_groups = env.score_rollouts and env.requires_group_rollouts
        if self._scores_groups and self.options.independent_scoring:
            raise RewardError(
                "independent scoring was asked for, but a reward function needs the whole group",
                hint="Leave out --independent-scoring, or use reward functions of single rollouts only.",
            )
        columns_wait = self.options.whole_groups and bool(_NEEDS_JOIN & set(self.options.state_columns))
        self.joins = self._scores_groups or columns_wait
        """Whether the records of a group are final only together."""

    async def play(self, rows: Rows, plan: Sequence[PlannedRollout], on_sealed: OnSealed) -> str | None:
        """Play the planned rollouts of `rows`. Raises what ended the run, if something did.

        Returns None, or what the run's limit was of ("tokens", "cost", …) if that kept rollouts from being started.
        """
        if not plan:
            return None
        if self.env.score_rollouts:
            await self.env.rubric.get_ready()
        reader = rows if isinstance(rows, RowReader) else RowReader(rows)
        play = _Play(self, reader, plan, on_sealed)
        try:
            with tuned_interpreter():
                async with asyncio.TaskGroup() as tasks:
                    for _ in range(play.width):
                        tasks.create_task(play.generate_next(tasks))
        except BaseExceptionGroup as group:
            # The first error cancelled the others: it alone says why the run ended.
            first = _first(group)
            raise first from first.__cause__
        finally:
            if play.unreleased:
                await shielded(play.release())
        play.check_complete()
        return play.stopped_by

    # --- one rollout -----------------------------------------------------------------------------------------

    async def generate(self, rows: RowReader, planned: PlannedRollout) -> State:
        """Play one rollout, again if its failure is retryable. Its error, if any, is on the state."""
        earlier: list[dict[str, Any]] = []
        identity: dict[str, Any] = {
            "rollout_id": planned.rollout_id,
            "example_id": planned.example_id,
            "rollout_index": planned.rollout_index,
        }
        scope = Scope(parent=self.run, **identity)
        while True:
            attempts = len(earlier) + 1
            limit = self.options.rollout_limit
            with entered(Scope(limit, parent=scope, attempt=attempts, **identity)) as attempt:
                state = await self._attempt(rows, planned)
            scope.waited_s += attempt.waited_s
            error = state.get("error")
            if not self._retries.wants_another(error, attempts):
                break
            earlier.append({**error_record(error), "time": now()})
            delay = self._retries.delay(error, attempts)
            self._log(f"rollout {planned.rollout_id[:8]}: {error}; attempt {attempts + 1} in {delay:.0f} s")
            await asyncio.sleep(delay)
        ids = {"task_id": planned.task_id, "rollout_id": planned.rollout_id}
        dict.update(state, attempts=earlier, scope=scope, failed=error is not None, **ids)
        return state

    async def _attempt(self, rows: RowReader, planned: PlannedRollout) -> State:
        row: dict[str, Any] = {"example_id": planned.example_id}
        sampling_args = dict(self.sampling_args)
        if self.options.seed is not None:
            sampling_args["seed"] = sampling_seed_of(planned.rollout_id)
        started = now()
        try:
            row |= rows[planned.position]
            played = await self.env.rollout(RolloutInput(row), self.client, self.model, sampling_args)
            return repaired(played, row, started)
        except BaseException as error:  # boundary: an environment that overrides rollout, or a row that is no task
            if not is_failure(error):
                raise
            typed = as_error(error, EnvironmentCodeError, f"{type(self.env).__name__}.rollout")
            if typed.fatal:
                raise typed from typed.__cause__
            logger.debug("rollout %s failed", planned.rollout_id, exc_info=error)
            return failed_state(row, typed, started)

    def _log(self, text: str) -> None:
        logger.info(text)
        if self.options.on_log is not None:
            self.options.on_log(text)

    # --- scoring ---------------------------------------------------------------------------------------------

    async def score(self, states: list[State]) -> None:
        """Score finished rollouts: one, or a whole group if reward functions need it. Failed ones get None."""
        chosen = self.options.on_reward_error or self.env.on_reward_error or "unscored"
        for state in states:
            state["on_reward_error"] = chosen
            if state["failed"]:
                state["reward"], state["metrics"] = None, {}  # its own code may have set them before it failed
        valid = [state for state in states if not state["failed"]]
        spans = [state["timing"].scoring for state in valid]  # held, since reward functions may overwrite the state
        for span in spans:
            span.start = now()
        # What a judge of the whole group takes is counted on its first member.
        scope: Scope = (states[0].get("scope") if states else None) or Scope(parent=self.run)
        scope.phase = "scoring"
        with entered(scope):
            await self._score(valid, chosen)
        for span in spans:
            span.end = now()
        for state in valid:
            state["failed"] = False  # whatever reward functions left there

    async def _score(self, valid: list[State], chosen: OnRewardError) -> None:
        try:
            if not self.env.score_rollouts:
                await self.env.rubric.dummy_score_group(valid)
            elif self._scores_groups and valid:
                await self.env.rubric.score_group(valid)
            else:
                for state in valid:
                    await self.env.rubric.score_rollout(state)
            for state in valid:
                confirm(state, type(self.env.rubric).__name__)
        except BaseException as error:  # boundary: a rubric that overrides its scoring
            if not is_failure(error):
                raise
            typed = as_error(error, RewardError, f"{type(self.env.rubric).__name__}")
            if typed.fatal or chosen == "raise":
                raise typed from typed.__cause__
            for state in valid:
                state["reward"] = None
                state["error"] = state.get("error") or typed

    async def release(self, state: State) -> None:
        """Let the rubric clean up after a rollout, within a deadline; what fails must not cost it its score."""
        if self._rubric_cleans_up:
            await shielded(clean_up(state, "rubric", lambda: self.env.rubric.cleanup(state)))


class _Play:
    """One call of `Engine.play`: the plan as it is worked off."""

    def __init__(
        self, engine: Engine, rows: RowReader, plan: Sequence[PlannedRollout], on_sealed: OnSealed
    ) -> None:
        self.engine = engine
        self.rows = rows
        self.on_sealed = on_sealed
        self._owed = len(plan)
        self.stopped_by: str | None = None
        self.unreleased: dict[int, State] = {}
        """Finished rollouts, by identity, that the rubric has not begun to clean up after."""
        self._context = contextvars.copy_context()
        self._left = deque(plan)
        self._sizes = Counter(planned.example_id for planned in plan)
        self._groups: dict[int, _Group] = {}
        limit = engine.options.max_concurrent
        self.width = len(plan) if limit < 1 else min(limit, len(plan))
        scoring = engine.options.max_concurrent_scoring
        self._scoring = asyncio.Semaphore(self.width if scoring is None or scoring < 1 else scoring)

    async def generate_next(self, tasks: asyncio.TaskGroup) -> None:
        """Play and score the next rollout of the plan, and let the one after it follow as soon as it is played."""
        planned = self._next()
        if planned is None:
            return
        state = await self.engine.generate(self.rows, planned)
        self.unreleased[id(state)] = state
        # Waiting here for a free place is what keeps slow scoring from piling up finished rollouts.
        await self._scoring.acquire()
        if self._left:
            # A context of its own: what one rollout sets in context variables is nothing to the next.
            tasks.create_task(self.generate_next(tasks), context=self._context.copy())
        await self._score(planned, state)

    def _next(self) -> PlannedRollout | None:
        while self._left:
            planned = self._left.popleft()
            if self._may_start(planned):
                return planned
        return None

    def _may_start(self, planned: PlannedRollout) -> bool:
        """Whether the run may spend more. A group whose records are final only together is played to its end."""
        group = self._groups.get(planned.example_id)
        if group is None:
            group = self._groups[planned.example_id] = _Group(self._sizes.pop(planned.example_id))
        reached = self.engine.run.reached()
        if reached is not None and not (self.engine.joins and group.started):
            self.stopped_by = reached
            self._leave_out(planned, group)
            return False
        group.started = True
        return True

    def _leave_out(self, planned: PlannedRollout, group: _Group) -> None:
        self._owed -= 1
        group.owed -= 1
        if len(group.finished) == group.owed:  # else the last member to finish sees that it is
            del self._groups[planned.example_id]
            self._share_advantages(group)

    def _share_advantages(self, group: _Group) -> None:
        share_advantages([state for _, state in group.finished], keep=self.engine.env.rubric.has_advantages)

    async def _score(self, planned: PlannedRollout, state: State) -> None:
        try:
            group = self._groups[planned.example_id]
            if not self.engine._scores_groups:
                await self._score_together([state])
            if not self.engine.joins:
                self._seal(planned, state)
            group.finished.append((planned, state))
            if len(group.finished) == group.owed:
                del self._groups[planned.example_id]
                await self._join(group)
        finally:
            self._scoring.release()

    async def _join(self, group: _Group) -> None:
        """The last member has finished: what needs the whole group, then seal what waited for it."""
        if self.engine._scores_groups:
            await self._score_together([state for _, state in group.finished])
        self._share_advantages(group)
        if self.engine.joins:
            for planned, state in group.finished:
                self._seal(planned, state)

    async def _score_together(self, states: list[State]) -> None:
        await self.engine.score(states)
        for state in states:
            del self.unreleased[id(state)]
            await self.engine.release(state)

    async def release(self) -> None:
        """Clean up after rollouts that the end of the run kept from being scored."""
        await asyncio.gather(*map(self.engine.release, self.unreleased.values()))

    def _seal(self, planned: PlannedRollout, state: State) -> None:
        self.on_sealed(self._sealed(planned, state), state)
        self._owed -= 1

    def _sealed(self, planned: PlannedRollout, state: State) -> RolloutOutput:
        try:
            return seal(state, planned, self.engine.options.state_columns, self.engine.env.record_columns)
        except Exception as error:  # boundary: what the environment's code left in the state
            typed = as_error(error, EnvironmentCodeError, "sealing what the environment left in the state")
            logger.debug("rollout %s can not be sealed", planned.rollout_id, exc_info=error)
            failed = failed_state(self.rows[planned.position], typed, now())
            failed["failed"] = True
            kept = {"scope": Scope, "attempts": list}
            failed.update({key: state[key] for key, kind in kept.items() if isinstance(state.get(key), kind)})
            return seal(failed, planned)

    def check_complete(self) -> None:
        """A rollout without a record would silently leave every figure."""
        if self._owed:
            raise EnvironmentCodeError(
                f"{self._owed} rollouts ended without a record: the code of {type(self.engine.env).__name__} "
                "stopped the tasks that played them"
            )


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


async def play_group(
    env: Environment,
    inputs: Sequence[Any],
    client: Any,
    model: str,
    sampling_args: SamplingArgs | None = None,
    max_retries: int = 0,
    state_columns: Sequence[str] | None = None,
) -> list[RolloutOutput]:
    """Play rows together and return their records in the order of the rows."""
    options = EngineOptions(max_retries=max_retries, state_columns=tuple(state_columns or ()))
    plan = plan_rollouts(inputs)
    records: dict[str, RolloutOutput] = {}

    def keep(record: RolloutOutput, _: State) -> None:
        records[record["rollout_id"]] = record

    await Engine(env, client, model, sampling_args, options).play(inputs, plan, keep)
    return [records[planned.rollout_id] for planned in plan]
