"""Rollouts of saved runs as conversations to imitate: JSON lines that `vf-sft`, and other trainers, read.

    exported = export_sft([Path("outputs/evals/…/1a2b3c4d")], Path("good.jsonl"), Selection(min_reward=1.0))

One line a rollout: `messages`, of which the first `prompt_messages` are the prompt and not learned, and `tools`; in
completion mode `prompt` and `completion`. And what it comes from: `env` (name@version), `env_digest`, `model`,
`task_id`, `rollout_id`, `reward`. Where the environment changed the context between turns, a line holds the
conversation as it ended; `vf-sft` learns the turns as they were asked from the run's folder itself, if it was played
with `-C trajectory`.
"""

from __future__ import annotations

import gzip
import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verifiers.clients.wire import native_message
from verifiers.errors import ConfigError, StoreError
from verifiers.evals.appending import store_error
from verifiers.evals.encoding import to_json
from verifiers.evals.saved_state import read_messages
from verifiers.evals.store import RESULTS, SavedRun
from verifiers.train.rows import EnvRef
from verifiers.train.sft_files import environment_of
from verifiers.types import Outcome, message_text

SUFFIXES = (".jsonl", ".jsonl.gz")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rollouts become examples: those that ended by themselves, with at least this reward, the best of each task.

    best: how many of a task, over all runs; those played first among equals. None takes all.
    """

    min_reward: float | None = None
    best: int | None = None


@dataclass(slots=True)
class Exported:
    """What was written, of how many tasks, and what was left out by why: an outcome, "reward", "not_best"."""

    conversations: int = 0
    tasks: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


def check_export(path: str | Path) -> Path:
    """The file to write. ConfigError unless its suffix is one of `SUFFIXES`."""
    file = Path(path)
    if not file.name.endswith(SUFFIXES):
        raise ConfigError(f"{file} is no file of JSON lines", hint=f"Name it with {' or '.join(SUFFIXES)}.")
    return file


def export_sft(runs: Sequence[Path], path: Path, selection: Selection | None = None) -> Exported:
    """Write the chosen rollouts of runs to a file, which is replaced as a whole. Records are read twice, one at a time.

    StoreError if a run can not be read or the file not written.
    """
    selection = selection or Selection()
    exported = Exported()
    saved = [SavedRun(run) for run in runs]
    for run in saved:
        if not (run.path / RESULTS).is_file():
            raise StoreError(f"{run.path} holds no run: there is no {RESULTS}", hint="Give the folder of a run.")
    chosen = _chosen(saved, selection, exported)
    partial = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(partial, "wb") if path.suffix == ".gz" else partial.open("wb") as file:
            for line in _lines(saved, chosen):
                file.write(to_json(line) + b"\n")
                exported.conversations += 1
        partial.replace(path)
    except OSError as error:
        raise store_error(f"can not write {path}", error) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
    return exported


def _chosen(runs: Sequence[SavedRun], selection: Selection, exported: Exported) -> list[tuple[int, int]]:
    """Run and place of the rollouts that are taken, in their order."""
    by_task: dict[tuple[str, str], list[tuple[float, int, int]]] = defaultdict(list)
    for number, run in enumerate(runs):
        env = environment_of(run).name
        for place, record in run.located():
            if (why := _unwanted(record, selection)) is not None:
                exported.left_out[why] += 1
                continue
            # A heap of the best: the worst, and of equals the last, goes first.
            reward = record.get("reward")
            entry = (float("-inf") if reward is None else float(reward), -number, -place)
            best = by_task[env, str(record.get("task_id") or record.get("example_id"))]
            heapq.heappush(best, entry)
            if selection.best is not None and len(best) > selection.best:
                heapq.heappop(best)
                exported.left_out["not_best"] += 1
    exported.tasks = len(by_task)
    return sorted((-number, -place) for best in by_task.values() for _, number, place in best)


def _unwanted(record: Mapping[str, Any], selection: Selection) -> str | None:
    outcome = record.get("outcome") or (Outcome.FAILED if record.get("error") else Outcome.OK)
    if outcome != Outcome.OK:
        return str(outcome)
    reward = record.get("reward")
    return "reward" if selection.min_reward is not None and not _reaches(reward, selection.min_reward) else None


def _reaches(reward: Any, least: float) -> bool:
    return reward is not None and reward >= least


def _lines(runs: Sequence[SavedRun], chosen: Sequence[tuple[int, int]]) -> Iterator[dict[str, Any]]:
    about = [(environment_of(run), (run.read_metadata() or {}).get("model")) for run in runs]
    for number, place in chosen:
        env, model = about[number]
        yield _line(runs[number].record_at(place), env, model)


def _line(record: Mapping[str, Any], env: EnvRef, model: Any) -> dict[str, Any]:
    prompt, completion = (read_messages(record.get(name)) for name in ("prompt", "completion"))
    if isinstance(prompt, str) or isinstance(completion, str):
        said: dict[str, Any] = {"prompt": _plain(prompt), "completion": _plain(completion)}
    else:
        messages = [native_message(message) for message in [*prompt, *completion]]
        tools = [{"type": "function", "function": dict(tool)} for tool in record.get("tool_defs") or ()]
        said = {"messages": messages, "prompt_messages": len(prompt), **({"tools": tools} if tools else {})}
    return {
        **said,
        "env": f"{env.name}@{env.version}" if env.version else env.name,
        "env_digest": env.digest,
        "model": model,
        "task_id": record.get("task_id"),
        "rollout_id": record.get("rollout_id"),
        "reward": record.get("reward"),
    }


def _plain(text: Any) -> str:
    return text if isinstance(text, str) else "".join(message_text(message) for message in text)
