"""Running the functions of a rubric over the rollouts of a task, and writing down what each gives.

`FunctionRun.run` takes the functions in order, each over all rollouts at once, and returns one sheet a rollout. A
function that fails is entered on the sheet with a typed error, or ends the run where that was asked for. How the
candidates for the parameters come about is the rubric's business (`rubric.py`).
"""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from verifiers.decorators import accepted, function_name, missing_parameters
from verifiers.errors import Error, RewardError, is_failure
from verifiers.rubrics.calls import all_of, call_within
from verifiers.rubrics.failures import failure_of, is_fatal
from verifiers.rubrics.scores import Sheet, as_score

SINGULAR_OF = {
    "prompts": "prompt",
    "completions": "completion",
    "answers": "answer",
    "states": "state",
    "tasks": "task",
    "infos": "info",
}
"""The parameters by which a group function is known, and whose lists they hold."""

Row = Mapping[str, Any]
"""What the functions may ask for, for one rollout: parameter name → value."""


class RewardFunction(NamedTuple):
    """One function of a rubric."""

    call: Callable[..., Any]
    weight: float

    @property
    def name(self) -> str:
        """What its metric is called."""
        return function_name(self.call)


class FunctionRun(NamedTuple):
    """How the functions of one rubric are run.

    timeout: seconds for one call of one function, None for no limit.
    shared: the class objects, which group functions get beside the lists.
    on_failure: told the function's name, the typed error and the original exception.
    """

    timeout: float | None
    shared: Row
    on_failure: Callable[[str, Error, BaseException], None]

    async def run(self, functions: Sequence[RewardFunction], rows: Sequence[Row]) -> list[Sheet]:
        """Run the functions over these rollouts. Raises only what ends the run."""
        sheets = [Sheet() for _ in rows]
        for function in functions:
            if is_group_function(function.call):
                await self._run_together(function, rows, sheets)
            elif len(rows) == 1:
                await self._run_one(function, rows[0], sheets[0])
            else:
                pairs = zip(rows, sheets, strict=True)
                await all_of([self._run_one(function, row, sheet) for row, sheet in pairs])
        return sheets

    def enter_failure(self, function: RewardFunction, error: BaseException, row: Row, sheet: Sheet) -> None:
        """Write a failed call down, or raise it where the run shall end."""
        failure = self._explained(function, error, row)
        policy = row["state"].get("on_reward_error") or "unscored"
        if is_fatal(failure) or policy == "raise":
            raise failure from failure.__cause__
        self.on_failure(function.name, failure, error)
        sheet.add_failure(function.name, failure, function.weight, policy)

    async def _run_one(self, function: RewardFunction, row: Row, sheet: Sheet) -> None:
        name = function.name
        try:
            value = as_score(await self._call(function, row), name)
        except BaseException as error:  # boundary: a reward function is the author's code
            if not is_failure(error):
                raise
            self.enter_failure(function, error, row, sheet)
        else:
            sheet.add(name, value, function.weight)

    async def _run_together(
        self, function: RewardFunction, rows: Sequence[Row], sheets: Sequence[Sheet]
    ) -> None:
        """One group function over the members that no function has failed on so far."""
        members = []
        for row, sheet in zip(rows, sheets, strict=True):
            if sheet.failure is None:
                members.append((row, sheet))
            else:
                sheet.metrics.append((function.name, None))
        if not members:
            return
        lists = {plural: [row[singular] for row, _ in members] for plural, singular in SINGULAR_OF.items()}
        candidates = {**lists, **self.shared}
        try:
            values = list(await self._call(function, candidates))
            if len(values) != len(members):
                raise RewardError(
                    f"group function '{function.name}' returned {len(values)} values for {len(members)} rollouts"
                )
        except BaseException as error:  # boundary: a reward function is the author's code
            if not is_failure(error):
                raise
            for row, sheet in members:
                self.enter_failure(function, error, {**candidates, "state": row["state"]}, sheet)
            return
        for value, (row, sheet) in zip(values, members, strict=True):
            try:
                sheet.add(function.name, as_score(value, function.name), function.weight)
            except RewardError as error:
                self.enter_failure(function, error, row, sheet)

    async def _call(self, function: RewardFunction, candidates: Row) -> Any:
        return await call_within(function.call, accepted(function.call, candidates), self.timeout)

    def _explained(self, function: RewardFunction, error: BaseException, candidates: Row) -> Error:
        if isinstance(error, TypeError) and (missing := _missing(function.call, candidates)):
            names = ", ".join(f"'{name}'" for name in missing)
            text = f"reward function '{function.name}' requires {names}, which nothing supplies"
            return RewardError(text, cause=error)
        return failure_of(error, function.name)


def is_group_function(func: Callable[..., Any]) -> bool:
    """Whether a reward function compares rollouts: it names a plural parameter or is declared to return a list."""
    target = getattr(func, "__func__", func)  # bound methods are made anew at each access
    try:
        return _compares(target)
    except TypeError:  # a callable object that cannot be hashed
        return _compares.__wrapped__(target)


@functools.lru_cache(maxsize=4096)
def _compares(func: Callable[..., Any]) -> bool:
    try:
        signature = inspect.signature(func)
    except (TypeError, ValueError):  # a builtin without signature
        return False
    return bool(SINGULAR_OF.keys() & signature.parameters.keys()) or _is_list(
        func, signature.return_annotation
    )


def _is_list(func: Callable[..., Any], hint: Any) -> bool:
    if isinstance(hint, str):  # postponed evaluation of annotations (PEP 563)
        holder = types.SimpleNamespace(__annotations__={"return": hint})
        names = getattr(inspect.unwrap(func), "__globals__", {})
        try:
            hint = typing.get_type_hints(holder, names)["return"]
        except (
            Exception
        ):  # boundary: the text may be any expression, e.g. name what only a type checker imports
            return re.match(r"(typing\.|t\.)?[Ll]ist\b", hint) is not None
    return hint is list or typing.get_origin(hint) is list


def _missing(func: Callable[..., Any], candidates: Row) -> list[str]:
    try:
        return missing_parameters(func, candidates)
    except ValueError:  # a builtin without signature
        return []
