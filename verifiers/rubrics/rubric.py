"""`Rubric`: weighted reward functions that turn a finished rollout into a reward and metrics.

    def correct(completion, answer) -> float:
        return float(answer in completion[-1]["content"])

    rubric = Rubric(funcs=[correct])
    rubric.add_metric(length)              # weight 0: reported, not rewarded

A function, sync or async, gets what its parameters name: any column of the data set, prompt, completion, answer,
state, info, task, parser and the rubric's class objects; with `**kwargs` all of them. A function that names a
plural (prompts, completions, states, ...) or is declared to return a list is a group function: it gets the lists
of all rollouts of a task and returns one number each.

The functions of a rollout run in the order added and may pass values on through `state`; rollouts score at the same
time; sync functions run in threads; each call has a time limit. A function that raises, runs out of time or returns
no finite number leaves the rollout *unscored* (`reward` None with a typed error), unless
`state["on_reward_error"]` is "zero" (counts as 0.0) or "raise". Not here: extracting answers (`parsers`), comparing
them (`grading`), and limits on how many rollouts score at once (`rollouts`).
"""

from __future__ import annotations

import difflib
import inspect
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

from verifiers.decorators import accepted, call_with, function_name, marked, maybe_await
from verifiers.errors import ConfigError, EnvironmentCodeError, Error, RewardError, is_failure
from verifiers.parsers.parser import Parser, identity
from verifiers.rubrics.calls import call_within
from verifiers.rubrics.functions import SINGULAR_OF, FunctionRun, RewardFunction, Row, is_group_function
from verifiers.rubrics.problems import Problem, bad_weights, differing_parser, shared_names, unsuppliable
from verifiers.rubrics.scores import (
    Sheet,
    as_metric,
    as_score,
    is_failed,
    joined_metrics,
    settle,
    share_advantages,
)
from verifiers.types import RewardFunc, RolloutScores, State


class Rubric:
    """Weighted reward functions. The reward of a rollout is the weighted sum of their values.

    Args:
        funcs: reward functions, individual or group.
        weights: one a function; default 1.0 each.
        parser: handed to functions that name `parser`. Default: the environment's.
        parallelize_scoring: kept for the 0.1 series; rollouts always score concurrently.
        kwargs: `reward_funcs` and `reward_weights` (0.1 names of the first two); others become attributes.

    Raises ValueError if there are not as many weights as functions or one is no finite number, TypeError for a
    function that can not be called.
    """

    reward_timeout: float | None = 120.0
    """Seconds that one call of one function may take; None for no limit."""

    def __init__(
        self,
        funcs: Iterable[RewardFunc] | None = None,
        weights: Iterable[float] | None = None,
        parser: Parser | None = None,
        parallelize_scoring: bool = True,
        **kwargs: Any,
    ) -> None:
        self.logger = logging.getLogger(f"verifiers.rubrics.{type(self).__name__}")
        old_funcs, old_weights = kwargs.pop("reward_funcs", None), kwargs.pop("reward_weights", None)
        self.funcs: list[RewardFunc] = list((old_funcs if funcs is None else funcs) or ())
        chosen = old_weights if weights is None else weights
        self.weights: list[float] = list(() if chosen is None else chosen) or [1.0] * len(self.funcs)
        if len(self.weights) != len(self.funcs):
            raise ValueError(f"{len(self.weights)} weights for {len(self.funcs)} reward functions")
        for func, weight in zip(self.funcs, self.weights, strict=True):
            _check_function(func, weight)
        self.parser: Parser = parser if parser is not None else Parser()
        self._inherited_parser = self.parser if parser is None else None
        self.parallelize_scoring = parallelize_scoring
        self.class_objects: dict[str, Any] = {"parser": self.parser}
        self._parser_conflict: Problem | None = None
        self._mentioned: set[str] = set()
        self._keep(kwargs)

    def _keep(self, attributes: Mapping[str, Any]) -> None:
        """Unknown keywords become attributes, as published code expects; near misses are pointed out."""
        makers = (Rubric.__init__, type(self).__init__)
        known = {name for maker in makers for name in inspect.signature(maker).parameters if name != "self"}
        for name, value in attributes.items():
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            if close:
                self.logger.warning("%r is kept as an attribute; was %r meant?", name, close[0])
            setattr(self, name, value)

    # --- building -------------------------------------------------------------------------------------------

    def add_reward_func(self, func: RewardFunc, weight: float = 1.0) -> None:
        """Add a function that counts towards the reward."""
        _check_function(func, weight)
        self.funcs.append(func)
        self.weights.append(weight)

    def add_metric(self, func: RewardFunc, weight: float = 0.0) -> None:
        """Add a function that is reported and, with weight 0, does not count."""
        _check_function(func, weight)
        self.funcs.append(func)
        self.weights.append(weight)

    def add_class_object(self, name: str, obj: Any) -> None:
        """Make `obj` available to reward functions that name it."""
        self.class_objects[name] = obj

    def bind_parser(self, parser: Parser) -> None:
        """Use the environment's parser, unless this rubric was given its own (verifiers#277)."""
        if self.parser is self._inherited_parser:
            if self.class_objects.get("parser") is self.parser:
                self.class_objects["parser"] = parser
            self._inherited_parser = self.parser = parser
        elif not passes_all(parser):
            self._parser_conflict = differing_parser(type(self).__name__, self.parser, parser)

    def check(self, columns: Iterable[str] | None) -> list[Problem]:
        """What is likely a mistake of the author, one sentence each: parameters that nothing can supply, weights,
        names that several functions share, a parser that is not the environment's.

        `columns` are those of the data set; None, while they are not known, leaves the parameters unchecked.
        """
        names = self.get_reward_func_names()
        problems = [] if columns is None else list(unsuppliable(self.get_reward_funcs(), columns, self.class_objects))
        problems += [*bad_weights(names, self.get_reward_weights()), *shared_names([names])]
        return problems + ([self._parser_conflict] if self._parser_conflict else [])

    async def get_ready(self) -> None:
        """Called before rollouts are played. Raises what would keep every one of them from being scored."""

    @property
    def scores_itself(self) -> bool:
        """Whether the class overrides how rollouts are scored, so that its functions may not be all that counts."""
        cls = type(self)
        methods = ("score_rollout", "score_group", "score_rollouts")
        return any(getattr(cls, name) is not getattr(Rubric, name) for name in methods)

    @property
    def has_cleanup(self) -> bool:
        """Whether there is anything to do after a rollout."""
        overridden = getattr(self.cleanup, "__func__", None) is not Rubric.cleanup
        return overridden or bool(marked(self, "cleanup"))

    @property
    def requires_group(self) -> bool:
        """Whether scoring compares the rollouts of a task, so that they cannot be scored one by one.

        A subclass that overrides `score_group` alone does: v0 scored every run with that method.
        """
        cls = type(self)
        own_group = cls.score_group is not Rubric.score_group and cls.score_rollout is Rubric.score_rollout
        if own_group or self._scores_in_old_way():
            return True
        return any(map(is_group_function, self.get_reward_funcs()))

    @property
    def has_group_rewards(self) -> bool:
        """`requires_group`, under its name in v0."""
        return self.requires_group

    @property
    def has_advantages(self) -> bool:
        """Whether scoring sets `state["advantage"]` itself. Override it along with `score_group`."""
        return False

    # --- names of the 0.1 series ----------------------------------------------------------------------------

    @property
    def reward_funcs(self) -> list[RewardFunc]:
        """The functions, under their 0.1 name."""
        return self.funcs

    @reward_funcs.setter
    def reward_funcs(self, funcs: list[RewardFunc]) -> None:
        self.funcs = funcs

    @property
    def reward_weights(self) -> list[float]:
        """The weights, under their 0.1 name."""
        return self.weights

    @reward_weights.setter
    def reward_weights(self, weights: list[float]) -> None:
        self.weights = weights

    def get_reward_funcs(self) -> list[RewardFunc]:
        """The functions that score, in order."""
        return self.funcs

    def get_reward_weights(self) -> list[float]:
        """Their weights."""
        return self.weights

    def get_reward_func_names(self) -> list[str]:
        """Their names, by which metrics are keyed."""
        return [function_name(func) for func in self.get_reward_funcs()]

    # --- scoring --------------------------------------------------------------------------------------------

    async def score_group(self, states: Sequence[State]) -> None:
        """Score the rollouts of one task: writes `reward`, `metrics` and `advantage` of each.

        A rollout that failed (its `error` is set) is not scored and takes no part in the group's mean. Raises
        only what ends the run: a fatal error (a refused key), or any under `on_reward_error="raise"`.
        """
        if not states:
            self.logger.warning("there are no rollouts to score")
            return
        await self._score(states, together=True)
        share_advantages(states, keep=self.has_advantages)

    async def score_rollout(self, state: State) -> None:
        """Score one rollout by itself: writes `reward` and `metrics`. Raises as `score_group` does.

        Raises ConfigError if the rubric compares rollouts.
        """
        if self.requires_group:
            raise ConfigError(
                f"{type(self).__name__} compares the rollouts of a task, so they cannot be scored one by one",
                hint="Leave out independent scoring, or use individual reward functions only.",
            )
        await self._score([state], together=False)

    async def score_rollouts(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        answers: Sequence[Any],
        states: Sequence[State],
        tasks: Sequence[str],
        infos: Sequence[dict[str, Any]] = (),
        **kwargs: Any,
    ) -> RolloutScores:
        """The scores of the rollouts of one task. A subclass that overrides this (0.1) is scored by it.

        An unscored rollout has the reward None.
        """
        columns = {
            "prompt": prompts,
            "completion": completions,
            "answer": answers,
            "task": tasks,
            "info": infos,
        }
        given = [
            {name: values[row] for name, values in columns.items() if row < len(values)} | kwargs
            for row in range(len(states))
        ]
        sheets = await self._run_functions(states, given)
        for state, sheet in zip(states, sheets, strict=True):
            if sheet.errors:
                state["scoring_errors"] = sheet.errors
        rewards: list[Any] = [None if sheet.failure else sheet.reward for sheet in sheets]
        rows: list[dict[str, Any]] = [joined_metrics([sheet]) for sheet in sheets]
        return RolloutScores(
            rewards, {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
        )

    async def dummy_score_rollout(self, state: State) -> None:
        """Leave the rollout without metrics and with reward 0.0 (None if it failed): `score_rollouts=False`."""
        state["reward"] = None if is_failed(state) else 0.0
        state["metrics"] = {}

    async def dummy_score_group(self, states: Sequence[State]) -> None:
        """`dummy_score_rollout` for each."""
        for state in states:
            await self.dummy_score_rollout(state)

    async def cleanup(self, state: State) -> None:
        """Run the `@cleanup` methods of this rubric, all of them even if one raises; raises the first error."""
        await self._run_handlers("cleanup", lambda handler: call_with(handler, self.candidates(state)))

    async def teardown(self) -> None:
        """Run the `@teardown` methods of this rubric, all of them even if one raises; raises the first error."""
        await self._run_handlers("teardown", maybe_await)

    # --- how functions are run ------------------------------------------------------------------------------

    def candidates(self, state: State) -> dict[str, Any]:
        """What a reward function may ask for by name. Class objects shadow columns; `task` is last."""
        row = state.get("input") or {}
        task = {name: row[name] if name in row else dict.get(state, name) for name in State.INPUT_FIELDS}
        return {
            **row,
            **task,
            "completion": state.get("completion"),
            "answer": _or(task["answer"], ""),
            "state": state,
            "info": _or(task["info"], {}),
            "parser": self.parser,
            **self.class_objects,
            "task": task["task"],
        }

    async def _score(self, states: Sequence[State], together: bool) -> None:
        scored = [state for state in states if not is_failed(state)]
        found = iter(await self.sheets(scored, together) if scored else ())
        settle(states, [() if is_failed(state) else next(found) for state in states])

    async def sheets(self, states: Sequence[State], together: bool) -> list[list[Sheet]]:
        """What this rubric finds for each of these rollouts, none of which has failed; nothing is written yet.

        `together`: they are the rollouts of one task. One list of sheets a rollout, a sheet a rubric.
        """
        if self._scores_in_old_way() and together:
            return [[sheet] for sheet in await self._run_old_override(states)]
        return [[sheet] for sheet in await self._run_functions(states)]

    async def _run_functions(
        self, states: Sequence[State], given: Sequence[Mapping[str, Any]] | None = None
    ) -> list[Sheet]:
        """Run all functions over these rollouts. `given` replaces candidates, rollout by rollout."""
        funcs, weights = self.get_reward_funcs(), self.get_reward_weights()
        if len(funcs) != len(weights):
            raise ConfigError(
                f"{type(self).__name__} has {len(weights)} weights for {len(funcs)} reward functions"
            )
        rows: list[Row] = [self.candidates(state) for state in states]
        if given is not None:
            rows = [{**row, **more} for row, more in zip(rows, given, strict=True)]
        functions = [RewardFunction(*pair) for pair in zip(funcs, weights, strict=True)]
        return await self._function_run().run(functions, rows)

    def _function_run(self) -> FunctionRun:
        return FunctionRun(self.reward_timeout, self.class_objects, self._note_failure)

    def _note_failure(self, name: str, failure: Error, original: BaseException) -> None:
        self._mention_once(str(failure), key=f"failure of {name}")
        self.logger.debug("reward function '%s' failed", name, exc_info=original)

    # --- the override of the 0.1 series ---------------------------------------------------------------------

    def _scores_in_old_way(self) -> bool:
        return type(self).score_rollouts is not Rubric.score_rollouts

    async def _run_old_override(self, states: Sequence[State]) -> list[Sheet]:
        """Call the subclass's `score_rollouts` in place of the functions."""
        override = RewardFunction(self.score_rollouts, 1.0)
        rows: list[Row] = [self.candidates(state) for state in states]
        lists = {plural: [row[singular] for row in rows] for plural, singular in SINGULAR_OF.items()}
        run = self._function_run()
        sheets = [Sheet() for _ in states]
        try:
            # No time limit: the functions that it calls have theirs.
            scores = await call_within(override.call, accepted(override.call, lists), None)
            found = _rows_of(scores, len(states))
        except BaseException as error:  # boundary: the override is the author's code
            if not is_failure(error):
                raise
            for row, sheet in zip(rows, sheets, strict=True):
                run.enter_failure(override, error, row, sheet)
            return sheets
        for row, sheet, (reward, metrics) in zip(rows, sheets, found, strict=True):
            sheet.metrics = [(name, as_metric(value)) for name, value in metrics.items()]
            try:
                sheet.reward = as_score(reward, override.name)
            except RewardError as error:
                # The base class gives None for a rollout whose functions failed, and has noted why.
                noted = (row["state"].get("scoring_errors") or {}).values()
                sheet.failure = next(iter(noted), None)
                if sheet.failure is None:
                    run.enter_failure(override, error, row, sheet)
        return sheets

    # --- small things ---------------------------------------------------------------------------------------

    async def _run_handlers(self, mark: str, run: Callable[[Callable[..., Any]], Any]) -> None:
        first: Error | None = None
        for handler in marked(self, mark):
            try:
                await run(handler)
            except (
                Exception
            ) as error:  # boundary: a handler is the author's code, and the others must still run
                name = f"{type(self).__name__}.{function_name(handler)}"
                self.logger.warning("%s handler %s raised", mark, name, exc_info=error)
                first = first or EnvironmentCodeError(f"{mark} handler {name} raised {error!r}", cause=error)
        if first is not None:
            raise first

    def _mention_once(self, text: str, key: str | None = None) -> None:
        """Log a warning once per rubric and key: the same function fails alike in thousands of rollouts."""
        if (key or text) not in self._mentioned:
            self._mentioned.add(key or text)
            self.logger.warning("%s", text)


def passes_all(parser: Parser) -> bool:
    """Whether this is the default parser, which takes nothing out: an environment that was given none has it."""
    return type(parser) is Parser and parser.extract_fn is identity


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _rows_of(scores: Any, count: int) -> list[tuple[Any, dict[str, Any]]]:
    """The reward and the metrics of each rollout. Raises RewardError unless each list has one entry a rollout."""
    rewards, metrics = list(scores.reward), {name: list(values) for name, values in scores.metrics.items()}
    for name, values in {"reward": rewards, **metrics}.items():
        if len(values) != count:
            raise RewardError(
                f"score_rollouts returned {len(values)} values of '{name}' for {count} rollouts"
            )
    return [(rewards[i], {name: values[i] for name, values in metrics.items()}) for i in range(count)]


def _check_function(func: Any, weight: Any) -> None:
    if not callable(func):
        raise TypeError(f"a reward function is something to call, not {func!r:.100}")
    if not isinstance(weight, Real) or not math.isfinite(weight):
        raise ValueError(f"the weight of reward function '{function_name(func)}' is {weight!r:.100}, no finite number")
