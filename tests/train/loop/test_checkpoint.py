"""Checkpoints: whole or not there, and a run that goes on from one trains exactly what was left."""

from __future__ import annotations

import asyncio
import errno
import functools
import itertools
import json
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from tests.support.training import RecordingLearner, Setup, play
from tests.support.virtual_time import run_virtual
from verifiers.errors import ResumeError, StoreError, TrainingError
from verifiers.train.checkpoint import Checkpoints


class RememberingLearner(RecordingLearner):
    """What its weights have been trained on is part of its checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.trained: list[str] = []

    def step(self, rows):
        self.trained += [row.rollout_id for row in rows]
        return super().step(rows)

    def save(self, folder):
        super().save(folder)
        (folder / "trained.txt").write_text("\n".join(self.trained))

    def load(self, folder):
        super().load(folder)
        self.trained = (folder / "trained.txt").read_text().split("\n")


SLOW_TAIL = {"seconds": lambda random: random.lognormvariate(0, 1), "train_seconds": 0.5, "loop": {"max_lag": 8}}


def checkpoints(folder, **options):
    return Checkpoints(folder / "checkpoints", **{"every": 1, "keep": 2, **options})


def test_a_run_that_goes_on_trains_what_was_left(tmp_path):
    """Stopped after any step, with groups in flight and ready: in the end the same rollouts are trained, each once."""
    whole = unbroken()
    for stop in range(1, 6):
        folder = tmp_path / str(stop)

        async def main(folder=folder, stop=stop):
            made = Setup(**SLOW_TAIL, learner=RememberingLearner(), checkpoints=checkpoints(folder))
            made.loop._observers.append(lambda report: made.loop.stop() if report.step == stop else None)
            await made.run()
            return made

        first = run_virtual(main())
        assert len(first.learner.steps) == stop and first.loop.flow.buffer.under_way > 0
        rest = play(**SLOW_TAIL, learner=RememberingLearner(), checkpoints=checkpoints(folder), resume=True)
        assert len(rest.learner.steps) == 6 - stop and rest.steps[0].step == stop + 1
        assert Counter(rest.learner.trained) == Counter(whole.learner.trained)
        assert rest.loop.flow.buffer.asked == whole.loop.flow.buffer.asked == rest.loop.flow.buffer.fates.total()


def test_a_run_that_goes_on_late_asks_nothing_of_the_weights_it_began_with(tmp_path):
    """The sampler has the checkpoint's weights before any group is played: none is cut off as too old, and lost."""
    steady = {"seconds": lambda random: 1.0, "train_seconds": 0.5, "limits": {"max_lag": 2}, "loop": {"steps": 12}}
    whole = play(**steady, learner=RememberingLearner())

    async def main():
        made = Setup(**steady, learner=RememberingLearner(), checkpoints=checkpoints(tmp_path))
        made.loop._observers.append(lambda report: made.loop.stop() if report.step == 8 else None)
        await made.run()
        return made

    assert run_virtual(main()).loop.flow.buffer.in_flight
    rest = play(**steady, learner=RememberingLearner(), checkpoints=checkpoints(tmp_path), resume=True)
    assert rest.sampler.updates[0] == 8 and set(rest.loop.flow.buffer.fates) == {"trained"}
    assert Counter(rest.learner.trained) == Counter(whole.learner.trained)


@functools.cache
def unbroken():
    return play(**SLOW_TAIL, learner=RememberingLearner())


def test_what_was_unfinished_is_sampled_by_the_weights_it_goes_on_from(tmp_path):
    """A new sampler has those of the base model: it gets the checkpoint's before the first rollout."""

    async def main(stop):
        made = Setup(**{**SLOW_TAIL, "token_seconds": 0.1}, checkpoints=checkpoints(tmp_path))
        await made.loop.resume()
        pause = made.sampler.pause

        async def pause_slowly():
            await asyncio.sleep(1.0)
            await pause()

        made.sampler.pause = pause_slowly
        made.loop._observers.append(lambda report: made.loop.stop() if report.step == stop else None)
        await made.run()
        return made

    assert run_virtual(main(4)).loop.flow.buffer.in_flight
    rest = run_virtual(main(6))
    played = [row for _, rows in rest.learner.steps for row in rows if row.rollout_id in rest.player.played]
    assert min(version for row in played for version, on in zip(row.versions, row.mask, strict=True) if on) == 4


def test_a_loop_runs_again_after_a_stop():
    """What waited for room in its source when the loop was stopped is asked for by the next run."""

    async def main():
        made = Setup(**SLOW_TAIL, limits={"max_rollouts": 4})
        stop = made.loop.stop
        made.loop._observers.append(lambda report: stop() if report.step == 2 else None)
        async with made.source:
            assert (await made.loop.run()).stopped
            made.loop._stopping = False
            return made, await made.loop.run()

    made, result = run_virtual(main())
    assert result.step == 6 and made.loop.flow.buffer.asked == made.loop.flow.buffer.fates.total()


@settings(max_examples=15)
@given(st.lists(st.floats(0, 6), min_size=1, max_size=3))
def test_cancelled_at_any_moments_it_trains_what_an_unbroken_run_does(moments):
    """The step that runs is ended and kept; one rollout after the other is trained once."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Checkpoints(Path(folder), every=100)

        async def main(moment):
            made = Setup(**SLOW_TAIL, learner=RememberingLearner(), checkpoints=kept)
            await made.loop.resume()
            running = asyncio.create_task(made.run())
            await asyncio.wait({running}, timeout=moment)
            running.cancel()
            await asyncio.wait({running})
            return made

        for moment in moments:
            run_virtual(main(moment))
        rest = play(**SLOW_TAIL, learner=RememberingLearner(), checkpoints=kept, resume=True)
    assert Counter(rest.learner.trained) == Counter(unbroken().learner.trained)
    assert rest.loop.flow.buffer.asked == rest.loop.flow.buffer.fates.total() == 12


def test_only_the_last_checkpoints_are_kept(tmp_path):
    """Two of them, and nothing half-written beside."""
    play(checkpoints=checkpoints(tmp_path))
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-000005", "step-000006"]


def test_the_end_of_a_run_is_kept_between_two_checkpoints(tmp_path):
    """Also where `every` does not divide the number of steps."""
    play(checkpoints=checkpoints(tmp_path, every=4))
    assert checkpoints(tmp_path).latest().name == "step-000006"


def test_a_full_disk_leaves_the_checkpoint_before_and_is_counted(tmp_path):
    """The learner writes half of it and fails: the run goes on, the next report counts it, the last one is whole."""

    class Filling(RememberingLearner):
        saves = itertools.count(1)

        def save(self, folder):
            super().save(folder)
            if next(self.saves) == 3:
                raise OSError(errno.ENOSPC, "No space left on device")

    kept = checkpoints(tmp_path, keep=1)
    seen = []

    async def main():
        made = Setup(checkpoints=kept, learner=Filling())
        made.loop._observers.append(lambda report: seen.append(kept.latest() and kept.latest().name))
        await made.run()
        return made

    made = run_virtual(main())
    assert seen == [None, "step-000001", "step-000002", "step-000002", "step-000004", "step-000005"]
    failed = [report.figures.get("checkpoints/failed") for report in made.reports]
    assert failed == [None, None, None, 1.0, None, None]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000006"]


def test_a_last_checkpoint_that_can_not_be_written_is_an_error(tmp_path):
    """Otherwise what was trained would be lost without a word."""

    class Full(RememberingLearner):
        def save(self, folder):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StoreError, match="step 6 could not be written"):
        play(checkpoints=checkpoints(tmp_path), learner=Full())


def test_a_broken_trainer_is_explained_and_not_saved(tmp_path):
    """What it did before is kept; its state after the failure is unknown."""

    class Breaking(RememberingLearner):
        def step(self, rows):
            if self.version == 3:
                raise RuntimeError("CUDA out of memory")
            return super().step(rows)

    with pytest.raises(TrainingError, match="in step 4: RuntimeError: CUDA out of memory"):
        play(checkpoints=checkpoints(tmp_path, every=2), learner=Breaking())
    assert checkpoints(tmp_path).latest().name == "step-000002"


def test_a_run_that_ends_for_another_reason_keeps_what_was_trained(tmp_path):
    """The sampler fails: the learner is sound, and so is its checkpoint."""

    async def main():
        made = Setup(checkpoints=checkpoints(tmp_path, every=100))

        update = made.sampler.update_weights

        async def fails(source, version):
            if version == 4:
                raise ConnectionError("the engine is gone")
            await update(source, version)

        made.sampler.update_weights = fails
        await made.run()

    with pytest.raises(TrainingError, match="did not take version 4: ConnectionError: the engine is gone"):
        run_virtual(main())
    assert checkpoints(tmp_path).latest().name >= "step-000004"


def test_what_is_half_written_is_no_checkpoint(tmp_path):
    """A process that died while it wrote leaves a folder without the name, which the next save removes."""
    play(checkpoints=checkpoints(tmp_path))
    half = tmp_path / "checkpoints" / ".step-000007.partial"
    half.mkdir()
    assert checkpoints(tmp_path).latest().name == "step-000006"
    play(checkpoints=checkpoints(tmp_path), loop={"steps": 8}, resume=True)
    assert not half.exists() and checkpoints(tmp_path).latest().name == "step-000008"


def test_a_checkpoint_of_other_tasks_is_refused(tmp_path):
    """Positions in an order mean nothing for another one."""
    play(checkpoints=checkpoints(tmp_path))
    with pytest.raises(ResumeError, match="the tasks of environment toy are not those"):
        play(checkpoints=checkpoints(tmp_path), tasks=17, resume=True)
    with pytest.raises(ResumeError, match="seed 0, this run of"):
        play(checkpoints=checkpoints(tmp_path), loop={"seed": 1}, resume=True)


def test_an_unreadable_checkpoint_is_named(tmp_path):
    """With what to do about it."""
    play(checkpoints=checkpoints(tmp_path))
    (checkpoints(tmp_path).latest() / "state.json").write_text("{")
    with pytest.raises(ResumeError, match="step-000006 can not be read") as raised:
        play(checkpoints=checkpoints(tmp_path), resume=True)
    assert "Remove that folder" in raised.value.hint


@pytest.mark.parametrize("damage", [{"step": "x"}, {"curriculum": {}}, {"buffer": []}, {"baselines": 1}])
def test_a_checkpoint_that_somebody_changed_is_named(tmp_path, damage):
    """Whatever is wrong in it: which one, and that the one before can be taken."""
    play(checkpoints=checkpoints(tmp_path))
    state = tmp_path / "checkpoints" / "step-000006" / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), **damage}))
    with pytest.raises(ResumeError, match="step-000006") as raised:
        play(checkpoints=checkpoints(tmp_path), resume=True)
    assert "the checkpoint before it" in raised.value.hint
