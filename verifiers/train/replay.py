"""Training from rows on disk: the batches of a run again, or any rows in batches. No torch in here.

    learner = Recording(learner, run / "rows")        # what the loop trains on is kept, a file for each batch
    for rows in batches(run / "rows"):                # later, or elsewhere: the same steps
        learner.step(rows)

    for rows in batches("rows.parquet", groups_per_batch=8, algorithm=make_algorithm(config)):
        learner.step(rows)                            # other rows, their advantages computed anew

What a learner makes of a batch depends on its rows and on nothing else, so a recorded batch is all that its step needs,
and iterating is all there is to a replay. It is no `RolloutSource`: a source answers what a loop asks for, and a loop
that has the answers already has nothing to ask.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path

from verifiers.errors import ConfigError
from verifiers.train.groups import Algorithm, Group, GroupMember
from verifiers.train.learner import Learner, Weights
from verifiers.train.rows import Row
from verifiers.train.storage import read_rows, row_files, write_rows
from verifiers.types import Outcome


class Recording:
    """A `Learner` that keeps every batch it is given, before its step, in `folder`.

    A file is named by the version that its batch is to make: a run that goes on from a checkpoint writes the files
    of the versions it repeats again, and a batch with nothing to train on is followed by the next of its version.
    """

    def __init__(self, learner: Learner, folder: str | Path, suffix: str = ".jsonl.gz") -> None:
        self._learner = learner
        self._folder = Path(folder)
        self._suffix = suffix

    @property
    def version(self) -> int:
        """See `Learner.version`."""
        return self._learner.version

    def step(self, rows: Sequence[Row]) -> dict[str, float]:
        """Keep the rows, then `Learner.step`. StoreError if they can not be written."""
        if rows:
            write_rows(self._folder / f"v{self.version + 1:08d}{self._suffix}", rows)
        return self._learner.step(rows)

    def weights(self) -> Weights:
        """See `Learner.weights`."""
        return self._learner.weights()

    def save(self, folder: Path) -> None:
        """See `Learner.save`."""
        self._learner.save(folder)

    def load(self, folder: Path) -> None:
        """See `Learner.load`."""
        self._learner.load(folder)


def batches(
    path: str | Path, groups_per_batch: int | None = None, algorithm: Algorithm | None = None
) -> Iterator[list[Row]]:
    """Rows of a file or folder in batches: those that were recorded, or of so many groups each.

    algorithm: computes the advantages; None takes those that the rows have. ConfigError if they have none. Rollouts
    that failed are in no file: an algorithm that looks at them sees the others only.
    """
    if groups_per_batch is None:
        for file in row_files(path):
            yield _rows_of(groups_of(read_rows(file)), algorithm, file)
        return
    groups = groups_of(row for file in row_files(path) for row in read_rows(file))
    while chosen := list(islice(groups, groups_per_batch)):
        yield _rows_of(chosen, algorithm, Path(path))


def groups_of(rows: Iterable[Row]) -> Iterator[Group]:
    """The groups of rows: those that follow each other with one `group_id`, and in them the rollouts by theirs."""
    for group_id, together in groupby(rows, key=lambda row: row.group_id):
        members: dict[str, list[Row]] = {}
        for row in together:
            members.setdefault(row.rollout_id, []).append(row)
        made = [_member(rollout_id, own) for rollout_id, own in members.items()]
        first = made[0].rows[0]
        yield Group(group_id, first.task_id, made, env_id=first.env.name, version=min(first.versions))


def _member(rollout_id: str, rows: list[Row]) -> GroupMember:
    row = rows[0]
    if row.reward is None:
        return GroupMember(rollout_id, Outcome.UNSCORED, rows=rows, error_kind=row.error_kind)
    cut = any(one.truncated for one in rows)
    return GroupMember(rollout_id, Outcome.TRUNCATED if cut else Outcome.OK, row.reward, rows)


def _rows_of(groups: Iterable[Group], algorithm: Algorithm | None, path: Path) -> list[Row]:
    if algorithm is not None:
        return [row for group in groups for row in algorithm(group)]
    rows = [row for group in groups for member in group.members for row in member.rows]
    if any(row.advantages is None for row in rows):
        raise ConfigError(
            f"rows of {path} have no advantages",
            hint="Pass the algorithm that computes them: make_algorithm(config.advantage).",
        )
    return rows
