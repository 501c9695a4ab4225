"""`vf-eval … --export-sft FILE`: good rollouts become conversations to learn from, with what they come from."""

import gzip
import json

import pytest

from verifiers.cli import eval as command

pytestmark = pytest.mark.usefixtures("workspace")

GRADED = """
import verifiers as vf


def load_environment():
    def right(completion, answer) -> float:
        return float(answer) / 6.0

    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(4)]
    return vf.SingleTurnEnv(dataset=rows, system_prompt="Add.", rubric=vf.Rubric(funcs=[right]))
"""


@pytest.fixture
def flags(endpoint, new_environment):
    """Four tasks worth 0, 1/3, 2/3 and 1, two rollouts of each."""
    new_environment("graded", GRADED)
    return ["-m", "adds", "-b", endpoint.url, "--max-retries", "0", "-n", "4", "-r", "2"]


def vf_eval(*arguments):
    return command.run([str(argument) for argument in arguments])


def lines(path):
    content = path.read_bytes()
    content = gzip.decompress(content) if path.suffix == ".gz" else content
    return [json.loads(line) for line in content.splitlines()]


def test_good_rollouts_are_written_with_what_they_come_from(workspace, flags, capsys):
    """After the run: those of at least the reward; the prompt's messages are told apart; environment, model, task."""
    assert vf_eval("graded", *flags, "--export-sft", "good.jsonl", "--sft-min-reward", "0.5") == 0
    shown = capsys.readouterr().out
    assert "exported 4 conversations of 2 tasks to good.jsonl; left out: 4 reward" in shown
    written = lines(workspace / "good.jsonl")
    first = written[0]
    assert [message["role"] for message in first["messages"]] == ["system", "user", "assistant"]
    assert first["prompt_messages"] == 2 and "tools" not in first
    assert first["env"].startswith("graded") and first["env_digest"].startswith("tree:")
    assert (first["model"], first["reward"]) == ("adds", pytest.approx(2 / 3))
    assert len({line["rollout_id"] for line in written}) == 4 and len({line["task_id"] for line in written}) == 2


def test_the_same_file_comes_from_a_run_that_is_there(workspace, endpoint, flags, capsys):
    """Nothing is asked and nothing played; several runs make one file, of the best of each task."""
    assert vf_eval("graded", *flags, "--export-sft", "good.jsonl", "--sft-best", "1") == 0
    [run] = [path.parent for path in workspace.glob("environments/*/outputs/**/results.jsonl")]
    asked = endpoint.requests
    assert vf_eval(run, "--export-sft", "again.jsonl", "--sft-best", "1") == 0
    assert endpoint.requests == asked
    assert (workspace / "again.jsonl").read_bytes() == (workspace / "good.jsonl").read_bytes()
    assert len(lines(workspace / "again.jsonl")) == 4
    capsys.readouterr()
    assert vf_eval(run, run, "--export-sft", "all.jsonl.gz", "--sft-best", "3", "--json") == 0
    event = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert event == {
        "event": "export",
        "path": "all.jsonl.gz",
        "conversations": 12,
        "tasks": 4,
        "left_out": {"not_best": 4},
    }
    assert len(lines(workspace / "all.jsonl.gz")) == 12


def test_failed_rollouts_are_no_examples(workspace, endpoint, flags, capsys):
    """They are counted by how they ended; a file without a conversation is a failure."""
    assert vf_eval("graded", "-m", "flaky", *flags[2:], "--export-sft", "good.jsonl") == 5
    assert "exported 6 conversations of 3 tasks to good.jsonl; left out: 2 failed" in capsys.readouterr().out
    assert vf_eval("graded", *flags, "--export-sft", "none.jsonl", "--sft-min-reward", "2") == 1
    assert "lower --sft-min-reward" in capsys.readouterr().err
    assert lines(workspace / "none.jsonl") == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--export-sft", "good.csv"], "no file of JSON lines"),
        (["--export-sft", "good.jsonl", "--no-save"], "contradict each other"),
        (["--export-sft", "good.jsonl", "--sft-best", "0"], "at least one rollout"),
        (["--sft-best", "2"], "Add --export-sft FILE"),
        (["--sft-min-reward", "0.5"], "Add --export-sft FILE"),
    ],
    ids=["suffix", "unsaved", "none", "best alone", "reward alone"],
)
def test_contradictions_are_told_before_anything_is_spent(endpoint, flags, capsys, more, said):
    """Exit code 2, and no request."""
    asked = endpoint.requests
    assert vf_eval("graded", *flags, *more) == 2
    assert said in " ".join(capsys.readouterr().err.split()) and endpoint.requests == asked
