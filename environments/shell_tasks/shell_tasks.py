"""Work with files in a shell: count in logs, add up tables, tidy folders, write a script.

One task:

    question  "The folder logs/ holds log files. How many of their lines have the level ERROR and the service search? …"
    info      {"kind": "count", "seed": 398078491}

Each rollout has a sandbox of its own, with the task's files in `/workspace`, and the tool `bash`. What counts is what
the sandbox holds in the end: the file `answer.txt`, where files lie, or what the script prints for inputs that the
model has not seen. It is looked at when the rollout is over and compared on this side: no expected value ever enters
the sandbox.

    vf-eval shell_tasks -m MODEL
"""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import verifiers as vf
from verifiers.errors import SandboxPathError
from verifiers.sandboxes.sandbox import Sandbox

SYSTEM_PROMPT = (
    "You work in a Linux shell: call the tool `bash` with one command at a time, in the folder /workspace. "
    "When the task is done, reply without calling a tool."
)
HOME = "/workspace"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
SERVICES = ("billing", "search", "mail")
REGIONS = ("north", "south", "east", "west")
SCRIPT_RULES: dict[str, tuple[Callable[[list[int]], int], str]] = {
    "the sum of the even numbers": (
        lambda numbers: sum(number for number in numbers if number % 2 == 0),
        "awk '$1 % 2 == 0 {sum += $1} END {print sum + 0}'",
    ),
    "how many different numbers there are": (lambda numbers: len(set(numbers)), "sort -u | wc -l"),
    "the largest number": (max, "sort -n | tail -n 1"),
}
"""What a script is to print of the numbers it reads → how it is computed, and a line of the shell that does it."""
HIDDEN_INPUTS = 3
SCRIPT_SECONDS = 5.0
ANSWER_BYTES = 1000

Task = dict[str, Any]


@dataclass(frozen=True)
class Puzzle:
    """What a task consists of. expected: what `look` finds when it is solved. solve: a line of the shell that does it.
    inputs: what a script is tried with."""

    question: str
    files: dict[str, str]
    expected: Any
    solve: str
    inputs: tuple[str, ...] = ()


# --- kinds of tasks ---------------------------------------------------------------------------------------------


def count_lines(rng: random.Random) -> Puzzle:
    """How many lines of log files have a level and a service."""
    level, service = rng.choice(LEVELS), rng.choice(SERVICES)
    files, hits = {}, 0
    for number in range(rng.randint(2, 4)):
        lines = [(rng.choice(LEVELS), rng.choice(SERVICES)) for _ in range(rng.randint(20, 60))]
        hits += lines.count((level, service))
        files[f"logs/app-{number}.log"] = "".join(
            f"2026-03-0{number + 1}T10:{minute:02}:00 {a} {b} request {rng.randint(100, 999)}\n"
            for minute, (a, b) in enumerate(lines)
        )
    question = (
        f"The folder logs/ holds log files. How many of their lines have the level {level} and the service {service}? "
        "Write the number to answer.txt."
    )
    return Puzzle(question, files, str(hits), f"cat logs/*.log | grep -c ' {level} {service} ' > answer.txt")


def total_amount(rng: random.Random) -> Puzzle:
    """The sum of a column of tables, over the rows of one region."""
    wanted = rng.choice(REGIONS)
    files, cents = {}, 0
    for month in range(1, rng.randint(2, 4) + 1):
        rows = [(rng.choice(REGIONS), rng.randint(100, 99_999)) for _ in range(rng.randint(10, 30))]
        cents += sum(amount for region, amount in rows if region == wanted)
        body = "".join(f"{number},{region},{amount / 100:.2f}\n" for number, (region, amount) in enumerate(rows))
        files[f"sales/2026-{month:02}.csv"] = f"order,region,amount\n{body}"
    question = (
        "The tables in sales/ have the columns order, region and amount. What is the total amount of the region "
        f"{wanted} over all of them? Write it to answer.txt with two decimals."
    )
    solve = f"awk -F, '$2 == \"{wanted}\" {{sum += $3}} END {{printf \"%.2f\", sum}}' sales/*.csv > answer.txt"
    return Puzzle(question, files, f"{cents / 100:.2f}", solve)


def tidy_folder(rng: random.Random) -> Puzzle:
    """Move the files with a certain first line."""
    names = [f"note-{number:02}.txt" for number in range(rng.randint(6, 12))]
    drafts = sorted(rng.sample(names, rng.randint(2, 4)))
    files = {
        f"inbox/{name}": f"{'draft' if name in drafts else 'final'}\nAbout draft {rng.randint(1, 99)}.\n"
        for name in names
    }
    question = (
        "Move every file of inbox/ whose first line is exactly `draft` to a new folder drafts/; leave the others."
    )
    solve = 'mkdir drafts; for f in inbox/*; do if head -n 1 "$f" | grep -qx draft; then mv "$f" drafts/; fi; done'
    sizes = {name: len(files[f"inbox/{name}"]) for name in names}
    kept, moved = ({name: sizes[name] for name in names if (name in drafts) is chosen} for chosen in (False, True))
    return Puzzle(question, files, {"drafts": moved, "inbox": kept}, solve)


def write_script(rng: random.Random) -> Puzzle:
    """Write a script that computes something of its input."""
    wanted = rng.choice(sorted(SCRIPT_RULES))
    rule, line = SCRIPT_RULES[wanted]
    inputs = [[rng.randint(0, 99) for _ in range(rng.randint(5, 50))] for _ in range(HIDDEN_INPUTS)]
    question = (
        "Write an executable script solve.sh that reads whole numbers from its standard input, one a line, and prints "
        f"{wanted}. It will be run with inputs of up to 50 numbers between 0 and 99."
    )
    solve = f"printf '%s\\n' '#!/bin/sh' {shlex.quote(line)} > solve.sh; chmod +x solve.sh"
    texts = tuple("".join(f"{number}\n" for number in numbers) for numbers in inputs)
    return Puzzle(question, {}, [str(rule(numbers)) for numbers in inputs], solve, texts)


# --- looking at the result --------------------------------------------------------------------------------------


async def read_answer(sandbox: Sandbox, _: Puzzle) -> str | None:
    """What answer.txt holds; None if there is no such file."""
    try:
        return (await sandbox.read(f"{HOME}/answer.txt", size=ANSWER_BYTES)).decode(errors="replace").strip()
    except SandboxPathError:
        return None


async def list_folders(sandbox: Sandbox, _: Puzzle) -> dict[str, dict[str, int]] | None:
    """Folder → file → bytes; None if a folder is not there or holds what is no file."""
    try:
        listed = {name: await sandbox.list(f"{HOME}/{name}") for name in ("drafts", "inbox")}
    except SandboxPathError:
        return None
    if any(found.kind != "file" for files in listed.values() for found in files):
        return None
    return {name: {found.path.rpartition("/")[2]: found.size for found in files} for name, files in listed.items()}


async def run_script(sandbox: Sandbox, puzzle: Puzzle) -> list[str]:
    """What solve.sh prints for each input."""
    printed = []
    for text in puzzle.inputs:
        result = await sandbox.exec(["./solve.sh"], stdin=text, timeout=SCRIPT_SECONDS, max_output=ANSWER_BYTES)
        printed.append(result.stdout_text.strip() if result.ok else f"failed: {result.reason} {result.exit_code}")
    return printed


KINDS: dict[str, tuple[Callable[[random.Random], Puzzle], Callable[[Sandbox, Puzzle], Awaitable[Any]]]] = {
    "count": (count_lines, read_answer),
    "total": (total_amount, read_answer),
    "tidy": (tidy_folder, list_folders),
    "script": (write_script, run_script),
}
"""Kind → how its tasks are made, and what of the sandbox decides them."""


# --- tasks ------------------------------------------------------------------------------------------------------


def puzzle_of(info: dict[str, Any]) -> Puzzle:
    """The puzzle of a task; the same in every process."""
    return KINDS[info["kind"]][0](random.Random(f"shell_tasks/{info['kind']}/{info['seed']}"))


def make_tasks(count: int, seed: int) -> list[Task]:
    """`count` tasks, of all kinds in turn."""
    rng = random.Random(f"shell_tasks/{seed}")
    infos = [{"kind": kind, "seed": rng.randrange(1 << 30)} for kind, _ in zip(cycle(KINDS), range(count))]
    return [{"question": puzzle_of(info).question, "info": info} for info in infos]


# --- the environment --------------------------------------------------------------------------------------------


class ShellTasks(vf.SandboxEnv):
    """A shell, the task's files, and a look at what has become of them."""

    record_columns = (*vf.SandboxEnv.record_columns, "found")

    async def prepare_sandbox(self, sandbox: Sandbox, state: vf.State) -> None:
        """Put the task's files in place."""
        for path, text in puzzle_of(state["info"]).files.items():
            await sandbox.write(f"{HOME}/{path}", text.encode())

    async def post_rollout(self, state: vf.State) -> None:
        """Keep what decides the reward: the sandbox is gone when it is computed."""
        sandbox = await self.sandbox_client.sandbox(state["sandbox_id"])
        look = KINDS[state["info"]["kind"]][1]
        state["found"] = await look(sandbox, puzzle_of(state["info"]))


def solved(state: vf.State, info: dict[str, Any]) -> float:
    """1 if the sandbox holds what was asked for, else 0."""
    return float(state["found"] == puzzle_of(info).expected)


def load_environment(
    num_train: int = 500, num_eval: int = 100, max_turns: int = 10, seed: int = 0, **kwargs: Any
) -> vf.Environment:
    """The environment; `kwargs` are those of `vf.SandboxEnv`."""
    tasks = make_tasks(num_eval + num_train, seed)
    return ShellTasks(
        dataset=tasks[num_eval:],
        eval_dataset=tasks[:num_eval],
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric(funcs=[solved]),
        max_turns=max_turns,
        sandbox_name="shell-tasks",
        **{"memory_gb": 0.5, "disk_size_gb": 0.25, "timeout_per_command_seconds": 10, **kwargs},
    )


def oracle(task: Task, messages: vf.Messages, state: vf.State) -> str | Task:  # noqa: ARG001 - every oracle has these parameters
    """A reply that earns the maximum: one command does it."""
    if any(message["role"] == "tool" for message in messages):
        return "Done."
    arguments = json.dumps({"command": puzzle_of(task["info"]).solve})
    call = {"id": "call_0", "name": "bash", "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [call]}
