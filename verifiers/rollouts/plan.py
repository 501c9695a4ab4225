"""Which rollouts a run consists of, each with an identity that does not depend on when it is played.

A task is known by the hash of its content, a rollout by the run's seed, its task and its number within the group.
The same rows and seed give the same ids in every run (so that a run can be continued, and two runs compared).
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, overload

import orjson

from verifiers.types import plain_copy


class Rows(Protocol):
    """Tasks by position: a list of dicts, or a `datasets.Dataset`."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class PlannedRollout:
    """One rollout to play: the row at `position` of the rows, the `rollout_index`-th of its group."""

    position: int
    example_id: int
    task_id: str
    rollout_index: int
    rollout_id: str


def task_id_of(row: dict[str, Any]) -> str:
    """SHA-256 over the row as JSON with sorted keys, without `example_id`, which only says where it stood."""
    content = {key: value for key, value in row.items() if key != "example_id"}
    return hashlib.sha256(_canonical(content)).hexdigest()


def _canonical(content: Any) -> bytes:
    try:
        return orjson.dumps(content, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS, default=repr)
    except TypeError:
        # Integers beyond 64 bits and the like, which orjson refuses.
        return repr(content).encode()


def rollout_id_of(run_seed: int | None, task_id: str, attempt: int, repeat: int = 0) -> str:
    """32 hexadecimal digits for one rollout of a run; `repeat` counts the equal rows before its own."""
    text = f"{run_seed}\0{task_id}\0{attempt}" + (f"\0{repeat}" if repeat else "")
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def sampling_seed_of(rollout_id: str) -> int:
    """The seed that the model samples this rollout with: 31 bits."""
    return int(rollout_id[:8], 16) >> 1


class Plan(Sequence[PlannedRollout]):
    """The rollouts of a run, in the order in which they are played.

    Kept as numbers and digests, from which the entries are made when they are asked for: 100,000 rollouts take some
    5 MB, as objects they would take ten times as much.
    """

    def __init__(self, run_seed: int | None = None) -> None:
        self._seed = run_seed
        self._digests = bytearray()  # 32 bytes a row
        self._repeats = array("L")  # one a row
        self._positions = array("L")
        self._example_ids: list[int] = []
        self._members = array("L")
        self._attempts = array("L")

    @overload
    def __getitem__(self, index: int) -> PlannedRollout: ...
    @overload
    def __getitem__(self, index: slice) -> Plan: ...
    def __getitem__(self, index: int | slice) -> PlannedRollout | Plan:
        if isinstance(index, slice):
            return self.select(range(*index.indices(len(self))))
        position = self._positions[index]
        task_id = self._digests[32 * position : 32 * position + 32].hex()
        rollout_id = rollout_id_of(self._seed, task_id, self._attempts[index], self._repeats[position])
        return PlannedRollout(
            position, self._example_ids[index], task_id, self._members[index], rollout_id
        )

    def __len__(self) -> int:
        return len(self._positions)

    def select(self, indexes: Iterable[int]) -> Plan:
        """The part of the plan at `indexes`; rows keep their positions."""
        part = Plan(self._seed)
        part._digests, part._repeats = self._digests, self._repeats
        for index in indexes:
            part._append(
                self._positions[index], self._example_ids[index], self._members[index], self._attempts[index]
            )
        return part

    def _append(self, position: int, example_id: int, member: int, attempt: int) -> None:
        self._positions.append(position)
        self._example_ids.append(example_id)
        self._members.append(member)
        self._attempts.append(attempt)


def plan_rollouts(
    rows: Rows | Sequence[Any], rollouts_per_example: int = 1, run_seed: int | None = None
) -> Plan:
    """All rollouts of the rows, group after group. Rows with the same `example_id` belong to one group."""
    plan = Plan(run_seed)
    members: Counter[int] = Counter()
    # Equal rows are one task, whose rollouts differ all the same, and stay who they are when a run grows.
    equal: Counter[str] = Counter()
    for position, row in enumerate(_iterate(rows)):
        task_id = task_id_of(row)
        example_id = row.get("example_id", position)
        plan._digests += bytes.fromhex(task_id)
        plan._repeats.append(equal[task_id])
        equal[task_id] += 1
        for attempt in range(rollouts_per_example):
            plan._append(position, example_id, members[example_id], attempt)
            members[example_id] += 1
    return plan


def _iterate(rows: Any) -> Iterable[dict[str, Any]]:
    return rows if hasattr(rows, "__iter__") else (rows[position] for position in range(len(rows)))


class RowReader:
    """Reads rows by position, those of a `datasets.Dataset` in blocks: one at a time costs 0.1 ms each."""

    BLOCK = 32

    def __init__(self, rows: Rows) -> None:
        self._rows: Any = rows
        self._in_blocks = hasattr(rows, "column_names")
        self._start = -self.BLOCK
        self._block: list[dict[str, Any]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, position: int) -> dict[str, Any]:
        """A copy of the row, which may be changed."""
        if not self._in_blocks:
            return plain_copy(dict(self._rows[position]))
        if not 0 <= position - self._start < len(self._block):
            self._start = position - position % self.BLOCK
            columns = self._rows[self._start : self._start + self.BLOCK]
            names = list(columns)
            self._block = [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return plain_copy(self._block[position - self._start])
