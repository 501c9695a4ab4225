"""A run on disk: a folder that is readable at any moment, whatever happens to the process that writes it.

    results.jsonl   one record a line, written when its rollout is sealed
    metadata.json   what was played and the means so far, replaced atomically
    summary.json    the figures that the command printed
    config.toml     the resolved configuration; `vf-eval RUN/config.toml` plays it again
    log.txt         the command's log

`RunStore` writes and holds a lock on the results; `SavedRun` reads and needs none. Each record is one `write` to a
file opened for appending: `kill -9` loses no record whose `append` returned. A line that a dying process or a full
disk tore is cut off when the run is opened again, so that nothing merges with it; its rollout is owed.

    with RunStore.create(run_directory("gsm8k", None, "gpt-4.1-mini")) as store:
        store.append(record)
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
import weakref
from collections.abc import Collection, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from verifiers.errors import StoreError
from verifiers.evals.appending import cut_torn_line, open_for_appending, store_error, write_whole
from verifiers.evals.encoding import encode_record, from_json, to_json, to_toml
from verifiers.evals.old_records import is_old, upgraded

if TYPE_CHECKING:
    from verifiers.evals.statistics import RunStatistics
    from verifiers.types.config import EvalConfig

logger = logging.getLogger(__name__)

RESULTS = "results.jsonl"
METADATA = "metadata.json"
SUMMARY = "summary.json"
CONFIG = "config.toml"
LOG = "log.txt"

SCHEMA_VERSION = 1
"""Version of `summary.json` and of the command's JSON events."""


# --- where a run lives ----------------------------------------------------------------------------------------


def runs_directory(
    env_id: str,
    name: str | None,
    model: str,
    *,
    env_dir: str | Path = "./environments",
    output_dir: str | Path | None = None,
) -> Path:
    """The folder that holds the runs of one environment and model: `…/evals/<env>--<model>`.

    It lies in `outputs` of the environment's own folder if that exists below `env_dir`, otherwise in `./outputs`;
    `output_dir` replaces `outputs`.
    """
    return (
        _outputs(env_id, env_dir, output_dir) / "evals" / f"{_file_name(name or env_id)}--{_file_name(model)}"
    )


def run_directory(
    env_id: str,
    name: str | None,
    model: str,
    *,
    env_dir: str | Path = "./environments",
    output_dir: str | Path | None = None,
) -> Path:
    """The path of a new run: `runs_directory` and eight random hexadecimal digits. Nothing is created."""
    return runs_directory(env_id, name, model, env_dir=env_dir, output_dir=output_dir) / secrets.token_hex(4)


def _outputs(env_id: str, env_dir: str | Path, output_dir: str | Path | None) -> Path:
    if output_dir is not None:
        return Path(output_dir)
    module = env_id.partition("@")[0].rpartition("/")[2].replace("-", "_")
    folder = Path(env_dir) / module
    return folder / "outputs" if module and folder.is_dir() else Path("outputs")


def _file_name(text: str) -> str:
    # Names of models may be paths or hold anything; a file name is at most 255 bytes.
    return re.sub(r"[\x00-\x1f\x7f\\]", "-", text.replace("/", "--"))[:100]


def newest_first(folder: Path, file: str) -> list[Path]:
    """The runs below `folder` that have this file, by when it was written; what is removed meanwhile is none."""
    written: dict[Path, float] = {}
    for path in folder.glob(f"*/{file}"):
        with suppress(FileNotFoundError):
            written[path.parent] = path.stat().st_mtime
    return sorted(written, key=written.__getitem__, reverse=True)


# --- reading --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Damage:
    """Lines of `results.jsonl` that are no record: `broken` is no JSON, `foreign` no rollout."""

    broken: int = 0
    foreign: int = 0

    def __bool__(self) -> bool:
        return bool(self.broken or self.foreign)


class SavedRun:
    """A run to read, of ours or of any era of v0. It may still be growing."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.damage = Damage()

    def records(self) -> Iterator[dict[str, Any]]:
        """The records in the order they were saved, those of v0 in our form.

        Other lines are skipped, counted in `damage` and logged.
        """
        return (record for _, record in self.located())

    def located(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The records with their places, by which `record_at` finds them again."""
        self.damage = Damage()
        place = 0
        try:
            with (self.path / RESULTS).open("rb") as file:
                for number, line in enumerate(file, 1):
                    record = self._record(line, number)
                    if record is not None:
                        yield place, record
                    place += len(line)
        except OSError as error:
            raise store_error(f"can not read {self.path / RESULTS}", error) from error

    def record_at(self, place: int) -> dict[str, Any]:
        """The record at a place. StoreError if the file has changed and there is none any more."""
        try:
            with (self.path / RESULTS).open("rb") as file:
                file.seek(place)
                record = self._record(file.readline(), 0)
        except OSError as error:
            raise store_error(f"can not read {self.path / RESULTS}", error) from error
        if record is None:
            raise StoreError(f"{self.path / RESULTS} has changed while it was read", hint="Start again.")
        return record

    @cached_property
    def _metric_names(self) -> Collection[str] | None:
        try:
            return (self.read_metadata() or {}).get("avg_metrics")
        except StoreError:
            return None

    def _record(self, line: bytes, number: int) -> dict[str, Any] | None:
        if not line.strip():
            return None
        try:
            value = from_json(line)
        except ValueError:
            self.damage.broken += 1
            logger.warning("%s, line %d: no JSON, skipped", self.path / RESULTS, number)
            return None
        if isinstance(value, dict) and ("example_id" in value or "task_id" in value):
            return upgraded(value, self._metric_names) if is_old(value) else value
        self.damage.foreign += 1
        logger.warning("%s, line %d: no rollout, skipped", self.path / RESULTS, number)
        return None

    def read_metadata(self) -> dict[str, Any] | None:
        """What `metadata.json` holds; None if there is none. StoreError if it is unreadable."""
        path = self.path / METADATA
        try:
            value = from_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise store_error(f"can not read {path}", error) from error
        except ValueError as error:
            raise StoreError(f"{path} is no JSON: {error}") from error
        if not isinstance(value, dict):
            raise StoreError(f"{path} is no JSON object")
        return value


# --- writing --------------------------------------------------------------------------------------------------


class RunStore(SavedRun):
    """A run to write. Use `create` or `open`; one process at a time holds a run."""

    def __init__(self, path: str | Path, results: int) -> None:
        super().__init__(path)
        self._home = self.path.absolute()  # an environment may change the working directory
        self._results = results
        self._lock = threading.Lock()
        self._size = os.fstat(results).st_size
        self.appended = 0
        _OPEN.add(self)

    @classmethod
    def create(cls, path: str | Path) -> Self:
        """A new, empty run. StoreError if the folder already holds one or can not be made."""
        folder = Path(path)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise store_error(f"can not make the run directory {folder}", error) from error
        if (folder / RESULTS).exists():
            raise StoreError(f"{folder} already holds a run", hint=f"Continue it with --resume {folder}.")
        return cls(folder, open_for_appending(folder / RESULTS))

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """An existing run, to continue. A torn last line is cut off."""
        folder = Path(path)
        if not (folder / RESULTS).is_file():
            raise StoreError(
                f"{folder} holds no run: there is no {RESULTS}", hint="Give the path of a run directory."
            )
        descriptor = open_for_appending(folder / RESULTS)
        cut_torn_line(descriptor, folder / RESULTS, "its rollout is owed")
        return cls(folder, descriptor)

    @property
    def log_path(self) -> Path:
        """Where the log of this run belongs."""
        return self.path / LOG

    def append(self, record: Mapping[str, Any]) -> None:
        """Save one sealed rollout. When this returns, `kill -9` does not lose it. StoreError if it can not be saved."""
        line = encode_record(record)
        with self._lock:
            self._check_open()
            try:
                write_whole(self._results, line)
            except OSError as error:
                self._forget_partial_line()
                raise store_error(f"can not save to {self.path / RESULTS}", error) from error
            self._size += len(line)
            self.appended += 1

    def _check_open(self) -> None:
        if self._results < 0:
            raise StoreError(
                f"{self.path} is not open for writing in this process",
                hint="A child that code of an environment forked must end with os._exit, not go on with the run.",
            )

    def _forget_partial_line(self) -> None:
        try:
            os.ftruncate(self._results, self._size)
        except OSError as error:
            # The torn line is then cut off when the run is opened again.
            logger.warning("can not cut the torn line off %s: %s", self.path / RESULTS, error.strerror)

    def drop(self, example_ids: Container[Any]) -> int:
        """Remove the records of these groups, atomically, and return how many there were. StoreError if that fails."""
        path, beside = self.path / RESULTS, self.path / f".{RESULTS}.new"
        dropped, descriptor = 0, -1
        with self._lock:
            try:
                beside.unlink(missing_ok=True)
                descriptor = open_for_appending(beside)  # holds the lock of the file that takes the place of the other
                with path.open("rb") as file:
                    for line in file:
                        record = self._record(line, 0)
                        if record is not None and record.get("example_id") in example_ids:
                            dropped += 1
                        else:
                            write_whole(descriptor, line)
                os.fsync(descriptor)
                beside.replace(path)
            except OSError as error:
                if descriptor >= 0:
                    os.close(descriptor)
                beside.unlink(missing_ok=True)
                raise store_error(f"can not rewrite {path}", error) from error
            os.close(self._results)
            self._results, self._size = descriptor, os.fstat(descriptor).st_size
        return dropped

    def write_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace `metadata.json` atomically: a reader sees the old or the new one, never a mixture."""
        # Written every second or so, on the event loop: waiting for the disk each time would stall the rollouts.
        self._check_open()
        _replace(self._home / METADATA, to_json(metadata, indent=True) + b"\n", flush=False)

    def write_config(self, config: EvalConfig) -> None:
        """Save the resolved configuration as a file that `vf-eval` plays again."""
        _replace(self._home / CONFIG, config_file(config).encode())

    def write_summary(self, statistics: RunStatistics) -> None:
        """Save the figures of the run."""
        self._check_open()
        summary = {"schema_version": SCHEMA_VERSION, **statistics.summary().to_dict()}
        _replace(self._home / SUMMARY, to_json(summary, indent=True) + b"\n")

    def close(self) -> None:
        """Push everything to the disk itself and let go of the run. Closing twice is fine."""
        with self._lock:
            if self._results < 0:
                return
            descriptor, self._results = self._results, -1
            try:
                os.fsync(descriptor)
            except OSError as error:
                raise store_error(f"can not flush {self.path / RESULTS}", error) from error
            finally:
                os.close(descriptor)

    def __del__(self) -> None:
        # A store that an error left open would hold its lock for as long as the process lives.
        if getattr(self, "_results", -1) >= 0:
            os.close(self._results)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_OPEN: weakref.WeakSet[RunStore] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """In a forked child: neither hold the lock, which would outlive a parent that is killed, nor write."""
    for store in list(_OPEN):
        if store._results >= 0:
            os.close(store._results)
            store._results = -1


os.register_at_fork(after_in_child=_leave_to_parent)


def config_file(config: EvalConfig) -> str:
    """`config.toml`: one `[[eval]]` entry with every setting and, as a comment, where its value came from.

    What belongs to one call only (resuming, forcing, paths of this run) is left out, and so are headers, which may be
    secrets. An endpoint of the registry is written as its first replica, so that the file stands alone.
    """
    once = {"resume_path", "run_path", "force", "verbose", "hub_wheels"}
    settings = config.model_dump(
        exclude={"env_id", "env_args", "client_config", "endpoint_id", "origins", *once}
    )
    entry = {"id": config.env_id, "args": config.env_args, **settings}
    if config.model_is_embedded:
        entry["model"] = config.endpoint_id
    else:
        client = config.client_config
        entry |= {"api_base_url": client.api_base_url, "api_key_var": client.api_key_var}
        entry["api_client_type"] = client.client_type
    table = {key: value for key, value in entry.items() if value not in (None, "", {}, [])}
    return "[[eval]]\n" + to_toml(table, config.origins)


def _replace(path: Path, content: bytes, *, flush: bool = True) -> None:
    """Write beside `path`, then rename. The lock on the results makes this the only writer."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            if flush:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise store_error(f"can not save {path}", error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
