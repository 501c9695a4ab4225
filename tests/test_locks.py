"""Files that many lock, and that are removed meanwhile: one at a time, and nobody fails."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from verifiers.locks import is_at, turn
from verifiers.sandboxes.node.scratch import scratch

WRITERS, ROUNDS = 8, 300


def everybody(run):
    """Run in eight threads at once; what they return."""
    with ThreadPoolExecutor(WRITERS) as pool:
        return [one.result() for one in [pool.submit(run, number) for number in range(WRITERS)]]


def test_turns_are_taken_one_at_a_time(tmp_path):
    """Eight threads count to 2,400 in one file without a lock of its own, whose last value is right."""
    lock, counter = tmp_path / "one.lock", tmp_path / "counter"
    counter.write_text("0")

    def count(_):
        for _ in range(ROUNDS):
            with turn(lock):
                counter.write_text(str(int(counter.read_text()) + 1))

    everybody(count)
    assert counter.read_text() == str(WRITERS * ROUNDS)
    assert not lock.exists()


def test_a_turn_ends_with_its_error(tmp_path):
    """What is raised while it is held goes on, and the next one has its turn."""
    for number in range(2):
        with pytest.raises(ValueError, match=str(number)), turn(tmp_path / "one.lock"):
            raise ValueError(number)
    assert list(tmp_path.iterdir()) == []


def test_a_path_leads_to_the_open_file_or_not(tmp_path):
    """Removed, and replaced by another one, it does not."""
    path = tmp_path / "file"
    with path.open("w") as file:
        assert is_at(file.fileno(), path)
        path.unlink()
        assert not is_at(file.fileno(), path)
        path.write_text("another")
        assert not is_at(file.fileno(), path)


def test_daemons_that_begin_at_once_keep_their_folders(tmp_path):
    """None takes the folder of another that begins for one that was left."""

    def begin(number):
        for _ in range(ROUNDS // 3):
            with scratch(tmp_path) as folder:
                (folder / "mine").write_text(str(number))
                assert (folder / "mine").read_text() == str(number)

    everybody(begin)
    assert list(Path(tmp_path).iterdir()) == []
