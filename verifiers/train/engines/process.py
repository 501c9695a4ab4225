"""`ProcessSampler`: our engine in a process beside this one, so that sampling and training each have a core.

    async with ProcessSampler("models/tiny", max_batch=32, max_context=1024) as sampler:
        completion = await sampler.generate([1, 2, 3], {"max_tokens": 64, "seed": 3})
        await sampler.update_weights(learner.weights(), 1)

The process ends with this one, however this one ends. If it ends by itself it is started again with the latest
weights, at most `max_restarts` times, and is asked again for what it owed; `deaths` counts. After that a call raises
WorkerDiedError with the end of what the process said.

Weights go over as safetensors in a folder: the one they are in, or one in memory (/dev/shm) for tensors of this
process.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, Self, TypeVar

from verifiers.clients.sampler import Completion, EngineInfo
from verifiers.errors import ConfigError, EndpointUnavailableError, Error, WorkerDiedError
from verifiers.train.engines.http import HttpSampler
from verifiers.train.learner import Weights
from verifiers.train.weights import in_use, is_adapter, write_tensors
from verifiers.types import SamplingArgs

T = TypeVar("T")

START_S = 300.0
STOP_S = 5.0
SAID = 4000
"""Characters of what the process said last that an error repeats."""
MEMORY = Path("/dev/shm")  # noqa: S108 - the system's place for files in memory
PREFIX = "verifiers-weights-"


class ProcessSampler:
    """A `verifiers.clients.sampler.Sampler`; a context manager. Used from one event loop.

    model: a folder, a name or a GGUF file, as `model.path`. version: of the policy that it is. threads: of torch in
    the process. The others are those of `verifiers.train.engines.torch_engine.TorchEngine`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        max_batch: int = 64,
        max_context: int = 4096,
        dtype: str = "auto",
        device: str = "auto",
        version: int = 0,
        seed: int = 0,
        threads: int = 1,
        deterministic: bool = False,
        record_routes: bool = False,
        recompute_cache: bool = False,
        max_restarts: int = 3,
    ) -> None:
        values = {"max-batch": max_batch, "max-context": max_context, "dtype": dtype, "device": device}
        values |= {"version": version, "seed": seed, "threads": threads}
        switches = {"deterministic": deterministic, "record-routes": record_routes, "recompute-cache": recompute_cache}
        self._arguments = [
            str(model),
            "--lifeline",
            *(f"--{name}={value}" for name, value in values.items()),
            *(f"--{name}" for name, value in switches.items() if value),
        ]
        self._threads = threads
        self._max_restarts = max_restarts
        self.deaths = 0
        """How often the process ended by itself."""
        self._child: _Child | None = None
        self._sampler: HttpSampler | None = None
        self._latest: tuple[Weights, int] | None = None
        self._held = ExitStack()
        """Keeps the folder of the latest weights, for a process that has to be started again."""
        self._paused = False
        self._starting = asyncio.Lock()

    @property
    def url(self) -> str:
        """The root of its server, for clients of other processes; "" before the start. A restart changes it."""
        return "" if self._child is None else self._child.url

    @property
    def pid(self) -> int | None:
        """The id of the process, None while it does not run."""
        return None if self._child is None or self._child.ended else self._child.process.pid

    async def start(self) -> Self:
        """Start the process and wait until it answers. ConfigError, WorkerDiedError if it does not come up."""
        _sweep()
        await self._start()
        return self

    async def close(self) -> None:
        """End the process; what it is asked for ends with an error."""
        async with self._starting:  # one that is just being started would stay
            sampler, self._sampler = self._sampler, None
            if sampler is not None:
                await sampler.close()
            if self._child is not None:
                await asyncio.to_thread(self._child.stop)
            self._held.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- the protocol -----------------------------------------------------------------------------------------

    async def generate(self, token_ids: list[int], params: SamplingArgs) -> Completion:
        """Continue `token_ids`."""
        return await self._ask(lambda sampler: sampler.generate(token_ids, params))

    async def score(self, token_ids: list[int]) -> list[float]:
        """The logprob of each token given those before it, at temperature 1; the first is 0."""
        return await self._ask(lambda sampler: sampler.score(token_ids))

    async def pause(self) -> None:
        """Stand still between two tokens."""
        self._paused = True
        await self._ask(lambda sampler: sampler.pause())

    async def resume(self) -> None:
        """Go on after `pause`."""
        self._paused = False
        await self._ask(lambda sampler: sampler.resume())

    async def update_weights(self, source: Weights | Mapping[str, Any] | Path | str, version: int) -> None:
        """Load weights between two tokens and name them `version`."""
        held = ExitStack()
        try:
            weights = await asyncio.to_thread(_in_folder, source, version, held)
            await self._ask(lambda sampler: sampler.update_weights(weights, version))
        except BaseException:
            held.close()
            raise
        self._held.close()
        self._held, self._latest = held, (weights, version)

    def info(self) -> EngineInfo:
        """Name, vocabulary, context in tokens, present policy version."""
        if self._sampler is None:
            raise ConfigError("the sampler has not been started", hint="Use it as a context, or call start().")
        return self._sampler.info()

    # --- the process ------------------------------------------------------------------------------------------

    async def restart(self) -> None:
        """End the process if it runs, and start another with the latest weights."""
        async with self._starting:
            await self._start()

    async def _ask(self, call: Callable[[HttpSampler], Awaitable[T]]) -> T:
        while True:
            sampler, child = self._sampler, self._child
            if sampler is None or child is None:
                raise WorkerDiedError("the engine's process is closed", hint="Make another sampler.")
            try:
                return await call(sampler)
            except EndpointUnavailableError as error:
                if not await asyncio.to_thread(child.has_ended) or self._sampler is None:
                    raise
                await self._replace(child, error)

    async def _replace(self, child: _Child, error: Error) -> None:
        """Another process in place of one that has ended; the first of those that notice starts it."""
        async with self._starting:
            if self._child is not child or self._sampler is None:
                return
            self.deaths += 1
            if self.deaths > self._max_restarts:
                raise child.death() from error
            await self._start()

    async def _start(self) -> None:
        if self._sampler is not None:
            await self._sampler.close()
        if self._child is not None:
            await asyncio.to_thread(self._child.stop)
        child = _Child(self._arguments, self._threads)
        try:
            await asyncio.to_thread(child.await_start)
            sampler = await HttpSampler([child.url], owned=True).connect()
            if self._latest is not None:
                await sampler.update_weights(*self._latest)
            if self._paused:
                await sampler.pause()
        except BaseException:  # whatever happened, cancellation included, no process stays behind
            child.stop()
            raise
        self._child, self._sampler = child, sampler


class _Child:
    """One process of `verifiers.train.engines.serve`. Its methods block."""

    def __init__(self, arguments: list[str], threads: int) -> None:
        count = str(threads)
        self.url = ""
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - without a name, open until `stop`
        self._said = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "verifiers.train.engines.serve", *arguments],
            stdin=subprocess.PIPE,  # the life line: closed by the system when this process ends
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C reaches this process only
            env={**os.environ, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "TOKENIZERS_PARALLELISM": "false"},
        )

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.process.poll() is not None

    def await_start(self) -> None:
        """Wait for its first line. ConfigError with what it complains of, WorkerDiedError if it ended without."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], START_S)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            raise self.death("it did not come up")
        answer = json.loads(line)
        if "error" in answer:
            raise ConfigError(answer["error"], hint=answer.get("hint"))
        self.url = answer["url"]

    def has_ended(self) -> bool:
        """Whether it has ended, or does so within a moment: connections break a little before a process is gone."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)
        return self.ended

    def stop(self) -> None:
        """End it."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._said = self._last_words()
        self._log.close()

    def _last_words(self) -> str:
        if self._log.closed:
            return self._said
        self._log.seek(0)
        return self._log.read().decode("utf-8", "replace")[-SAID:]

    def death(self, what: str = "") -> WorkerDiedError:
        """The error for its end, with what it said last; also after `stop`."""
        said = self._last_words()
        code = self.process.poll()
        how = f"by signal {-code}" if code is not None and code < 0 else f"with {code}"
        last = said.strip().rpartition("\n")[2]
        return WorkerDiedError(
            f"the engine's process ended {how}{f': {what}' if what else ''}{f' ({last})' if last else ''}",
            hint="See what it said last; too little memory is the usual cause: lower sampler.max_batch or max_context.",
            said=said,
        )


# --- weights in memory ----------------------------------------------------------------------------------------


def _in_folder(source: Weights | Mapping[str, Any] | Path | str, version: int, held: ExitStack) -> Weights:
    """The weights in a folder, which stays until `held` is closed."""
    if isinstance(source, str | Path):
        source = Weights(version, folder=Path(source), adapter=is_adapter(Path(source)))
    if isinstance(source, Mapping):
        source = Weights(version, tensors=dict(source))
    if source.folder is not None:
        held.enter_context(in_use(source.folder))
        return source
    if source.adapter:
        raise ConfigError(
            "an adapter came as tensors alone, and nothing says how to apply them",
            hint="Publish it as a folder (verifiers.train.weights).",
        )
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=MEMORY if MEMORY.is_dir() else None))
    held.callback(shutil.rmtree, folder, ignore_errors=True)
    write_tensors(folder, source.tensors or {})
    return Weights(version, folder=folder)


def _sweep() -> None:
    """Delete what killed processes left in memory."""
    for folder in MEMORY.glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)
