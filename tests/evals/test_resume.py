import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, strategies as st

from verifiers.errors import ResumeError
from verifiers.evals.resume import Slot, check_same, latest_incomplete, still_owed, torn_groups
from verifiers.evals.store import RunStore
from verifiers.types.config import EvalConfig

SAVED = {
    "env_id": "a",
    "model": "m",
    "env_args": {"x": 1},
    "sampling_args": {"temperature": 1.0},
    "num_examples": 2,
    "rollouts_per_example": 2,
    "shuffle": False,
    "environment": {"digest": "tree:1"},
}


def plan(tasks, rollouts):
    return [
        Slot(f"t{task}", task, index, f"r{task}.{index}") for task in range(tasks) for index in range(rollouts)
    ]


def as_record(slot):
    return slot._asdict()


@given(st.integers(1, 5), st.integers(1, 4), st.data())
def test_exactly_the_unrecorded_rollouts_are_owed(tasks, rollouts, data):
    """Recorded and owed rollouts together are the plan, whatever was recorded in whatever order."""
    planned = plan(tasks, rollouts)
    done = data.draw(st.lists(st.sampled_from(range(len(planned))), unique=True))
    seen: list = []
    owed = still_owed([as_record(planned[position]) for position in done], planned, seen.append)
    assert sorted([*owed, *done]) == list(range(len(planned)))
    assert len(seen) == len(done)


def test_records_beyond_the_plan_and_repeated_ones_are_ignored():
    """A record counts once; one of another task or index not at all."""
    planned = plan(2, 1)
    seen: list = []
    records = [
        as_record(planned[0]),
        as_record(planned[0]),
        {"task_id": "gone", "example_id": 7, "rollout_index": 0},
    ]
    assert still_owed(records, planned, seen.append) == [1]
    assert len(seen) == 1


def test_equal_rows_of_a_data_set_are_owed_separately():
    """Two equal rows share a task id: one record pays for one of them."""
    planned = [Slot("same", 0, 0, "a"), Slot("same", 1, 0, "b")]
    assert still_owed([as_record(planned[0])], planned) == [1]
    unnamed = {name: value for name, value in as_record(planned[0]).items() if name != "rollout_id"}
    assert still_owed([unnamed] * 2, planned) == []


def test_of_equal_rows_the_one_without_a_record_is_owed():
    """The rollout of the second row was saved: were it taken for the first's, it would be played twice."""
    planned = [Slot("same", 0, 0, "a"), Slot("same", 1, 0, "b")]
    assert still_owed([as_record(planned[1])], planned) == [0]


SIZES = {"num_examples": 2, "rollouts_per_example": 2}


def test_groups_that_lack_members_are_torn():
    """Also where several rows have one example_id, and so more members than there are rollouts of a row."""
    planned = [Slot(f"t{row}", row // 2, 0, f"r{row}") for row in range(6)]
    sizes = {"num_examples": 6, "rollouts_per_example": 1}
    records = [as_record(planned[position]) for position in (0, 1, 2)]
    assert torn_groups(records, planned, sizes, dict(sizes)) == {1}
    assert torn_groups(records[:2], planned, sizes, dict(sizes)) == set()


def test_a_group_that_is_compared_does_not_grow():
    """What was cut off is played again; a finished group would only get members that are compared with themselves."""
    planned, grown = plan(2, 2), plan(3, 3)
    records = [as_record(slot) for slot in planned[:3]]
    assert torn_groups(records[2:], grown, SIZES, {"num_examples": 3, "rollouts_per_example": 3}) == {1}
    with pytest.raises(ResumeError, match=r"task 0 has 2 rollouts, and 3 were asked for"):
        torn_groups(records, grown, SIZES, {"num_examples": 3, "rollouts_per_example": 3})
    assert torn_groups(records, plan(5, 2), SIZES, {"num_examples": 5, "rollouts_per_example": 2}) == {1}


def test_runs_of_v0_are_matched_by_example():
    """Rows without task id pay for one rollout each of their example."""
    planned = plan(2, 2)
    assert still_owed([{"example_id": 1}, {"example_id": 0}, {"example_id": 1}], planned) == [1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("env_id", "b"),
        ("model", "n"),
        ("env_args", {"x": 2}),
        ("sampling_args", {}),
        ("shuffle", True),
        ("num_examples", 1),
        ("rollouts_per_example", 1),
        ("environment", {"digest": "tree:2"}),
    ],
)
def test_another_setting_is_refused_by_name(field, value):
    """The refusal names the field and both values; --force goes on."""
    wanted = {**SAVED, field: value}
    with pytest.raises(ResumeError, match="environment digest" if field == "environment" else field):
        check_same(SAVED, wanted)
    check_same(SAVED, wanted, force=True)


@pytest.mark.parametrize(
    "change", [{}, {"num_examples": 5}, {"num_examples": -1}, {"rollouts_per_example": 4}, {"seed": 1}]
)
def test_a_run_may_grow_and_unknown_fields_are_not_compared(change):
    """More tasks or rollouts are fine, and so is a setting that the saved run did not know."""
    check_same(SAVED, {**SAVED, **change})


def test_a_run_without_metadata_is_refused():
    """Without metadata nobody knows what was played."""
    with pytest.raises(ResumeError, match=r"metadata\.json"):
        check_same(None, SAVED)


def test_the_newest_unfinished_run_of_these_settings_is_found(tmp_path):
    """Finished runs, other settings and broken metadata are passed over; newest first."""
    config = EvalConfig(env_id="a", model="m", num_examples=2, rollouts_per_example=1)
    assert latest_incomplete(tmp_path, config) is None

    def make(name, records, metadata, age):
        with RunStore.create(tmp_path / name) as store:
            store.write_metadata(metadata)
            for n in range(records):
                store.append({"example_id": n})
        os.utime(tmp_path / name / "results.jsonl", (1e9 - age, 1e9 - age))

    same = {"env_id": "a", "model": "m", "num_examples": 2, "rollouts_per_example": 1}
    make("finished", 2, same, age=0)
    make("other", 0, {**same, "model": "n"}, age=1)
    make("wanted", 1, same, age=2)
    make("older", 1, same, age=3)
    make("broken", 1, same, age=1)
    (tmp_path / "broken" / "metadata.json").write_text("{")
    assert latest_incomplete(tmp_path, config) == tmp_path / "wanted"


def test_an_unfinished_run_of_other_settings_is_refused_by_name(tmp_path):
    """What it has would be played, and paid, again; a finished one of other settings hinders nothing."""
    config = EvalConfig(env_id="a", model="m", num_examples=2, rollouts_per_example=1)
    played = {"env_id": "a", "model": "m", "num_examples": 2, "rollouts_per_example": 1}
    with RunStore.create(tmp_path / "other") as store:
        store.write_metadata({**played, "sampling_args": {"temperature": 1.0}})
        store.append({"example_id": 0})
        with pytest.raises(ResumeError, match=r"other .*sampling_args \(saved: {'temperature': 1.0}, now: ") as refused:
            latest_incomplete(tmp_path, config)
        assert "leave out --resume" in (refused.value.hint or "")
        forced = config.model_copy(update={"force": True})
        assert latest_incomplete(tmp_path, forced) == tmp_path / "other"
        store.append({"example_id": 1})
    assert latest_incomplete(tmp_path, config) is None


def test_runs_that_are_removed_while_the_newest_is_sought_are_none(tmp_path):
    """Somebody cleans up beside: the one that stays is found."""
    config = EvalConfig(env_id="a", model="m", num_examples=2, rollouts_per_example=1)
    same = {"env_id": "a", "model": "m", "num_examples": 2, "rollouts_per_example": 1}

    def make(name, model):
        with RunStore.create(tmp_path / name) as store:
            store.write_metadata({**same, "model": model})

    def make_and_remove():
        for number in range(300):
            make(f"passing-{number}", "n")
            shutil.rmtree(tmp_path / f"passing-{number}")

    make("stays", "m")
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(make_and_remove)
        while not beside.done():
            assert latest_incomplete(tmp_path, config) == tmp_path / "stays"
        beside.result()
