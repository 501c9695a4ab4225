"""`SandboxClient`: sandboxes by their id, with the methods that published environments call on `self.sandbox_client`.

    client = SandboxClient()                        # over the default provider
    record = await client.create(CreateSandboxRequest(name="demo"))
    result = await client.execute_command(record.id, "echo hi", timeout=10)
    await client.delete(record.id)

`create` returns at once: the sandbox starts meanwhile, and every other method waits for it. A command that runs out of
its time raises `CommandTimeoutError`; everything that is not the command's doing is a `SandboxError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import uuid
import weakref
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from verifiers.errors import CommandTimeoutError, SandboxError
from verifiers.loops import done_in
from verifiers.sandboxes.default import default_provider
from verifiers.sandboxes.lease import Lease, Setup
from verifiers.sandboxes.request import CreateSandboxRequest
from verifiers.sandboxes.results import ExecResult
from verifiers.sandboxes.sandbox import Provider, Sandbox
from verifiers.sandboxes.spec import Isolation, SandboxSpec, command as as_command

COMMAND_SECONDS = 300.0
"""Time of a command for which none is given, as v0's client has it."""
ID_LABEL = "sandbox_id"
"""The label by which a provider's list shows the id that the environment knows a sandbox by."""
SIGNAL_BASE = 128
"""A shell's exit code of a program that a signal ended is this and the signal's number."""


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """A sandbox as `create` and `get` show it. status: PENDING, RUNNING or ERROR."""

    id: str
    name: str
    status: str
    docker_image: str | None = None


@dataclass(frozen=True, slots=True)
class CommandResponse:
    """How a command ended; `result` is everything known of it."""

    stdout: str
    stderr: str
    exit_code: int
    result: ExecResult | None = None


@dataclass(frozen=True, slots=True)
class BackgroundJob:
    """A command that goes on by itself."""

    job_id: str
    sandbox_id: str


@dataclass(frozen=True, slots=True)
class BackgroundJobStatus:
    """How far it is: exit_code, stdout and stderr once it is completed."""

    job_id: str
    completed: bool
    exit_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class _Held:
    """A sandbox of a client, from the moment it was asked for."""

    def __init__(self, sandbox_id: str, name: str, lease: Lease) -> None:
        self.id = sandbox_id
        self.name = name
        self.lease = lease
        self.failure: SandboxError | None = None
        self.loop = asyncio.get_running_loop()
        self.jobs: dict[str, asyncio.Task[ExecResult]] = {}

    @contextlib.asynccontextmanager
    async def used(self) -> AsyncIterator[Sandbox]:
        """The sandbox, for one request."""
        sandbox = await self.lease.sandbox()
        try:
            yield sandbox
        except SandboxError as error:
            self.failure = error
            raise

    async def close(self) -> None:
        """Delete it, from any loop. One whose own loop has ended goes with its provider, which belongs to that."""
        if self.loop is asyncio.get_running_loop():
            await self._close()
        elif self.loop.is_running():
            await done_in(self.loop, self._close())

    async def _close(self) -> None:
        for waiting in self.jobs.values():
            waiting.cancel()
        await self.lease.release()


def _look_at(job: asyncio.Task[ExecResult]) -> None:
    """Nobody has to ask how a job ended."""
    if not job.cancelled():
        job.exception()


class SandboxClient:
    """Sandboxes by their id. Methods raise `SandboxError` for an id that is not (or no longer) one of this client's.

    provider: where they come from; None: the default one of this process.
    Further options are those of v0's pool of threads and connections; there is none here.
    """

    def __init__(self, provider: Provider | None = None, **_options: Any) -> None:
        self._provider = provider
        self._levels: weakref.WeakKeyDictionary[Provider, Isolation] = weakref.WeakKeyDictionary()
        self._held: dict[str, _Held] = {}

    async def create(self, request: Any, *, setup: Setup | None = None) -> SandboxRecord:
        """Ask for a sandbox: a `CreateSandboxRequest`, its fields in a dict, or a `SandboxSpec`. Does not wait for it.

        setup: prepares it before anybody gets it.
        """
        provider = self._provider if self._provider is not None else await default_provider()
        startup = None
        if isinstance(request, SandboxSpec):
            spec = request
        else:
            wanted = CreateSandboxRequest.read(request)
            level = wanted.isolation or await self._level_of(provider)
            spec, startup = wanted.to_spec(level), wanted.startup
        sandbox_id = f"sandbox-{uuid.uuid4().hex[:12]}"
        spec = replace(spec, labels={**spec.labels, ID_LABEL: sandbox_id})
        lease = Lease(provider, spec, setup=_both(startup, setup))
        held = self._held[sandbox_id] = _Held(sandbox_id, spec.labels.get("name", "sandbox"), lease)
        return _record_of(held)

    async def get(self, sandbox_id: str) -> SandboxRecord:
        """How it is."""
        return _record_of(self._find(sandbox_id))

    async def wait_for_creation(self, sandbox_id: str, *_: Any, **__: Any) -> None:
        """Return once it is ready. SandboxError: it could not be created."""
        await self.sandbox(sandbox_id)

    async def sandbox(self, sandbox_id: str) -> Sandbox:
        """The sandbox itself, once it is ready."""
        return await self._find(sandbox_id).lease.sandbox()

    def failure(self, sandbox_id: str) -> SandboxError | None:
        """What the platform last failed to do with it."""
        return self._find(sandbox_id).failure

    def lease(self, sandbox_id: str) -> Lease:
        """Its lease, which knows how long it took and was waited for."""
        return self._find(sandbox_id).lease

    # --- commands --------------------------------------------------------------------------------------------

    async def execute_command(
        self,
        sandbox_id: str,
        command: str,
        working_dir: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **_: Any,
    ) -> CommandResponse:
        """Run a line of the shell to its end. CommandTimeoutError: it took longer than `timeout` seconds (300)."""
        seconds = COMMAND_SECONDS if timeout is None else timeout
        async with self._find(sandbox_id).used() as sandbox:
            result = await sandbox.exec(command, cwd=working_dir, env=env, timeout=seconds)
        if result.timed_out:
            error = _timeout_class()
            raise error(sandbox_id, command, seconds, result.stdout_text, result.stderr_text)
        return CommandResponse(result.stdout_text, result.stderr_text, exit_code_of(result), result)

    async def start_background_job(
        self, sandbox_id: str, command: str, working_dir: str | None = None, env: Mapping[str, str] | None = None
    ) -> BackgroundJob:
        """Start a line of the shell and let it run; it ends with the sandbox at the latest."""
        held = self._find(sandbox_id)
        async with held.used() as sandbox:
            process = await sandbox.start(as_command(command, cwd=working_dir, env=env, timeout=None))
        waiting = held.jobs[process.id] = asyncio.create_task(process.wait())
        waiting.add_done_callback(_look_at)
        return BackgroundJob(process.id, sandbox_id)

    async def get_background_job(self, sandbox_id: str, job: BackgroundJob | str) -> BackgroundJobStatus:
        """Whether it has ended, and how."""
        job_id = job if isinstance(job, str) else job.job_id
        held = self._find(sandbox_id)
        if job_id not in held.jobs:
            raise KeyError(f"sandbox {sandbox_id} has no job {job_id}")
        waiting = held.jobs[job_id]
        if not waiting.done():
            return BackgroundJobStatus(job_id, completed=False)
        result = waiting.result()
        return BackgroundJobStatus(job_id, True, exit_code_of(result), result.stdout_text, result.stderr_text)

    # --- files -----------------------------------------------------------------------------------------------

    async def upload_file(
        self, sandbox_id: str, file_path: str, local_file_path: str | Path, timeout: float | None = None
    ) -> None:
        """Copy a file of this machine to `file_path` in the sandbox; one that can be executed stays so."""
        data, mode = await asyncio.to_thread(_read, Path(local_file_path))
        async with self._find(sandbox_id).used() as sandbox, asyncio.timeout(timeout):
            await sandbox.write(file_path, data, mode=mode)

    async def upload_bytes(
        self,
        sandbox_id: str,
        file_path: str,
        file_bytes: bytes,
        filename: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Write `file_bytes` to `file_path` in the sandbox."""
        async with self._find(sandbox_id).used() as sandbox, asyncio.timeout(timeout):
            await sandbox.write(file_path, file_bytes)

    async def download_file(
        self, sandbox_id: str, file_path: str, local_file_path: str | Path, timeout: float | None = None
    ) -> None:
        """Copy `file_path` of the sandbox to a file of this machine."""
        async with self._find(sandbox_id).used() as sandbox, asyncio.timeout(timeout):
            data = await sandbox.read(file_path)
        await asyncio.to_thread(Path(local_file_path).write_bytes, data)

    # --- the end ---------------------------------------------------------------------------------------------

    async def delete(self, sandbox_id: str) -> None:
        """Delete it; one that is gone is fine."""
        held = self._held.pop(sandbox_id, None)
        if held is not None:
            await held.close()

    async def bulk_delete(self, sandbox_ids: Iterable[str] | None = None, labels: Iterable[str] | None = None) -> None:
        """Delete these, or those that have all these labels."""
        if sandbox_ids is None:
            wanted = set(labels or ())
            sandbox_ids = [held.id for held in self._held.values() if wanted and wanted <= set(held.lease.spec.labels)]
        await asyncio.gather(*(self.delete(sandbox_id) for sandbox_id in list(sandbox_ids)))

    async def close(self) -> None:
        """Delete all that are left."""
        await self.bulk_delete(list(self._held))

    # --- within ----------------------------------------------------------------------------------------------

    async def _level_of(self, provider: Provider) -> Isolation:
        """What a provider isolates by; asked once, since asking a node takes time that every rollout would wait."""
        if provider not in self._levels:
            self._levels[provider] = (await provider.capabilities()).isolation
        return self._levels[provider]

    def _find(self, sandbox_id: str) -> _Held:
        held = self._held.get(sandbox_id)
        if held is None:
            raise SandboxError(f"there is no sandbox {sandbox_id!r}", hint="It was deleted, or is another client's.")
        return held



def _both(startup: str | tuple[str, ...] | None, setup: Setup | None) -> Setup | None:
    """Start this in a new sandbox and let it run, and prepare it."""
    if startup is None:
        return setup

    async def prepare(sandbox: Sandbox) -> None:
        await sandbox.start(as_command(startup, timeout=None))
        if setup is not None:
            await setup(sandbox)

    return prepare


def _timeout_class() -> type[CommandTimeoutError]:
    """`CommandTimeoutError`. Environments that import the upstream vendor's SDK catch its class of that name, and would
    take a command of the model that lasts too long for a broken sandbox."""
    vendor = getattr(sys.modules.get("prime_sandboxes"), "CommandTimeoutError", None)
    if not isinstance(vendor, type):
        return CommandTimeoutError
    return type("CommandTimeoutError", (CommandTimeoutError, vendor), {"__reduce__": _plain})


def _plain(error: CommandTimeoutError) -> tuple[Any, ...]:
    """How one of both classes crosses a process border: as ours."""
    return CommandTimeoutError, (error.sandbox_id, error.command, error.timeout, error.stdout, error.stderr)


def _read(path: Path) -> tuple[bytes, int]:
    return path.read_bytes(), path.stat().st_mode & 0o777


def _record_of(held: _Held) -> SandboxRecord:
    lease = held.lease
    status = "ERROR" if lease.failure is not None else "PENDING" if lease.start_s is None else "RUNNING"
    return SandboxRecord(held.id, held.name, status, lease.spec.image)


def exit_code_of(result: ExecResult) -> int:
    """A number for every end: 128 and the signal's for a program that was killed, as shells have it."""
    return SIGNAL_BASE + (result.signal or 0) if result.exit_code is None else result.exit_code
