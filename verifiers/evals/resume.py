"""Continuing a saved run: is it the same evaluation, and which of its rollouts are still owed.

A run may grow (more tasks, more rollouts a task); everything else that decides a score must be equal, or the run is
refused with the name of the field. Runs of v0 are continued too: their records are matched by `example_id`.

    store = RunStore.open(path)
    check_same(store.read_metadata(), metadata_of_this_call)
    owed = still_owed(store.records(), planned, on_record=statistics.add)
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from verifiers.errors import ResumeError, StoreError
from verifiers.evals.store import RESULTS, SavedRun, newest_first
from verifiers.types.config import EvalConfig

logger = logging.getLogger(__name__)

SAME = ("env_id", "model", "env_args", "extra_env_kwargs", "sampling_args", "shuffle", "shuffle_seed", "seed")
"""Settings that must be equal. One that the saved run did not write down (v0 knew fewer) is not compared."""

MAY_GROW = ("num_examples", "rollouts_per_example")
"""Settings that may be larger than in the saved run; -1 is all tasks."""


class Slot(NamedTuple):
    """One planned rollout."""

    task_id: str
    example_id: int
    rollout_index: int
    rollout_id: str


def check_same(saved: Mapping[str, Any] | None, wanted: Mapping[str, Any], *, force: bool = False) -> None:
    """Refuse (ResumeError) to continue a run under other settings; `force` turns the refusal into a warning."""
    if saved is None:
        raise ResumeError("the saved run has no metadata.json, so it can not be told what was played")
    if rescored := saved.get("rescored"):
        raise ResumeError(
            "the saved run was not played: it scores another one again",
            hint=f"Continue it with: vf-eval --rescore {rescored.get('source')} --resume",
        )
    for difference in differences(saved, wanted):
        if not force:
            raise ResumeError(f"the saved run was made with another {difference}")
        logger.warning("continued although the saved run was made with another %s", difference)


def differences(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """What differs, as `field: saved … , now …`."""
    found = [
        _difference(name, saved[name], wanted[name])
        for name in SAME
        if name in saved and name in wanted and _normal(saved[name]) != _normal(wanted[name])
    ]
    digests = [_digest(metadata) for metadata in (saved, wanted)]
    if all(digests) and digests[0] != digests[1]:
        found.append(_difference("environment digest", *digests))
    found += [
        _difference(name, saved[name], wanted[name])
        for name in MAY_GROW
        if name in saved and name in wanted and _size(wanted[name]) < _size(saved[name])
    ]
    return found


def still_owed(
    records: Iterable[Mapping[str, Any]],
    planned: Sequence[Slot],
    on_record: Callable[[Mapping[str, Any]], None] | None = None,
) -> list[int]:
    """Positions in `planned` that have no record, ascending. `on_record` gets each record of the plan once.

    A record is known by its rollout's id; one without a planned id (another seed, v0) by its task. Surplus records are
    ignored.
    """
    by_id: dict[str, int] = {}
    by_task: dict[tuple[str, int], list[int]] = {}
    by_example: dict[int, list[int]] = {}
    for position in reversed(range(len(planned))):  # the first ones are taken from the ends of the lists
        slot = planned[position]
        by_id[slot.rollout_id] = position
        by_task.setdefault((slot.task_id, slot.rollout_index), []).append(position)
        by_example.setdefault(slot.example_id, []).append(position)
    owed = set(range(len(planned)))
    surplus = 0
    for record in records:
        taken = _take(_candidates(record, by_id, by_task, by_example), owed)
        if taken is None:
            surplus += 1
        elif on_record is not None:
            on_record(record)
    if surplus:
        logger.warning("%d saved rollouts are not of this plan and are ignored", surplus)
    return sorted(owed)


def torn_groups(
    records: Iterable[Mapping[str, Any]],
    planned: Sequence[Slot],
    saved: Mapping[str, Any],
    wanted: Mapping[str, Any],
) -> set[int]:
    """`example_id`s of the groups that lack records of rollouts which the saved run had planned.

    Where reward functions compare the rollouts of a group, these are saved together, and a process that dies in
    between leaves some of them: they were compared with members that are lost. For the same reason a whole group can
    not grow (ResumeError): what is added would be compared with itself.
    """
    whole = Counter(slot.example_id for slot in planned)
    found = Counter(record.get("example_id") for record in records)
    lacking = {example_id: found[example_id] for example_id in whole if 0 < found[example_id] < whole[example_id]}
    if all(saved.get(name) == wanted.get(name) for name in MAY_GROW):
        return set(lacking)
    size = saved.get("rollouts_per_example")
    torn = {example_id for example_id, number in lacking.items() if isinstance(size, int) and number < size}
    if grown := lacking.keys() - torn:
        example_id = min(grown)
        raise ResumeError(
            f"reward functions compare the rollouts of a task, so its group can not grow: task {example_id} has "
            f"{lacking[example_id]} rollouts, and {whole[example_id]} were asked for",
            hint=f"Continue it with as many as before (-r {size}), or start another run.",
        )
    return torn


def _candidates(
    record: Mapping[str, Any],
    by_id: Mapping[str, int],
    by_task: Mapping[tuple[str, int], list[int]],
    by_example: Mapping[int, list[int]],
) -> list[int]:
    rollout_id, task_id, index = (record.get(name) for name in ("rollout_id", "task_id", "rollout_index"))
    if isinstance(rollout_id, str) and rollout_id in by_id:
        return [by_id[rollout_id]]
    if isinstance(task_id, str) and isinstance(index, int):
        return by_task.get((task_id, index), [])
    example_id = record.get("example_id")
    return by_example.get(example_id, []) if isinstance(example_id, int) else []


def _take(positions: list[int], owed: set[int]) -> int | None:
    while positions:
        position = positions.pop()
        if position in owed:
            owed.remove(position)
            return position
    return None


def latest_incomplete(folder: Path, config: EvalConfig) -> Path | None:
    """The newest run below `folder` that this evaluation can continue; None if there is none.

    Raises ResumeError, naming the settings that differ, if the only unfinished ones of the same environment and model
    differ: nobody is to pay twice unasked. With `config.force` the newest of those is taken.
    """
    wanted = config.model_dump(include={*SAME, *MAY_GROW})
    other: tuple[Path, list[str]] | None = None
    for run in newest_first(folder, RESULTS):
        try:
            saved = SavedRun(run).read_metadata()
            if saved is None or saved.get("rescored"):
                continue
            found = differences(saved, wanted)
            if not found and _lacks_rollouts(run, saved, wanted):
                return run
            played = all(saved.get(name) == wanted[name] for name in ("env_id", "model"))
            if found and played and other is None and _lacks_rollouts(run, saved, saved):
                other = run, found
        except StoreError as error:
            logger.warning("%s: %s", run, error)
    if other is None or config.force:
        return None if other is None else other[0]
    raise ResumeError(
        f"the unfinished run {other[0]} was made with another {', another '.join(other[1])}",
        hint="Repeat its settings, or add --force, to continue it; leave out --resume to start a new run.",
    )


def _lacks_rollouts(run: Path, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether the run lacks rollouts of what is wanted of it."""
    tasks = wanted.get("num_examples", -1)
    if not isinstance(tasks, int) or tasks < 0:
        tasks = saved.get("num_examples", -1)
    if not isinstance(tasks, int) or tasks < 0:
        return True  # how many tasks there are is known once the data set is loaded
    return sum(1 for _ in SavedRun(run).records()) < tasks * (wanted.get("rollouts_per_example") or 1)


def _difference(name: str, saved: Any, now: Any) -> str:
    return f"{name} (saved: {saved!r}, now: {now!r})"


def _normal(value: Any) -> Any:
    """Settings that mean the same compare equal: unset, null and empty."""
    if isinstance(value, Mapping):
        value = {key: item for key, item in value.items() if item is not None}
    return None if value is False or value in ({}, [], "") else value


def _size(value: Any) -> float:
    return float("inf") if not isinstance(value, int) or value < 0 else value


def _digest(metadata: Mapping[str, Any]) -> str | None:
    environment = metadata.get("environment")
    digest = environment.get("digest") if isinstance(environment, Mapping) else None
    return digest if isinstance(digest, str) else None
