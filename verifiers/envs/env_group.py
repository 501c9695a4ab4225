"""`EnvGroup`: several environments as one, each row routed to the environment it came from.

    group = vf.EnvGroup([math, code], env_names=["math", "code"])

A row's route is `info["env_id"]`: a name, or a list of names for groups in groups. Rows without it are routed by
their `task` column, as in the first releases. The child plays and scores the rollout and does not see its route.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from verifiers.envs.environment import Environment, merge_sampling_args, read_info
from verifiers.envs.formatting import PromptFormat, map_rows
from verifiers.errors import EnvironmentCodeError
from verifiers.parsers.parser import Parser
from verifiers.rubrics.problems import Problem
from verifiers.rubrics.rubric import Rubric
from verifiers.types import RolloutInput, SamplingArgs, State

if TYPE_CHECKING:
    from datasets import Dataset

_ROUTE = "env_route"


@contextmanager
def _inside(states: Sequence[State]) -> Iterator[str]:
    """The first name of the states' common route, which is taken off while the child has them."""
    name: str = states[0][_ROUTE][0]
    for state in states:
        state[_ROUTE] = state[_ROUTE][1:]
    try:
        yield name
    finally:
        for state in states:
            state[_ROUTE] = [name, *state[_ROUTE]]


class EnvGroupRubric(Rubric):
    """Scores each rollout with the rubric of the child that played it.

    The metrics of the other children are reported as None: they do not apply, and averages skip them.
    """

    def __init__(self, children: dict[str, Environment]) -> None:
        super().__init__()
        self.children = children

    def bind_parser(self, parser: Parser) -> None:
        """Nothing to inherit: each child has given its rubric its own parser."""

    @property
    def requires_group(self) -> bool:
        return any(child.rubric.requires_group for child in self.children.values())

    def get_reward_func_names(self) -> list[str]:
        names = [name for child in self.children.values() for name in child.rubric.get_reward_func_names()]
        return list(dict.fromkeys(names))

    def check(self, columns: Iterable[str] | None) -> list[Problem]:
        """Nothing of its own: the group asks each child."""
        return []

    async def get_ready(self) -> None:
        for child in self.children.values():
            if child.score_rollouts:
                await child.rubric.get_ready()

    async def score_rollout(self, state: State) -> None:
        with _inside([state]) as name:
            await self.children[name].rubric.score_rollout(state)
        self._fill_metrics(state)

    async def score_group(self, states: Sequence[State]) -> None:
        for name in dict.fromkeys(state[_ROUTE][0] for state in states):
            members = [state for state in states if state[_ROUTE][0] == name]
            with _inside(members):
                await self.children[name].rubric.score_group(members)
            for state in members:
                self._fill_metrics(state)

    async def cleanup(self, state: State) -> None:
        if state.get(_ROUTE):
            with _inside([state]) as name:
                await self.children[name].rubric.cleanup(state)

    async def teardown(self) -> None:
        """Each child tears its own rubric down."""

    def _fill_metrics(self, state: State) -> None:
        own = state["metrics"] or {}
        if state.get("reward") is not None:
            state["metrics"] = {**dict.fromkeys(self.get_reward_func_names()), **own}


class EnvGroup(Environment):
    """Environments under names (default env_0, env_1, …); raises ValueError for none, or names that do not fit."""

    def __init__(
        self,
        envs: list[Environment],
        env_names: list[str] | None = None,
        map_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not envs:
            raise ValueError("EnvGroup needs at least one environment")
        names = env_names or [f"env_{number}" for number in range(len(envs))]
        if len(names) != len(envs) or len(set(names)) != len(names):
            raise ValueError(f"EnvGroup needs one distinct name for each of {len(envs)} environments, got {names}")
        self.envs = list(envs)
        self.env_names = list(names)
        self.env_map = dict(zip(names, envs, strict=True))
        self.record_columns = tuple(dict.fromkeys(name for env in envs for name in env.record_columns))
        self._encoded: dict[str, set[str]] = {"train": set(), "eval": set()}
        kwargs.setdefault("rubric", EnvGroupRubric(self.env_map))
        has_train = any(env.has_split("train") for env in envs)
        super().__init__(
            dataset=partial(self._concatenate, "train") if has_train else None,
            eval_dataset=partial(self._concatenate, "eval"),
            map_kwargs=map_kwargs,
            **kwargs,
        )
        if not self.system_prompt:
            self._format = PromptFormat(completion_mode=True)  # the children's prompts are made, texts among them

    # --- data ------------------------------------------------------------------------------------------------

    def _concatenate(self, split: str) -> Dataset:
        """The children's rows, one after the other. A column whose type differs is kept as JSON text."""
        from datasets import concatenate_datasets

        parts: list[Dataset] = []
        for name, env in self.env_map.items():
            if split == "train" and not env.has_split("train"):
                continue
            rows = env.get_dataset() if split == "train" else env.get_eval_dataset()
            rows = rows.remove_columns("example_id")
            parts.append(map_rows(rows, partial(_add_route, name=name), self.map_kwargs))
        differing = _differing_columns(parts) - {"info"}
        self._encoded[split] = differing
        if differing:
            parts = [
                map_rows(
                    part,
                    partial(_encode, columns=differing),
                    {**self.map_kwargs, "features": _as_text(part, differing)},
                )
                for part in parts
            ]
        return concatenate_datasets(parts)

    def check(self) -> list[Problem]:
        """What the children find, each about its own rubric and columns."""
        return [problem.of(name) for name, env in self.env_map.items() for problem in env.check()]

    # --- routing ---------------------------------------------------------------------------------------------

    def get_env_for_name(self, name: str) -> Environment:
        """The child of that name. Raises EnvironmentCodeError for an unknown one."""
        if name not in self.env_map:
            known = ", ".join(self.env_names)
            raise EnvironmentCodeError(f"no environment of the group is named {name!r}; there are: {known}")
        return self.env_map[name]

    def get_env_for_task(self, task: str) -> Environment:
        """The child that rows with that `task` are routed to."""
        return self.get_env_for_name(task)

    def _route(self, input: Any) -> tuple[str, RolloutInput]:
        """The name of the child that a row belongs to, and the row as the child sees it."""
        row = RolloutInput(input)
        info = read_info(row.get("info"), row.get("example_id"))
        route = info.get("env_id") if isinstance(info, dict) else None
        path = [route] if isinstance(route, str) else list(route or [])
        if not path and row.get("task") in self.env_map:
            path = [row["task"]]
        if not path and len(self.envs) == 1:
            path = [self.env_names[0]]
        if not path:
            raise EnvironmentCodeError(
                f"row {row.get('example_id')} names no environment of the group",
                hint=f"Set info['env_id'] to one of: {', '.join(self.env_names)}.",
            )
        self.get_env_for_name(path[0])
        rest = {key: value for key, value in info.items() if key != "env_id"} if isinstance(info, dict) else {}
        if len(path) > 1:
            rest["env_id"] = path[1:]
        row["info"] = rest
        if row.get("task") == path[0]:
            row.pop("task")
        return path[0], self._decode(row)

    def _decode(self, row: RolloutInput) -> RolloutInput:
        for column in self._encoded["train"] | self._encoded["eval"]:
            if isinstance(row.get(column), str):
                # A row that did not come from the group's data set holds the plain value.
                with suppress(ValueError):
                    row[column] = json.loads(row[column])
        # Columns that only other children have are filled with None.
        for column in [key for key, value in row.items() if value is None]:
            row.pop(column)
        return row

    async def rollout(
        self, input: Any, client: Any, model: str, sampling_args: SamplingArgs | None = None
    ) -> State:
        """Let the row's environment play it."""
        name, row = self._route(input)
        child = self.env_map[name]
        state = await child.rollout(row, client, model, merge_sampling_args(child.sampling_args, sampling_args))
        state[_ROUTE] = [name, *state.get(_ROUTE, [])]
        return state

    def set_max_seq_len(self, max_seq_len: int | None) -> None:
        """Set it on the group and on every child."""
        super().set_max_seq_len(max_seq_len)
        for env in self.envs:
            env.set_max_seq_len(max_seq_len)

    def set_score_rollouts(self, score_rollouts: bool) -> None:
        """Set it on the group and on every child."""
        super().set_score_rollouts(score_rollouts)
        for env in self.envs:
            env.set_score_rollouts(score_rollouts)

    def set_timeout_seconds(self, timeout_seconds: float | None) -> None:
        """Set it on every child, which play the rollouts: `--timeout`."""
        for env in self.envs:
            env.set_kwargs(timeout_seconds=timeout_seconds)


def _add_route(row: dict[str, Any], name: str) -> dict[str, Any]:
    info = read_info(row.get("info"), None)
    info = dict(info) if isinstance(info, dict) else {}
    inner = info.get("env_id")
    path = [inner] if isinstance(inner, str) else list(inner or [])
    info["env_id"] = [name, *path] if path else name
    added: dict[str, Any] = {"info": json.dumps(info)}
    if row.get("task") is None:
        added["task"] = name
    return added


def _differing_columns(parts: list[Dataset]) -> set[str]:
    types: dict[str, Any] = {}
    differing = set()
    for part in parts:
        for column, feature in part.features.items():
            if types.setdefault(column, feature) != feature:
                differing.add(column)
    return differing


def _encode(row: dict[str, Any], columns: set[str]) -> dict[str, Any]:
    return {column: json.dumps(row[column]) for column in columns if column in row}


def _as_text(part: Dataset, columns: set[str]) -> Any:
    from datasets import Features, Value

    return Features(
        {name: Value("string") if name in columns else feature for name, feature in part.features.items()}
    )
