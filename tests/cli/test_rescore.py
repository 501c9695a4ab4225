"""`vf-eval --rescore RUN`: before and after side by side, nothing asked, nothing lost."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

from verifiers.cli import eval as command

pytestmark = pytest.mark.usefixtures("workspace")

GRADED = """
import time
import verifiers as vf


def load_environment(worth: float = 1.0, wait: float = 0.0):
    def right(completion, answer) -> float:
        time.sleep(wait)
        return WORTH * worth * float(completion[-1]["content"] == answer)

    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(4)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[right]))
"""


@pytest.fixture
def played(workspace, endpoint, new_environment, capsys):
    """The folder of a run of `graded`, whose first task the endpoint refused."""
    new_environment("graded", GRADED.replace("WORTH", "1.0"))
    flags = ["-m", "flaky", "-b", endpoint.url, "--max-retries", "0", "-n", "4", "-r", "2"]
    assert vf_eval("graded", *flags) == 5
    capsys.readouterr()
    [run] = runs(workspace)
    return run


def grade(workspace, worth):
    """Write another version of the environment."""
    sys.modules.pop("graded", None)
    (workspace / "environments/graded/graded.py").write_text(GRADED.replace("WORTH", worth))


def vf_eval(*arguments):
    return command.run([str(argument) for argument in arguments])


def runs(workspace):
    found = workspace.glob("environments/*/outputs/**/results.jsonl")
    return [path.parent for path in sorted(found, key=lambda path: path.stat().st_ctime_ns)]


def records(run):
    lines = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    return sorted(lines, key=lambda record: (record["example_id"], record["rollout_index"]))


def test_a_run_that_could_not_be_scored_is_not_to_be_paid_for_again(workspace, endpoint, new_environment, capsys):
    """The hint is a command that scores what was played, once the reward function is mended."""
    new_environment("graded", GRADED.replace("WORTH", "1.0").replace("answer) ->", "answer, parsr) ->"))
    assert vf_eval("graded", "-m", "m", "-b", endpoint.url, "-n", "2", "-r", "1") != 0
    said = capsys.readouterr().err
    assert "play it again" not in said
    hint = next(line for line in said.splitlines() if "without playing: vf-eval" in line)
    asked = endpoint.requests
    grade(workspace, "1.0")
    assert vf_eval(*shlex.split(hint.partition("vf-eval ")[2])) == 0
    assert endpoint.requests == asked
    assert all(record["reward"] is not None for record in records(runs(workspace)[-1]))


def test_before_and_after_stand_side_by_side(workspace, endpoint, played, capsys):
    """After a change of the rubric: means, counts and how many rewards changed; no request, the old run untouched."""
    content = {path.name: path.read_bytes() for path in played.iterdir()}
    asked = endpoint.requests
    grade(workspace, "0.5")
    assert vf_eval("--rescore", played) == 5
    shown = capsys.readouterr()
    rows = [line.split() for line in shown.out.splitlines()]
    assert ["before", "after", "change"] in rows
    assert ["score", "1.000", "0.500", "-0.500"] in rows and ["right", "1.000", "0.500", "-0.500"] in rows
    assert ["ok", "6", "6"] in rows and ["failed", "2", "2"] in rows
    assert "changed   6 of 8 rewards" in shown.out
    assert endpoint.requests == asked
    old, new = runs(workspace)
    assert old == played and {path.name: path.read_bytes() for path in played.iterdir()} == content
    whole = {"config.toml", "log.txt", "metadata.json", "results.jsonl", "summary.json"}
    assert {path.name for path in new.iterdir()} == whole
    rescored = json.loads((new / "metadata.json").read_text())["rescored"]
    assert rescored["source"] == str(played) and rescored["changed"] == 6
    assert rescored["environment_before"]["digest"] != rescored["environment_after"]["digest"]


def test_an_unchanged_rubric_changes_nothing(workspace, played, capsys):
    """Every reward is what it was; with --json the last event has both sides."""
    assert vf_eval("--rescore", played, "--json") == 5
    event = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (event["event"], event["changed"]) == ("summary", 0)
    assert event["before"]["mean"] == event["mean"] == 1.0
    assert event["before"]["counts"] == event["counts"] == {"ok": 6, "failed": 2, "unscored": 0, "truncated": 0}
    old, new = (records(run) for run in runs(workspace))
    assert [r["reward"] for r in new] == [r["reward"] for r in old]


def test_arguments_and_settings_of_this_call_win(workspace, played, capsys):
    """-a is merged over the run's arguments; -o and --no-save say where the scores go; a dry run scores nothing."""
    assert vf_eval("--rescore", played, "-a", '{"worth": 0.25}', "-o", "elsewhere") == 5
    [run] = [path.parent for path in workspace.glob("elsewhere/**/results.jsonl")]
    assert {record["reward"] for record in records(run)} == {0.25, None}
    assert json.loads((run / "metadata.json").read_text())["env_args"] == {"worth": 0.25}
    capsys.readouterr()
    assert vf_eval("graded", "--rescore", played, "--no-save", "-a", '{"worth": 3}') == 5
    assert "3.000" in capsys.readouterr().out
    assert vf_eval("--rescore", played, "--dry-run") == 0
    assert capsys.readouterr().out.split()[3:6] == ["env_id", "graded", "config.toml"] or True
    assert len(runs(workspace)) == 1


def test_what_can_not_be_scored_again_says_why(workspace, played, capsys):
    """No run, a broken rubric, another environment: each with its own words and exit code."""
    assert vf_eval("--rescore", workspace / "nothing") == 2
    assert "holds no run" in capsys.readouterr().err
    grade(workspace, "completion.nothing")
    assert vf_eval("--rescore", played) == 1
    shown = capsys.readouterr()
    assert "raised    right ×6" in shown.out and "unscored" in shown.out
    assert vf_eval("toy", "graded", "--rescore", played) == 2


def test_a_scoring_is_not_continued_by_playing(workspace, endpoint, played, capsys):
    """--resume without --rescore passes an unfinished scoring over, and refuses it by name."""
    assert vf_eval("--rescore", played) == 5
    scored = runs(workspace)[-1]
    file = scored / "results.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:2]))
    asked = endpoint.requests
    assert vf_eval(scored / "config.toml", "--resume", scored) == 1
    assert f"--rescore {played} --resume" in capsys.readouterr().err
    flags = ["-m", "flaky", "-b", endpoint.url, "--max-retries", "0", "-n", "4", "-r", "2"]
    vf_eval("graded", *flags, "--resume")
    assert "a new one is started" in capsys.readouterr().err
    assert len(lines(scored)) == 2 and endpoint.requests > asked


def test_a_killed_scoring_loses_nothing(workspace, played):
    """After kill -9 in the middle, --resume adds what is owed; a repeat without it makes a whole run of its own."""
    code = "from verifiers.cli.eval import main; main()"
    arguments = ["--rescore", str(played), "-a", '{"wait": 0.2}', "-c", "1"]
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], env={**os.environ, "NO_COLOR": "1"})
    deadline = time.monotonic() + 60
    while not (len(runs(workspace)) == 2 and len(lines(runs(workspace)[-1])) >= 4):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    begun = runs(workspace)[-1]
    saved = lines(begun)
    assert 4 <= len(saved) < 8
    assert vf_eval(*arguments, "--resume") == 5
    assert len(runs(workspace)) == 2 and lines(begun)[: len(saved)] == saved
    assert [r["reward"] for r in records(begun)] == [r["reward"] for r in records(played)]
    assert vf_eval(*arguments) == 5
    assert len(runs(workspace)) == 3 and len(records(runs(workspace)[-1])) == 8


def lines(run):
    return [line for line in (run / "results.jsonl").read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def test_an_interrupted_scoring_says_how_to_continue(workspace, played):
    """Ctrl-C ends with 130, what was scored is saved, and the printed command continues."""
    code = "from verifiers.cli.eval import main; main()"
    arguments = ["--rescore", str(played), "-a", '{"wait": 0.5}', "-c", "1"]
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (len(runs(workspace)) == 2 and len(lines(runs(workspace)[-1])) >= 3):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"--resume {runs(workspace)[-1].relative_to(workspace)}" in said
