"""`vf-eval --ray`: the same run on a cluster, stopped and continued like any other; what is missing is told first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.rollouts.workers.workers_support import alive
from verifiers.cli.eval import run as vf_eval_run

PIDS = """
import os
from pathlib import Path
(Path(os.environ["VF_TEST_PIDS"]) / str(os.getpid())).write_text(str(os.getppid()))
"""


def vf_eval(*arguments):
    return vf_eval_run([str(argument) for argument in arguments])


def at(endpoint, model="adds"):
    return ("-m", model, "-b", endpoint.url)


def records(workspace):
    """What every run of `toy` here has saved, by rollout, clocks aside."""
    lines = [line for path in workspace.glob("**/results.jsonl") for line in path.read_text().splitlines()]
    found = {}
    for line in lines:
        record = json.loads(line)
        del record["timing"]
        found.setdefault(record["rollout_id"], []).append(record)
    return found


@pytest.fixture
def pids(workspace, monkeypatch):
    """The processes that play, and those of their actors."""
    folder = workspace / "pids"
    folder.mkdir()
    monkeypatch.setenv("VF_TEST_PIDS", str(folder))
    toy = workspace / "environments" / "toy" / "toy.py"
    toy.write_text(PIDS + toy.read_text())
    return lambda: [int(pid) for path in folder.iterdir() for pid in (path.name, path.read_text())]


def until_gone(pids):
    """Returns once none of the processes lives; the test's own time limit is the limit."""
    while any(alive(pid) for pid in pids()):
        time.sleep(0.05)


@pytest.mark.ray
@pytest.mark.timeout(300)
@pytest.mark.slow
def test_a_run_on_a_cluster_is_the_run_of_this_process(workspace, endpoint, pids, ray_cluster, capsys):
    """The same records and metadata; the TOML file says the same as the flags."""
    flags = ("toy", *at(endpoint), "-n", 4, "-r", 2)
    assert vf_eval(*flags) == 0
    here = {path.parent for path in workspace.glob("**/results.jsonl")}
    assert (
        vf_eval(
            *flags, "-w", 2, "--ray", ray_cluster.address, "--ray-options", '{"pass_env": ["VF_TEST_PIDS"]}'
        )
        == 0
    )
    both = records(workspace)
    assert len(both) == 8 and all(len(pair) == 2 and pair[0] == pair[1] for pair in both.values())
    (run,) = {path.parent for path in workspace.glob("**/results.jsonl")} - here
    here_said, said = (json.loads((path / "metadata.json").read_text()) for path in (*here, run))
    assert (
        said["environment"] == here_said["environment"]
        and said["avg_reward"] == here_said["avg_reward"] == 1.0
    )
    workers = set(pids()) - {os.getpid(), os.getppid()}
    assert workers
    until_gone(lambda: workers)

    capsys.readouterr()
    (workspace / "nightly.toml").write_text(
        f'model = "adds"\napi_base_url = "{endpoint.url}"\nray = "{ray_cluster.address}"\n[[eval]]\nid = "toy"\n'
        "num_workers = 2\n[eval.ray_options]\nnum_cpus = 0.5\n"
    )
    assert vf_eval("nightly.toml", "--dry-run", "--json") == 0
    settings = json.loads(capsys.readouterr().out.splitlines()[0])["settings"]
    assert settings["ray"] == ray_cluster.address and settings["ray_options"] == {"num_cpus": 0.5}


@pytest.mark.ray
@pytest.mark.timeout(300)
@pytest.mark.slow
def test_ctrl_c_leaves_nothing_of_a_cluster_started_here_and_the_run_resumes(workspace, endpoint, pids):
    """The whole terminal gets the signal, Ray's processes included; what is left is played here."""
    flags = ("toy", *at(endpoint, "slow"), "-a", '{"tasks": 20}', "-n", 20, "-r", 2, "-c", 2)
    command = [sys.executable, "-m", "verifiers.cli.eval", *map(str, flags), "--ray"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while len(records(workspace)) < 3:
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "continue with: vf-eval" in err and "Traceback" not in err
    until_gone(pids)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    saved = records(workspace)
    assert 3 <= len(saved) < 40
    assert vf_eval(*flags[:-2], "-c", 32, "--resume") == 0
    after = records(workspace)
    assert len(after) == 40 and all(len(one) == 1 for one in after.values())
    assert all(after[rollout] == saved[rollout] for rollout in saved)


def test_what_is_missing_is_told_with_what_to_do(workspace, endpoint, capsys, monkeypatch):
    """An unknown option, both kinds of isolation, no cluster, no Ray."""
    flags = ("toy", *at(endpoint), "-n", 1, "-r", 1, "--no-save")
    assert vf_eval(*flags, "--ray", "auto", "--ray-options", '{"num_cpu": 1}') == 2
    assert "num_cpus" in capsys.readouterr().err
    assert vf_eval(*flags, "--isolated", "--ray=auto") == 2
    assert "runtime_env" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "ray", None)
    assert vf_eval(*flags, "--ray") == 1
    assert "pip install 'verifiers[ray]>=1'" in capsys.readouterr().err


def test_ray_alone_takes_the_address_that_rays_own_commands_take(workspace, endpoint, capsys, monkeypatch):
    """RAY_ADDRESS, otherwise a cluster started here."""
    assert vf_eval("toy", *at(endpoint), "--dry-run", "--json", "--ray") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["settings"]["ray"] == "local"
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:6379")
    assert vf_eval("toy", *at(endpoint), "--ray", "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["settings"]["ray"] == "192.0.2.1:6379"
