"""`RubricGroup`: several rubrics as one; rewards and metrics are added up.

    rubric = RubricGroup([MathRubric(), judge_rubric])

Each child scores with its own functions, parser and class objects. Reward, advantage and the steps' values are
computed once, from the sum (verifiers#2009). What the group is given beyond `rubrics` is its own: a parser for
children without one, and functions, which form a child of their own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal

from verifiers.decorators import marked
from verifiers.errors import Error, is_failure
from verifiers.parsers.parser import Parser
from verifiers.rubrics.failures import failure_of, is_fatal
from verifiers.rubrics.problems import Problem, shared_names
from verifiers.rubrics.rubric import Rubric
from verifiers.rubrics.scores import Sheet, joining, sheet_of
from verifiers.types import RewardFunc, State

_Override = Literal["score_group", "score_rollout"]

_WRITTEN = ("reward", "metrics", "advantage", "error", "scoring_errors")
"""What scoring writes into a state; besides these only the steps of the trajectory."""


class RubricGroup(Rubric):
    """Adds up the rewards and metrics of its rubrics.

    Args:
        rubrics: at least one; the list itself is not changed.
        kwargs: as for `Rubric`; `funcs` and `weights` become one more rubric.

    Raises ValueError if there is no rubric.
    """

    def __init__(self, rubrics: Iterable[Rubric], **kwargs: Any) -> None:
        self.rubrics: list[Rubric] = list(rubrics)
        if not self.rubrics:
            raise ValueError("a RubricGroup needs at least one rubric")
        super().__init__(**kwargs)
        if self.funcs:
            self.rubrics.append(Rubric(self.funcs, self.weights))
        if self._inherited_parser is None:
            self._hand_down(self.parser)

    # --- building -------------------------------------------------------------------------------------------

    def add_reward_func(self, func: RewardFunc, weight: float = 1.0) -> None:
        """Add a function to the first rubric."""
        self._mention_once("a function added to a RubricGroup goes to its first rubric")
        self.rubrics[0].add_reward_func(func, weight)

    def add_metric(self, func: RewardFunc, weight: float = 0.0) -> None:
        """Add a metric to the first rubric."""
        self._mention_once("a metric added to a RubricGroup goes to its first rubric")
        self.rubrics[0].add_metric(func, weight)

    def add_class_object(self, name: str, obj: Any) -> None:
        """Add a class object to the first rubric."""
        self._mention_once("a class object added to a RubricGroup goes to its first rubric")
        self.rubrics[0].add_class_object(name, obj)

    def bind_parser(self, parser: Parser) -> None:
        """A child's own parser comes first, then the group's, then the environment's (verifiers#327)."""
        super().bind_parser(parser)
        self._hand_down(self.parser)

    def _hand_down(self, parser: Parser) -> None:
        for rubric in self.rubrics:
            rubric.bind_parser(parser)

    def check(self, columns: Iterable[str] | None) -> list[Problem]:
        """The problems of all rubrics, and the metric names that several of them share: v0 adds those up."""
        known = None if columns is None else list(columns)
        problems = [problem for rubric in self.rubrics for problem in rubric.check(known)]
        own = [sorted(set(rubric.get_reward_func_names())) for rubric in self.rubrics]
        problems += shared_names(own)
        return problems + ([self._parser_conflict] if self._parser_conflict else [])

    async def get_ready(self) -> None:
        for rubric in self.rubrics:
            await rubric.get_ready()

    @property
    def scores_itself(self) -> bool:
        """Whether one of the rubrics overrides how rollouts are scored."""
        return super().scores_itself or any(rubric.scores_itself for rubric in self.rubrics)

    @property
    def has_cleanup(self) -> bool:
        """Whether one of the rubrics has anything to do after a rollout."""
        overridden = getattr(self.cleanup, "__func__", None) is not RubricGroup.cleanup
        return overridden or bool(marked(self, "cleanup")) or any(rubric.has_cleanup for rubric in self.rubrics)

    @property
    def requires_group(self) -> bool:
        """Whether one of the rubrics compares rollouts."""
        return any(rubric.requires_group for rubric in self.rubrics)

    @property
    def has_advantages(self) -> bool:
        """Whether one of the rubrics sets the advantages itself."""
        return any(rubric.has_advantages for rubric in self.rubrics)

    def get_reward_funcs(self) -> list[RewardFunc]:
        """The functions of all rubrics."""
        return [func for rubric in self.rubrics for func in rubric.get_reward_funcs()]

    def get_reward_weights(self) -> list[float]:
        """The weights of all rubrics."""
        return [weight for rubric in self.rubrics for weight in rubric.get_reward_weights()]

    def get_reward_func_names(self) -> list[str]:
        """The function names of all rubrics."""
        return [name for rubric in self.rubrics for name in rubric.get_reward_func_names()]

    # --- scoring --------------------------------------------------------------------------------------------

    async def sheets(self, states: Sequence[State], together: bool) -> list[list[Sheet]]:
        """The sheets of all rubrics, in order."""
        found: list[list[Sheet]] = [[] for _ in states]
        for rubric in self.rubrics:
            override = _own_scoring(rubric, together)
            if override is None:
                own = await rubric.sheets(states, together)
            else:
                own = [[sheet] for sheet in await _by_override(rubric, states, override)]
            for all_sheets, new in zip(found, own, strict=True):
                all_sheets.extend(new)
        return found

    async def cleanup(self, state: State) -> None:
        """Clean up after all rubrics, all of them even if one raises; raises the first error."""
        await _call_all([super().cleanup, *(rubric.cleanup for rubric in self.rubrics)], state)

    async def teardown(self) -> None:
        """Tear down all rubrics, all of them even if one raises; raises the first error."""
        await _call_all([super().teardown, *(rubric.teardown for rubric in self.rubrics)])


def _own_scoring(rubric: Rubric, together: bool) -> _Override | None:
    """The scoring method that the class of the rubric overrides, if it does; None if the base scores."""
    cls = type(rubric)
    if together and cls.score_group is not Rubric.score_group:
        return "score_group"
    if cls.score_rollout is not Rubric.score_rollout and not (together and rubric.requires_group):
        return "score_rollout"
    return None


async def _by_override(rubric: Rubric, states: Sequence[State], override: _Override) -> list[Sheet]:
    """Have a rubric with scoring of its own write into the states, and take out again what it wrote."""
    before = [{key: state.get(key) for key in _WRITTEN} for state in states]
    name = type(rubric).__name__
    with joining():
        if override == "score_group":
            failures = [await _failure(rubric.score_group, states, name, states[0])] * len(states)
        else:
            failures = [await _failure(rubric.score_rollout, state, name, state) for state in states]
    sheets = [sheet_of(state, name, failure) for state, failure in zip(states, failures, strict=True)]
    for state, values in zip(states, before, strict=True):
        state.update(values)
    return sheets


async def _failure(score: Callable[[Any], Awaitable[None]], given: Any, name: str, state: State) -> Error | None:
    """What the scoring of the rubric `name` failed with; raised where that ends the run."""
    try:
        await score(given)
    except BaseException as error:  # boundary: the override is the author's code
        if not is_failure(error):
            raise
        failure = failure_of(error, name)
        if is_fatal(failure) or state.get("on_reward_error") == "raise":
            raise failure from failure.__cause__
        return failure
    return None


async def _call_all(calls: Iterable[Callable[..., Awaitable[None]]], *args: Any) -> None:
    first: BaseException | None = None
    for call in calls:
        try:
            await call(*args)
        except BaseException as error:  # boundary: handlers are the author's code, and the others must still run
            if not is_failure(error):
                raise
            first = first or error
    if first is not None:
        raise first
