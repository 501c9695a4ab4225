"""Batches from disk are those that were trained on, in their order."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from verifiers.errors import ConfigError
from verifiers.train.advantages import make_algorithm
from verifiers.train.config import AdvantageConfig
from verifiers.train.learner import Weights
from verifiers.train.replay import Recording, batches, groups_of
from verifiers.train.rows import Row
from verifiers.train.storage import write_rows
from verifiers.types import Outcome


def row(group: str, rollout: str, reward: float | None, **changes: object) -> Row:
    """A row of three tokens, two of them sampled."""
    arrays = {"tokens": [1, 2, 3], "mask": [False, True, True], "logprobs": [0.0, -1.0, -2.0], "versions": [0, 0, 0]}
    fields = {**arrays, "group_id": group, "rollout_id": rollout, "task_id": f"t{group}", "reward": reward}
    return Row(**{**fields, **changes})  # type: ignore[arg-type]


class Counting:
    """A learner without a model: a step counts, unless there is nothing to train on."""

    def __init__(self) -> None:
        self.version = 0
        self.seen: list[list[str]] = []

    def step(self, rows: Sequence[Row]) -> dict[str, float]:
        """Note the rollouts."""
        self.seen.append([one.rollout_id for one in rows])
        self.version += any(any(one.advantages or ()) for one in rows)
        return {"rows": float(len(rows))}

    def weights(self) -> Weights:
        """Of this version."""
        return Weights(self.version, tensors={})

    def save(self, folder: Path) -> None:
        """The version."""
        (folder / "version").write_text(str(self.version))

    def load(self, folder: Path) -> None:
        """The version."""
        self.version = int((folder / "version").read_text())


def trained(rollout: str, advantage: float = 1.0) -> list[Row]:
    """A batch of one row."""
    return [row("g", rollout, 1.0, advantages=[0.0, advantage, advantage])]


def test_what_a_learner_was_given_is_replayed(tmp_path: Path) -> None:
    """The files of the trained batches, in order; one with nothing to train on gave way to the next."""
    learner, again = Counting(), Counting()
    recording = Recording(learner, tmp_path / "rows")
    assert recording.step(trained("a")) == {"rows": 1.0}
    recording.step(trained("b", 0.0))
    recording.step([])
    recording.step(trained("c"))
    assert recording.version == 2 and recording.weights().version == 2
    for rows in batches(tmp_path / "rows"):
        again.step(rows)
    assert again.seen == [["a"], ["c"]] and again.version == learner.version


def test_a_run_that_goes_on_writes_again_what_it_repeats(tmp_path: Path) -> None:
    """After a checkpoint the versions that follow are those of the run as it went on."""
    recording = Recording(Counting(), tmp_path / "rows", ".parquet")
    recording.step(trained("a"))
    (tmp_path / "checkpoint").mkdir()
    recording.save(tmp_path / "checkpoint")
    recording.step(trained("lost"))
    recording.load(tmp_path / "checkpoint")
    recording.step(trained("b"))
    assert [[one.rollout_id for one in rows] for rows in batches(tmp_path / "rows")] == [["a"], ["b"]]


def test_groups_are_rebuilt(tmp_path: Path) -> None:
    """Rows of one rollout are one member; unscored and truncated ones are what they were."""
    rows = [row("1", "a", 1.0), row("1", "a", 1.0), row("1", "b", None), row("2", "c", 0.5, truncated=True)]
    first, second = groups_of(rows)
    assert (first.group_id, first.task_id, len(first.members), len(first.valid)) == ("1", "t1", 2, 1)
    assert [member.outcome for member in first.members + second.members] == [
        Outcome.OK,
        Outcome.UNSCORED,
        Outcome.TRUNCATED,
    ]


def test_advantages_may_be_computed_anew(tmp_path: Path) -> None:
    """So many groups make a batch, and an algorithm of other settings gives their advantages."""
    rows = [row(str(group), f"{group}{member}", float(member)) for group in range(3) for member in range(2)]
    write_rows(tmp_path / "rows.jsonl", rows)
    made = list(batches(tmp_path / "rows.jsonl", 2, make_algorithm(AdvantageConfig())))
    assert [len(batch) for batch in made] == [4, 2]
    assert [one.advantages for one in made[0][:2]] == [[0.0, -0.5, -0.5], [0.0, 0.5, 0.5]]
    with pytest.raises(ConfigError, match="have no advantages"):
        list(batches(tmp_path))
