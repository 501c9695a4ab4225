"""Scoring a saved run again: the rollouts stay, their scores are computed by the rubric as it is now.

    summary = await rescore(SavedRun("outputs/…"), config)
    summary.before.reward().mean, summary.after.reward().mean, summary.changed

No rollout is played and no model is asked but a judge's. Rollouts that failed stay failed. The scores go into a new run
directory; the old one is only read. The engine that plays runs does the scoring, with rollouts that are read instead of
played: order, groups, limits and failures are those of a run.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from verifiers.clients.base import Client
from verifiers.envs.environment import Environment
from verifiers.envs.load import load_environment
from verifiers.envs.provenance import facts_of
from verifiers.error_text import ErrorChain, error_record
from verifiers.errors import (
    ConfigError,
    Error,
    ResumeError,
    RewardError,
    StoreError,
    UnsavedStateError,
    as_error,
)
from verifiers.evals.config import Evaluation, Prepare, resolve
from verifiers.evals.resume import differences
from verifiers.evals.run import OpenRun, RunCallbacks, RunPlan, stamped
from verifiers.evals.saved_rollouts import SavedRollouts, SavedTasks
from verifiers.evals.saved_state import RECORD_FIELDS, SavedState, columns_of, saved_state
from verifiers.evals.statistics import RunStatistics, outcome_of
from verifiers.evals.store import CONFIG, METADATA, RunStore, SavedRun, newest_first, run_directory
from verifiers.rollouts.engine import Engine, EngineOptions
from verifiers.rollouts.plan import PlannedRollout
from verifiers.types import Outcome, Response, RolloutInput, RolloutOutput, RolloutTiming, State
from verifiers.types.config import EvalConfig

logger = logging.getLogger(__name__)

_SETTINGS = (
    "name", "env_args", "extra_env_kwargs", "model", "sampling_args", "seed", "num_examples", "rollouts_per_example",
    "shuffle", "shuffle_seed", "state_columns", "on_reward_error", "pass_threshold",
)  # fmt: skip
"""Settings that `metadata.json` holds, of runs that have no `config.toml`."""

_SCORES = ("reward", "metrics", "outcome", "error", "scoring_errors")
"""Keys of a record that scoring writes, besides one for each metric."""

_NO_SCORES = RECORD_FIELDS - {*_SCORES, "advantage", "timing"}
"""Keys that stay whatever a metric or a column is called."""

@dataclass(frozen=True, slots=True)
class RescoreSummary:
    """A run that was scored again: the figures before and after, and what became of its rollouts.

    `changed` rollouts have another reward than before, none included.
    """

    plan: RunPlan
    before: RunStatistics
    after: RunStatistics
    changed: int
    seconds: float
    metadata: dict[str, Any]


def resolve_rescoring(
    source: SavedRun, environments: Sequence[str], flags: Mapping[str, Any], prepare: Prepare | None = None
) -> Evaluation:
    """The evaluation that a saved run was, with the flags of this call. ConfigError if that can not be told."""
    config = source.path / CONFIG
    saved = source.read_metadata() or {}
    if not environments and config.is_file():
        evaluations = resolve([str(config)], flags, prepare)
    else:
        name = environments[0] if environments else saved.get("env_id")
        if not name:
            raise ConfigError(
                f"{source.path} does not say which environment was played: it has neither {CONFIG} nor {METADATA}",
                hint="Name it: vf-eval ENVIRONMENT --rescore RUN",
            )
        settings = {key: saved[key] for key in _SETTINGS if saved.get(key) is not None}
        arguments = {**settings.pop("env_args", {}), **flags.get("env_args", {})}
        flags = {"model": "unknown", **settings, **flags, "env_args": arguments}
        evaluations = resolve([str(name)], flags, prepare)
    if len(evaluations) != 1 or len(environments) > 1:
        raise ConfigError("--rescore takes one run, of one environment", hint="Name one environment, or none.")
    [evaluation] = evaluations
    # The model that played, under the name it has in the run: the configuration may say `local`.
    model = saved.get("model") or evaluation.config.model
    return replace(evaluation, config=evaluation.config.model_copy(update={"model": model}))


async def rescore(
    source: SavedRun,
    config: EvalConfig,
    callbacks: RunCallbacks | None = None,
    env: Environment | None = None,
) -> RescoreSummary:
    """Score the rollouts of `source` with the environment that `config` names, or with `env`, which is then used up.

    `config.resume_path` continues a run that was begun. Cancellation and errors that end the run leave what was scored
    so far saved.
    """
    callbacks = callbacks or RunCallbacks()
    if env is None:
        env = load_environment(config.env_id, **config.env_args)
    env.set_kwargs(**config.extra_env_kwargs)
    saved = source.read_metadata() or {}
    before, after = (RunStatistics(config.rollouts_per_example, config.pass_threshold) for _ in range(2))
    rollouts = SavedRollouts(source, before.add, config.seed)
    run = OpenRun(_metadata(source, saved, config, env), after)
    done = _open(run, config)
    summary = _Counts()
    scoring = _Scoring(env, config, rollouts, saved)
    plan = RunPlan(
        env_id=config.env_id,
        name=config.label,
        model=config.model,
        tasks=len({planned.example_id for planned in rollouts.plan}),
        rollouts=len(rollouts.plan),
        recorded=0 if run.store is None else sum(done.values()),
        path=run.store.path if run.store is not None else None,
        statistics=after,
    )

    def save(record: RolloutOutput) -> None:
        run.add(record)
        summary.add(record)
        if callbacks.on_rollout is not None:
            callbacks.on_rollout(record)

    with run:
        if run.store is not None and done:
            for record in run.store.records():
                after.add(record)
                summary.add(record)
        owed = rollouts.without(done)
        run.write_metadata()
        if callbacks.on_start is not None:
            callbacks.on_start(plan)
        await scoring.run(owed, save, callbacks.on_log)
        run.metadata["rescored"]["changed"] = summary.changed
    return RescoreSummary(
        plan, before, after, summary.changed, time.monotonic() - run.started, run.current_metadata()
    )


@dataclass(slots=True)
class _Counts:
    changed: int = 0

    def add(self, record: Mapping[str, Any]) -> None:
        self.changed += record["reward"] != record["before"]["reward"]


def _open(run: OpenRun, config: EvalConfig) -> Counter[str]:
    """Make or open the folder of the new run; the ids of the rollouts that it holds."""
    if not config.save_results:
        return Counter()
    if config.resume_path:
        run.store = RunStore.open(config.resume_path)
        try:
            _check_same(run.store.read_metadata() or {}, run.metadata, config)
        except Error:
            run.store.close()  # and with it its lock: the caller may try again
            raise
        run.metadata["path_to_save"] = str(run.store.path)
        return Counter(str(record.get("rollout_id")) for record in run.store.records())
    path = config.run_path or run_directory(
        config.env_id, config.name, config.model, env_dir=config.env_dir_path, output_dir=config.output_dir
    )
    run.store = RunStore.create(path)
    run.metadata["path_to_save"] = str(run.store.path)
    run.store.write_config(config)
    return Counter()


def _check_same(begun: Mapping[str, Any], wanted: Mapping[str, Any], config: EvalConfig) -> None:
    earlier = (begun.get("rescored") or {}).get("source")
    if earlier != wanted["rescored"]["source"]:
        raise ResumeError(
            f"{config.resume_path} does not score {wanted['rescored']['source']} again, but {earlier or 'was played'}",
            hint="Leave out --resume for a new run.",
        )
    for difference in differences(begun, wanted):
        if not config.force:
            raise ResumeError(f"the run that was begun was scored with another {difference}")
        logger.warning("continued although the run was begun with another %s", difference)


def latest_unfinished(folder: Path, source: SavedRun) -> Path | None:
    """The newest run below `folder` that scores `source` again and lacks rollouts."""
    wanted = str(source.path.resolve())
    total = sum(1 for _ in source.records())
    for path in newest_first(folder, METADATA):
        run = SavedRun(path)
        try:
            metadata = run.read_metadata() or {}
            of_source = (metadata.get("rescored") or {}).get("source") == wanted
            if of_source and sum(1 for _ in run.records()) < total:
                return path
        except StoreError as error:
            logger.warning("%s: %s", path, error)
    return None


def _metadata(
    source: SavedRun, saved: Mapping[str, Any], config: EvalConfig, env: Environment
) -> dict[str, Any]:
    """What the old run's metadata say of how it was played, and what this call adds."""
    kept = {key: value for key, value in saved.items() if key != "cache"}
    facts = stamped(facts_of(env, config.env_id))
    return {
        **kept,
        **facts,
        "env_id": config.env_id,
        "model": config.model,
        "env_args": config.env_args,
        "extra_env_kwargs": config.extra_env_kwargs,
        "on_reward_error": config.on_reward_error,
        "rescored": {
            "source": str(source.path.resolve()),
            "date": saved.get("date"),
            "environment_before": saved.get("environment"),
            "environment_after": facts["environment"],
            "env_args_before": saved.get("env_args"),
        },
    }


# --- scoring --------------------------------------------------------------------------------------------------


class _NoModel(Client):
    """Stands for the model that played. Asking it would mix new replies into old rollouts."""

    async def get_response(self, *_: Any, **__: Any) -> Response:
        raise RewardError(
            "the rubric asks the model that played, which is not asked when a run is scored again",
            hint="Give the rubric a client of its own: JudgeRubric(judge_client=…).",
        )


class _Scoring:
    """Runs the rubric over saved rollouts."""

    def __init__(
        self, env: Environment, config: EvalConfig, rollouts: SavedRollouts, saved: Mapping[str, Any]
    ) -> None:
        self.env = env
        self.config = config
        self.rollouts = rollouts
        self.tasks = SavedTasks(env, config)
        self.metrics = set(saved.get("avg_metrics") or {})
        self.columns = {*(saved.get("state_columns") or ()), *config.state_columns}
        # The engine plays by `rollout` and scores by these two. What the framework reads of a state around them is no
        # business of the rubric.
        setattr(env, "rollout", self._read)  # noqa: B010 - one object's method, not its class's
        for name in ("score_rollout", "score_group"):
            setattr(env.rubric, name, _watching(getattr(env.rubric, name)))

    async def run(
        self,
        owed: Sequence[PlannedRollout],
        save: Callable[[RolloutOutput], None],
        on_log: Callable[[str], None] | None,
    ) -> None:
        """Score what is owed. Groups that are compared are scored whole, also if only some members are owed."""
        wanted = {planned.position for planned in owed}
        for planned in owed:
            if planned.position in self.rollouts.kept:
                save(_as_it_was(planned, self.rollouts.source.record_at(planned.position)))
        if self.env.requires_group_rollouts and self.env.score_rollouts:
            groups = {planned.example_id for planned in owed if planned.position not in self.rollouts.kept}
            owed = [planned for planned in self.rollouts.plan if planned.example_id in groups]
        owed = [planned for planned in owed if planned.position not in self.rollouts.kept]

        def on_sealed(record: RolloutOutput, state: State) -> None:
            if not isinstance(state, SavedState):
                raise state["error"]  # the file has changed meanwhile
            if state.place in wanted:
                save(self._joined(record, state))

        options = EngineOptions(
            max_concurrent=self.config.max_concurrent,
            independent_scoring=self.config.independent_scoring,
            on_reward_error=self.config.on_reward_error,
            state_columns=tuple(self.config.state_columns),
            on_log=on_log,
        )
        engine = Engine(self.env, _NoModel(), self.config.model, self.config.sampling_args, options)
        await engine.play(self.rollouts, owed, on_sealed)

    async def _read(self, row: Mapping[str, Any], client: Any, model: str, sampling_args: Any = None) -> State:
        """What stands for playing a rollout: its record, read into a state."""
        record = self.rollouts.source.record_at(row["place"])
        try:
            env, route, task = self.tasks.of(record)
            # The base class's: what an environment adds to a fresh state belongs to playing, and counts as unsaved.
            fresh = await Environment.init_state(env, task, client, model, sampling_args)
            state = saved_state(fresh, record, columns_of(record, self._metrics(record), self.columns))
            if route:
                state["env_route"] = route
        except Exception as error:  # boundary: a record may hold anything
            task = RolloutInput(prompt=[], example_id=record.get("example_id", 0))
            empty = {"input": task, "trajectory": [], "completion": [], "timing": RolloutTiming()}
            state = SavedState({**empty, "error": as_error(error, StoreError, "reading the record")}, record)
            state.unreadable = True
        state.place = row["place"]
        return state

    def _metrics(self, record: Mapping[str, Any]) -> set[str]:
        return self.metrics | set(record.get("metrics") or {})

    def _joined(self, sealed: RolloutOutput, state: SavedState) -> RolloutOutput:
        """The old record with the new scores in place of its own."""
        old = state.record
        scores = {key: sealed[key] for key in (*_SCORES, "timing", "advantage") if key in sealed}
        if state.unreadable:
            scores["outcome"] = str(Outcome.UNSCORED)
        _leave_unscored(scores, state)
        metrics = self._metrics(old)
        columns = columns_of(old, metrics, self.columns)
        stale = {*_SCORES, "advantage", "timing", *((metrics | self.columns) - columns.keys())} - _NO_SCORES
        kept = {key: value for key, value in old.items() if key not in stale}
        if "trajectory" in old and "trajectory" in sealed:
            kept["trajectory"] = sealed["trajectory"]
        if "spent" in old:  # the rollout's own, and the judge's of this scoring
            judge = {"judge": sealed["spent"]["judge"]} if "judge" in sealed.get("spent", {}) else {}
            kept["spent"] = {key: value for key, value in old["spent"].items() if key != "judge"} | judge
        new = {key: value for key, value in sealed.items() if key not in ("trajectory", "state_keys", "spent")}
        return RolloutOutput({**new, **scores["metrics"], **kept, **scores, "before": _before(old)})


def _as_it_was(planned: PlannedRollout, record: Mapping[str, Any]) -> RolloutOutput:
    """A record that is not scored; those of v0 get the ids by which they are known when this is continued."""
    ids = {name: getattr(planned, name) for name in ("task_id", "rollout_id", "rollout_index")}
    return RolloutOutput({**ids, **record, "before": _before(record)})


def _watching(score: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """The scoring method, with reads of state that was not saved being errors meanwhile."""

    async def watched(given: Any) -> None:
        states = [given] if isinstance(given, SavedState) else list(given)
        for state in states:
            state.watched = True
        try:
            await score(given)
        finally:
            for state in states:
                state.watched = False

    return watched


def _leave_unscored(scores: dict[str, Any], state: SavedState) -> None:
    """A rubric that missed something of the state has no score to give, however it went on.

    It may have caught the error, or have been told that failures count as 0.
    """
    if not state.missed:
        return
    errors = dict(_unsaved(state))
    told = {key for error in errors.values() for key in error.keys}
    as_zero = state.get("on_reward_error") == "zero" and errors
    if as_zero:
        scores["metrics"] = {
            name: None if name in errors else value for name, value in scores["metrics"].items()
        }
    if as_zero or not set(state.missed) <= told:
        scores["reward"] = None
        scores["outcome"] = str(Outcome.UNSCORED)
        scores["error"] = error_record(UnsavedStateError(list(state.missed)))


def _unsaved(state: SavedState) -> Iterator[tuple[str, UnsavedStateError]]:
    for name, error in (state.get("scoring_errors") or {}).items():
        for link in ErrorChain(error).chain:
            if isinstance(link, UnsavedStateError):
                yield name, link


def _before(record: Mapping[str, Any]) -> dict[str, Any]:
    outcome = outcome_of(record)
    return {"reward": None if outcome == Outcome.UNSCORED else record.get("reward"), "outcome": outcome}
