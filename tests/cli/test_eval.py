import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from verifiers.cli import eval as command
from verifiers.cli.session import without_resume

pytestmark = pytest.mark.usefixtures("workspace")


def vf_eval(*arguments):
    return command.run([str(argument) for argument in arguments])


def at(endpoint, model="adds", *more):
    return "-m", model, "-b", endpoint.url, "--max-retries", "0", *more


def only_run(workspace):
    [results] = workspace.glob("**/results.jsonl")
    return results.parent


def records(run):
    return [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]


# --- runs -----------------------------------------------------------------------------------------------------


def test_a_run_is_played_shown_and_saved(workspace, endpoint, capsys):
    """The figures on screen are those of the saved records, and the folder holds everything about the run."""
    complete = {"config.toml", "log.txt", "metadata.json", "results.jsonl", "summary.json"}
    assert vf_eval("toy", *at(endpoint), "-n", 3, "-r", 2) == 0
    shown = capsys.readouterr()
    run = only_run(workspace)
    saved = records(run)
    assert len(saved) == 6
    assert run.parent == workspace / "environments/toy/outputs/evals/toy--adds"
    assert {path.name for path in run.iterdir()} == complete
    mean = sum(record["reward"] for record in saved) / len(saved)
    assert f"score     {mean:.3f}  95 % interval" in shown.out
    assert "6: 6 ok · 0 failed · 0 unscored · 0 truncated" in shown.out
    assert "60 in · 12 out" in shown.out
    assert "toy 0.1.0 (from " in shown.err
    metadata = json.loads((run / "metadata.json").read_text())
    assert (metadata["avg_reward"], metadata["num_examples"]) == (mean, 3)


def test_json_is_one_event_a_line_and_the_last_is_the_summary(endpoint, capsys, new_environment):
    """stdout holds JSON objects only, even if the environment prints."""
    new_environment("chatty", "print('imported')\nfrom toy import load_environment\n")
    assert vf_eval("toy", *at(endpoint), "-n", 2, "-r", 1, "--json") == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in events] == ["start", "rollout", "rollout", "summary"]
    last = events[-1]
    assert last["schema_version"] == 1
    assert last["mean"] == 1.0
    assert last["counts"] == {"ok": 2, "failed": 0, "unscored": 0, "truncated": 0}
    assert Path(last["run"], "results.jsonl").is_file()
    assert vf_eval("chatty", *at(endpoint), "-n", 1, "-r", 1, "--json") == 0
    assert all(json.loads(line) for line in capsys.readouterr().out.splitlines())


MISTAKEN = """
import verifiers as vf


def right(completion, answer):
    return 1.0


def wants(unicorn):
    return 1.0


def load_environment():
    rubric = vf.Rubric([right, right, wants], parser=vf.XMLParser(["a"]))
    rows = [{"question": "What is 1 + 1?", "answer": "2"}]
    return vf.SingleTurnEnv(eval_dataset=lambda: rows, rubric=rubric, parser=vf.XMLParser(["b"]))
"""


def test_likely_mistakes_of_the_author_are_warnings(endpoint, capsys, new_environment):
    """Before anything is played, each once: also what depends on rows that are made at first use."""
    new_environment("mistaken", MISTAKEN)
    vf_eval("mistaken", *at(endpoint), "-n", 1, "-r", 1)
    shown = capsys.readouterr().err
    for told in ("share the metric name 'right'", "a XMLParser each, which differ", "'unicorn', which neither"):
        assert shown.count(told) == 1, shown


def test_several_environments_get_an_overview(workspace, endpoint, capsys, new_environment):
    """Each is reported by itself, then all in one table; a broken one does not stop the others."""
    new_environment("broken", "raise RuntimeError('boom')\n")
    new_environment("other", "from toy import load_environment\n")
    assert vf_eval("toy", "broken", "other", *at(endpoint), "-n", 2, "-r", 1) == 5
    shown = capsys.readouterr()
    table = shown.out.split("environment  model")[1].splitlines()
    assert [row.split()[0] for row in table[1:]] == ["toy", "other"]
    assert "error: environment broken did not load" in shown.err


def test_a_file_with_a_sweep_is_played(workspace, endpoint, capsys):
    """Rows of a sweep are told apart; flags win over the file."""
    (workspace / "sweep.toml").write_text(
        f'model = "adds"\napi_base_url = "{endpoint.url}"\nnum_examples = 4\nrollouts_per_example = 1\n'
        '[[ablation]]\nid = "toy"\n[ablation.sweep.args]\ntasks = [2, 3]\n'
    )
    assert vf_eval("sweep.toml", "-n", 2, "-A") == 0
    out = capsys.readouterr().out
    assert "toy (tasks=2)" in out
    assert "toy (tasks=3)" in out
    assert out.count("2: 2 ok") == 2


def test_a_saved_configuration_plays_again(workspace, endpoint, capsys):
    """`vf-eval RUN/config.toml` is the run once more, in a new folder."""
    vf_eval("toy", *at(endpoint), "-n", 2, "-r", 1)
    config = only_run(workspace) / "config.toml"
    entry = tomllib.loads(config.read_text())["eval"][0]
    assert (entry["model"], entry["num_examples"]) == ("adds", 2)
    assert vf_eval(config) == 0
    assert len(list(workspace.glob("**/results.jsonl"))) == 2


def test_no_save_saves_nothing(workspace, endpoint, capsys):
    """The figures are shown and no folder appears."""
    assert vf_eval("toy", *at(endpoint), "-n", 1, "-r", 1, "--no-save") == 0
    assert "saved     nothing" in capsys.readouterr().out
    assert not list(workspace.glob("**/outputs"))
    assert vf_eval("toy", *at(endpoint), "--no-save", "--resume", workspace) == 2
    assert "contradict" in capsys.readouterr().err


def test_a_monitor_is_requested_while_the_command_runs(endpoint, capsys):
    """--heartbeat-url is asked at the start and every 30 seconds; its failures do not matter."""
    beat = endpoint.url.replace("/v1", "/beat")
    assert vf_eval("toy", *at(endpoint, "slow"), "-n", 2, "-r", 1, "--heartbeat-url", beat) == 0
    assert endpoint.beats == 1
    assert vf_eval("toy", *at(endpoint), "-n", 1, "-r", 1, "--heartbeat-url", "http://127.0.0.1:9/") == 0


def test_the_only_model_of_an_endpoint_is_taken(endpoint, capsys):
    """With -b and no -m the endpoint is asked; if it serves several, the user is."""
    assert vf_eval("toy", "-b", endpoint.url, "-n", 1, "-r", 1) == 0
    assert "the endpoint serves adds" in capsys.readouterr().err
    endpoint.served = ["a", "b"]
    assert vf_eval("toy", "-b", endpoint.url) == 2
    assert "it serves a, b" in capsys.readouterr().err


def test_dry_run_prints_every_setting_with_its_origin(endpoint, capsys, monkeypatch):
    """Nothing is played, and each value says where it came from."""
    monkeypatch.setenv("VF_TEMPERATURE", "0.5")
    assert vf_eval("toy", *at(endpoint), "-n", 7, "--dry-run") == 0
    out = capsys.readouterr().out
    assert not out.startswith("\n") and re.search(r"num_examples +7 +flag", out)
    assert re.search(r"rollouts_per_example +3 +default", out)
    assert re.search(r'sampling_args +\{"temperature":0.5\} +VF_TEMPERATURE', out)
    assert endpoint.requests == 0
    assert vf_eval("toy", *at(endpoint), "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["settings"]["model"] == "adds"


# --- exit codes and mistakes ----------------------------------------------------------------------------------


def test_failed_rollouts_are_exit_5_and_leave_the_mean(endpoint, capsys):
    """One of two tasks fails: the mean is over the other, and the error is shown by kind."""
    assert vf_eval("toy", *at(endpoint, "flaky"), "-n", 2, "-r", 1) == 5
    shown = capsys.readouterr()
    assert "score     1.000" in shown.out
    assert "1 ok · 1 failed" in shown.out
    assert "model ×1" in shown.out
    assert "log.txt" in shown.err


def test_all_rollouts_failed_is_exit_1(endpoint, capsys):
    """There is no mean, and certainly not 0."""
    assert vf_eval("toy", *at(endpoint, "fails"), "-n", 2, "-r", 1) == 1
    assert "none: no rollout was scored" in capsys.readouterr().out


def test_a_raising_reward_function_is_unscored_and_named(workspace, endpoint, capsys):
    """Its traceback is in the run's log, and --on-reward-error zero brings back v0."""
    broken = ("-a", '{"broken_reward": true}', "-n", 2, "-r", 1)
    assert vf_eval("toy", *at(endpoint), *broken) == 1
    out = capsys.readouterr().out
    assert "2 unscored" in out
    assert "raised    correct ×2" in out
    log = (only_run(workspace) / "log.txt").read_text()
    assert "task 0, rollout 0 unscored" in log
    assert "Traceback" in log
    assert vf_eval("toy", *at(endpoint), *broken, "--on-reward-error", "zero") == 0
    assert "score     0.000" in capsys.readouterr().out


MISTAKES = {
    "unknown environment": (["nowhere", "-m", "local"], 1, "no environment 'nowhere'", "vf-init nowhere"),
    "near environment": (["toyy", "-m", "local"], 1, "no environment 'toyy'", "Did you mean 'toy'?"),
    "no environment": ([], 2, "no environment was named", "vf-eval arithmetic -m local"),
    "bad JSON": (["toy", "-a", "{x}"], 2, "-a/--env-args is no valid JSON", "Quote it"),
    "JSON that is no object": (
        ["toy", "-S", "3"],
        2,
        "-S/--sampling-args must be a JSON object",
        "Write it as",
    ),
    "unknown argument": (["toy", "-m", "local", "-a", '{"taskz": 1}'], 2, "taskz", "tasks"),
    "no key": (["toy", "-m", "gpt-4.1-mini"], 3, "OPENAI_API_KEY", "-m local"),
    "shortened option": (["toy", "--num", "3"], 2, "Did you mean --num-examples?", "--help"),
    "mistyped option": (["toy", "--num-exampels", "3"], 2, "Did you mean --num-examples?", "--help"),
    "no number": (["toy", "-n", "many"], 2, "Invalid value for -n", "--help"),
    "excluding flags": (["toy", "-d", "-f"], 2, "exclude each other", "one of them"),
    "endpoint down": (["toy", "-m", "x", "-b", "http://127.0.0.1:9/v1"], 4, "http://127.0.0.1:9/v1", "-b"),
    "bad URL": (["toy", "-m", "x", "-b", "localhost:1"], 2, "not an http", ""),
    "unknown provider": (["toy", "-p", "opnai"], 2, "unknown provider", "'openai'"),
    "unsupported dialect": (
        ["toy", "-m", "x", "-b", "http://127.0.0.1:9/v1", "--api-client-type", "openai_responses"],
        2,
        "openai_responses",
        "",
    ),
    "no such file": (["none.toml"], 2, "no file none.toml", ""),
    "no such run": (["toy", "-m", "x", "-b", "URL", "--resume", "nowhere"], 1, "holds no run", ""),
    "resume of no environment": (["--resume"], 2, "none was named", "vf-eval my-env -m MODEL --resume"),
    "resume of no run": (["--resume", "nowhere"], 2, "nowhere holds no run", "folder of a run"),
    "no tasks": (["toy", "-m", "x", "-b", "URL", "-n", "0"], 2, "-1 plays all tasks", ""),
    "a price that names nothing": (["toy", "-m", "x", "-b", "URL", "--price", "1"], 2, "'1' is no", "input=0.40"),
    "an amount twice": (["toy", "--run-limit", "tokens=1,tokens=2"], 2, "names tokens twice", "tokens=20000"),
    "an unknown amount": (["toy", "--rollout-limit", "token=3"], 2, "there are tokens, turns", "tokens=20000"),
    "no number of workers": (["toy", "-w", "x"], 2, "--num-workers must be a whole number", ""),
    "upload without token": (["toy", "-m", "x", "-b", "URL", "-H"], 3, "HF_TOKEN", "-H"),
    "upload without saving": (["toy", "-m", "x", "-b", "URL", "-H", "--no-save"], 2, "--no-save", ""),
    "unauthorised": (["toy", "-m", "denied", "-b", "URL"], 3, "401", "-k"),
    "wrong model": (["toy", "-m", "absent", "-b", "URL"], 1, "absent", "The endpoint serves: adds"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_message_a_hint_and_its_exit_code(endpoint, capsys, mistake):
    """What happened, what to do next, the code, and no traceback."""
    arguments, code, message, hint = MISTAKES[mistake]
    arguments = [endpoint.url if argument == "URL" else argument for argument in arguments]
    assert vf_eval(*arguments) == code
    err = capsys.readouterr().err
    assert err.count("error:") == 1
    told = err[err.index("error:") :]
    assert message in told
    assert hint in told
    assert "Traceback" not in err and "pydantic" not in err


LOADS = "import verifiers as vf\ndef load_environment():\n    return "

BROKEN = {
    "no load_environment": ("x = 1\n", 1, "has no load_environment"),
    "import fails": ("import not_installed_anywhere\n", 1, "needs the package not_installed_anywhere"),
    "raises": ("def load_environment():\n    raise KeyError('boom')\n", 1, "KeyError: 'boom' (faulty_raises.py:2)"),
    "no environment": ("def load_environment():\n    return 3\n", 1, "returned int"),
    "newer API": ("from verifiers import Taskset\n", 1, "newer API"),
    "newer API by module": (
        "import verifiers as vf\ndef load_environment():\n    return vf.Taskset()\n",
        1,
        "newer API",
    ),
    "no prompt": (
        LOADS + "vf.SingleTurnEnv(dataset=[{'text': 'x'}], rubric=vf.Rubric(funcs=[]))\n",
        1,
        "question",
    ),
    "weights": (
        LOADS
        + "vf.SingleTurnEnv(dataset=[{'question': 'x'}], rubric=vf.Rubric(funcs=[len], weights=[1, 2]))\n",
        1,
        "weight",
    ),
}


def test_an_argument_of_another_kind_is_named(endpoint, capsys, new_environment):
    """What the environment's code says of it need not say which one it was."""
    new_environment("sliced", "def load_environment(num_eval: int = 3, name: str = ''):\n    return [][:num_eval]\n")
    assert vf_eval("sliced", *at(endpoint), "-a", '{"num_eval": "three", "name": "n"}') == 1
    assert "num_eval takes int, and was given 'three'." in capsys.readouterr().err
    sys.modules.pop("sliced", None)


@pytest.mark.parametrize("fault", BROKEN)
def test_a_faulty_environment_is_named_without_a_traceback(endpoint, capsys, new_environment, fault):
    """The message says which environment and what is wrong with it; --verbose adds the traceback."""
    source, code, message = BROKEN[fault]
    name = "faulty_" + fault.replace(" ", "_")
    new_environment(name, source)
    assert vf_eval(name, *at(endpoint)) == code
    err = capsys.readouterr().err
    assert message in err
    assert err.count("error:") == 1
    assert "Traceback" not in err
    sys.modules.pop(name, None)
    assert vf_eval(name, *at(endpoint), "--verbose") == code
    assert "Traceback" in capsys.readouterr().err


def test_errors_are_events_with_json(endpoint, capsys):
    """With --json the error is one object of the common shape, and stdout holds nothing else."""
    assert vf_eval("toy", *at(endpoint, "denied"), "--json") == 3
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert events[-1]["event"] == "error"
    assert set(events[-1]["error"]) == {"code", "message", "hint", "docs"}
    assert events[-1]["error"]["code"] == "authentication"


# --- flags ----------------------------------------------------------------------------------------------------

V0_FLAGS = [
    ("-a", '{"a": 1}', "env_args", {"a": 1}),
    ("--env-args", '{"a": 1}', "env_args", {"a": 1}),
    ("-x", '{"a": 1}', "extra_env_kwargs", {"a": 1}),
    ("--extra-env-kwargs", "{}", "extra_env_kwargs", {}),
    ("--env-dir-path", "d", "env_dir_path", "d"),
    ("-o", "d", "output_dir", "d"),
    ("--output-dir", "d", "output_dir", "d"),
    ("-p", "openai", "provider", "openai"),
    ("--provider", "openai", "provider", "openai"),
    ("-e", "e.toml", "endpoints_path", "e.toml"),
    ("--endpoints-path", "e.toml", "endpoints_path", "e.toml"),
    ("-m", "m", "model", "m"),
    ("--model", "m", "model", "m"),
    ("--api-client-type", "openai_completions", "api_client_type", "openai_completions"),
    ("-k", "K", "api_key_var", "K"),
    ("--api-key-var", "K", "api_key_var", "K"),
    ("-b", "http://a", "api_base_url", "http://a"),
    ("--api-base-url", "http://a", "api_base_url", "http://a"),
    ("--header", "A: b", "header", ["A: b"]),
    ("--header-from-state", "A: b", "header_from_state", ["A: b"]),
    ("-n", "-1", "num_examples", -1),
    ("--num-examples", "7", "num_examples", 7),
    ("-r", "2", "rollouts_per_example", 2),
    ("--rollouts-per-example", "2", "rollouts_per_example", 2),
    ("--shuffle", None, "shuffle", True),
    ("--shuffle-seed", "4", "shuffle_seed", 4),
    ("-c", "9", "max_concurrent", 9),
    ("--max-concurrent", "9", "max_concurrent", 9),
    ("--max-concurrent-generation", "9", "max_concurrent", 9),
    ("--max-concurrent-scoring", "9", None, None),
    ("--save-every", "9", None, None),
    ("-w", "auto", "num_workers", "auto"),
    ("--num-workers", "2", "num_workers", 2),
    ("-t", "5", "max_tokens", 5),
    ("--max-tokens", "5", "max_tokens", 5),
    ("-T", "0.5", "temperature", 0.5),
    ("--temperature", "0", "temperature", 0.0),
    ("-S", '{"top_p": 1}', "sampling_args", {"top_p": 1}),
    ("--sampling-args", '{"top_p": 1}', "sampling_args", {"top_p": 1}),
    ("--timeout", "1.5", "timeout", 1.5),
    ("-i", None, "independent_scoring", True),
    ("--independent-scoring", None, "independent_scoring", True),
    ("--max-retries", "0", "max_retries", 0),
    ("-s", None, "save_results", True),
    ("--save-results", None, "save_results", True),
    ("--no-save", None, "save_results", False),
    ("-R", None, "resume", True),
    ("--resume", None, "resume", True),
    ("--resume", "runs/1", "resume", "runs/1"),
    ("-R", "runs/1", "resume", "runs/1"),
    ("-C", "a, b", "state_columns", ["a", "b"]),
    ("--state-columns", "a", "state_columns", ["a"]),
    ("-H", None, "save_to_hf_hub", True),
    ("--save-to-hf-hub", None, "save_to_hf_hub", True),
    ("-D", "o/n", "hf_hub_dataset_name", "o/n"),
    ("--hf-hub-dataset-name", "o/n", "hf_hub_dataset_name", "o/n"),
    ("-v", None, "verbose", True),
    ("--verbose", None, "verbose", True),
    ("-d", None, "disable_tui", True),
    ("--disable-tui", None, "disable_tui", True),
    ("-f", None, "fullscreen", True),
    ("--fullscreen", None, "fullscreen", True),
    ("-A", None, "abbreviated_summary", True),
    ("--abbreviated-summary", None, "abbreviated_summary", True),
    ("--disable-env-server", None, "disable_env_server", True),
    ("-N", None, "no_interleave_scoring", True),
    ("--no-interleave-scoring", None, "no_interleave_scoring", True),
    ("--heartbeat-url", "http://h", "heartbeat_url", "http://h"),
    ("--on-reward-error", "raise", "on_reward_error", "raise"),
    ("--seed", "3", "seed", 3),
]


@pytest.mark.parametrize(("flag", "argument", "setting", "value"), V0_FLAGS)
def test_flags_of_v0_keep_letter_and_meaning(flag, argument, setting, value):
    """Each flag sets its setting, before and after the environment."""
    given = [flag] if argument is None else [flag, argument]
    orders = [["toy", *given], [*given, "toy"]] if argument is not None else [["toy", *given]]
    for arguments in orders:
        request = command.request_of(arguments)
        assert request.environments == ("toy",)
        settings = command._settings(request.flags, command.Output())
        assert settings == ({} if setting is None else {setting: value})


def test_headers_repeat_and_short_flags_combine():
    """Repeatable flags collect; -vA is -v -A."""
    request = command.request_of(["toy", "--header", "A: b", "--header", "C: d", "-vA"])
    assert request.flags.given() == {"header": ["A: b", "C: d"], "verbose": True, "abbreviated_summary": True}


def test_help_and_version_are_answered(capsys):
    """Help shows examples and every shown flag; the version is the package's."""
    assert vf_eval("--help") == 0
    text = capsys.readouterr().out
    assert "vf-eval arithmetic -m local" in text
    assert "--rollouts-per-example" in text
    assert "--max-concurrent-generation" not in text
    assert vf_eval("--version") == 0
    assert re.match(r"\d+\.\d+\.\d+", capsys.readouterr().out)


def test_help_loads_neither_the_engine_nor_pydantic():
    """Asking for help is quick because it loads little."""
    code = (
        "import sys; from verifiers.cli.eval import run; run(['--help']);"
        "print(sorted({'pydantic', 'datasets', 'openai', 'aiohttp', 'numpy', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# --- interrupting and resuming --------------------------------------------------------------------------------


def play(*arguments):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("COV")}
    return subprocess.Popen(
        [sys.executable, "-m", "verifiers.cli.eval", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def wait_for_records(workspace, number, timeout=60):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        found = list(workspace.glob("**/results.jsonl"))
        if found and found[0].read_bytes().count(b"\n") >= number:
            return found[0].parent
        time.sleep(0.02)
    raise AssertionError("no records appeared")


def test_ctrl_c_saves_and_resuming_finishes_the_same_run(workspace, endpoint, capsys):
    """Exit 130 with the command that continues; afterwards the run holds each rollout exactly once."""
    flags = ("toy", *at(endpoint, "slow"), "-a", '{"tasks": 10}', "-n", 10, "-r", 2, "-c", 2)
    process = play(*flags)
    run = wait_for_records(workspace, 3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    saved = len(records(run))
    assert 3 <= saved < 20
    assert f"interrupted: {saved} of 20 rollouts are saved in" in err
    hinted = next(line for line in err.splitlines() if "continue with:" in line)
    assert f"--resume {run.relative_to(workspace)}" in hinted or f"--resume {run}" in hinted
    before = (run / "results.jsonl").read_bytes()
    assert vf_eval(*flags, "--resume", run) == 0
    assert f"{saved} of them recorded" in capsys.readouterr().err
    after = records(run)
    assert (run / "results.jsonl").read_bytes().startswith(before)
    assert len({(record["task_id"], record["rollout_index"]) for record in after}) == len(after) == 20
    assert json.loads((run / "summary.json").read_text())["counts"]["ok"] == 20


HANGING = """
import asyncio
import verifiers as vf


class Hanging(vf.SingleTurnEnv):
    @vf.cleanup
    async def hang(self, state):
        await asyncio.sleep(60)


def load_environment():
    return Hanging(dataset=[{"question": f"What is {n} + {n}?", "answer": "x"} for n in range(9)], rubric=vf.Rubric())
"""


def test_the_second_ctrl_c_ends_at_once(workspace, endpoint, new_environment):
    """A cleanup that hangs does not keep the command alive."""
    new_environment("hanging", HANGING)
    process = play("hanging", *at(endpoint, "slow"), "-n", 9, "-r", 1)
    for line in process.stderr:
        if "hanging with slow" in line:
            break
    process.send_signal(signal.SIGINT)
    for line in process.stderr:
        if "stopping" in line:
            break
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130


def test_kill_9_leaves_a_run_that_resumes_by_itself(workspace, endpoint, capsys):
    """--resume without a path finds the newest unfinished run."""
    flags = ("toy", *at(endpoint, "slow"), "-a", '{"tasks": 6}', "-n", 6, "-r", 2, "-c", 2)
    process = play(*flags)
    run = wait_for_records(workspace, 2)
    process.kill()
    process.communicate(timeout=30)
    saved = len(records(run))
    assert saved >= 2
    assert vf_eval(*flags, "-T", 0.5, "--resume") == 1
    assert "'temperature': 0.5" in capsys.readouterr().err and len(records(run)) == saved
    assert vf_eval(*flags, "--resume") == 0
    assert only_run(workspace) == run
    assert len(records(run)) == 12


def test_resuming_under_other_settings_is_refused_by_name(workspace, endpoint, capsys):
    """The field is named; --force goes on; the run's own configuration needs no environment."""
    vf_eval("toy", *at(endpoint), "-n", 2, "-r", 1)
    run = only_run(workspace)
    assert vf_eval("--resume", run, "-n", 3) == 0
    assert len(records(run)) == 3
    capsys.readouterr()
    changed = ("toy", *at(endpoint), "-n", 4, "-r", 1, "-T", 0.5, "--resume", run)
    assert vf_eval(*changed) == 1
    assert "sampling_args" in capsys.readouterr().err
    assert len(records(run)) == 3
    assert vf_eval(*changed, "--force") == 0
    assert len(records(run)) == 4


def test_a_bare_resume_without_unfinished_run_starts_a_new_one(workspace, endpoint, capsys):
    """As in v0, and said."""
    assert vf_eval("toy", *at(endpoint), "-n", 1, "-r", 1, "--resume") == 0
    assert "a new one is started" in capsys.readouterr().err


def test_one_path_for_several_runs_is_refused(endpoint, capsys, new_environment):
    """A path names one run."""
    new_environment("second", "from toy import load_environment\n")
    assert vf_eval("toy", "second", *at(endpoint), "--resume", "x") == 2
    assert "continues one run" in capsys.readouterr().err


def test_the_resume_command_is_built_from_the_given_one():
    """--resume and its path leave, everything else stays."""
    assert without_resume(["a", "--resume", "p", "-n", "1"]) == ["a", "-n", "1"]
    assert without_resume(["a", "-R", "-n", "1"]) == ["a", "-n", "1"]
    assert without_resume(["a", "--resume=p"]) == ["a"]


def test_a_full_disk_is_exit_1_and_what_was_saved_is_named(workspace, endpoint):
    """The run stops, says what is saved and how to go on, and the file holds whole lines."""
    limited = f'ulimit -f 16; exec {sys.executable} -m verifiers.cli.eval "$@"'
    flags = [*at(endpoint), "-a", '{"tasks": 200}', "-n", "200", "-r", "1"]
    done = subprocess.run(["bash", "-c", limited, "-", "toy", *flags], capture_output=True, text=True)
    assert done.returncode == 1
    assert "can not save to" in done.stderr
    assert "continue with: vf-eval toy" in done.stderr
    assert 0 < len(records(only_run(workspace))) < 200


def test_a_missing_extra_is_answered_with_its_installation(capsys, monkeypatch):
    """-m local without the extra says which command installs it."""
    from importlib import util

    found = util.find_spec
    monkeypatch.setattr(
        util, "find_spec", lambda name, *more: None if name == "xllamacpp" else found(name, *more)
    )
    assert vf_eval("toy", "-m", "local") == 1
    assert "pip install 'verifiers[local]>=1'" in capsys.readouterr().err
