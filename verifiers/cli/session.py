"""One call of `vf-eval`: check before anything is spent, start the embedded model, play run after run, answer Ctrl-C.

The first Ctrl-C (SIGTERM, or SIGHUP when the terminal is closed) stops new work and cancels what is in flight, so that
cleanup hooks run; everything sealed is saved, and the command that continues is printed. The second ends the process
at once.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verifiers.cli import progress as progress_backends
from verifiers.cli.interrupts import interruptible
from verifiers.cli.output import Output, log_file
from verifiers.cli.results import Finished, overview, report
from verifiers.clients.client import as_client, probe
from verifiers.clients.embedded import EmbeddedServer
from verifiers.errors import (
    AuthenticationError,
    ConfigError,
    EndpointUnavailableError,
    Error,
    ExitCode,
    MissingKeyError,
    ModelError,
    ModelNotFoundError,
    UserError,
)
from verifiers.evals.config import Evaluation
from verifiers.evals.connection import EMBEDDED, check_keys
from verifiers.evals.resume import latest_incomplete
from verifiers.evals.run import RunCallbacks, RunPlan, run_evaluation
from verifiers.evals.store import CONFIG, LOG, runs_directory
from verifiers.loops import run_to_end
from verifiers.settings import near_misses

if TYPE_CHECKING:
    from verifiers.cli.eval import EvalFlags
    from verifiers.evals.statistics import Counts
    from verifiers.types.config import EvalConfig

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.25
HEARTBEAT_SECONDS = 30.0
EMBEDDED_SLOTS = 4
FOLDER_SLOTS = 32
"""Our own engine decodes many sequences for little more than one."""


def dry_run(evaluations: Sequence[Evaluation], output: Output) -> ExitCode:
    """Print every setting with its origin."""
    for number, evaluation in enumerate(evaluations):
        settings = _settings(evaluation.config)
        origins = evaluation.config.origins
        output.event({"event": "plan", "settings": settings, "origins": origins})
        output.result(("\n" if number else "") + evaluation.environment.described)
        rows = [[name, _shown(value), origins.get(name, "default")] for name, value in settings.items()]
        output.table(["setting", "value", "origin"], rows)
        for notice in evaluation.notices:
            output.note(notice)
    return ExitCode.OK


def _settings(config: EvalConfig) -> dict[str, Any]:
    once = {"client_config", "origins", "resume_path", "run_path", "force", "hub_wheels"}
    settings = config.model_dump(exclude=once)
    if not config.model_is_embedded:
        client = config.client_config
        replicas = [replica.api_base_url for replica in client.expanded()]
        settings |= {"api_base_url": ", ".join(replicas), "api_key_var": client.api_key_var}
        settings |= {"api_client_type": client.client_type, "headers": sorted(client.extra_headers)}
    return settings


def _shown(value: Any) -> str:
    from verifiers.evals.encoding import to_json

    return (
        "–"
        if value is None or value in ("", {}, [])
        else value
        if isinstance(value, str)
        else to_json(value).decode()
    )


def evaluate(
    evaluations: Sequence[Evaluation], flags: EvalFlags, arguments: Sequence[str], output: Output
) -> ExitCode:
    """Play them one after the other. Returns the exit code; errors that end the command come out."""
    session = Session(flags, arguments, output)
    with ExitStack() as stack:
        if output.json:
            # Environments may print; stdout belongs to the events.
            stack.enter_context(redirect_stdout(sys.stderr))
        return run_to_end(session.play(evaluations))


class Session:
    """State of one call: what was finished, what failed, and whether Ctrl-C was pressed."""

    def __init__(self, flags: EvalFlags, arguments: Sequence[str], output: Output) -> None:
        self.flags = flags
        self.arguments = arguments
        self.output = output
        self.progress = progress_backends.choose(
            output, plain=bool(flags.disable_tui), fullscreen=bool(flags.fullscreen)
        )
        self.finished: list[Finished] = []
        self.failed: list[Error] = []
        self.stopped = False
        self.several = False
        self.served: list[str] | None = None
        self._servers: dict[str, EmbeddedServer] = {}

    async def play(self, evaluations: Sequence[Evaluation]) -> ExitCode:
        """Check all, then play all."""
        self.several = len(evaluations) > 1
        for evaluation in evaluations:
            for notice in evaluation.notices:
                self.output.note(notice)
            check_before_spending(evaluation.config)
        with ExitStack() as servers, interruptible(self.output) as interrupt:
            background = [asyncio.create_task(self._tick())]
            if self.flags.heartbeat_url:
                background.append(asyncio.create_task(_heartbeat(self.flags.heartbeat_url)))
            try:
                for evaluation in evaluations:
                    await self._play_one(evaluation, servers)
            except asyncio.CancelledError:
                if not interrupt.pressed:
                    raise
                return ExitCode.INTERRUPTED
            finally:
                for task in background:
                    task.cancel()
                self.progress.close()
        if self.several:
            overview(self.finished, self.output)
        code = self._exit_code()
        return max(code, self._exported()) if self.finished else code

    def _exported(self) -> ExitCode:
        if self.flags.export_sft is None:
            return ExitCode.OK
        from verifiers.cli.export import export

        return export([run.plan.path for run in self.finished if run.plan.path is not None], self.flags, self.output)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.progress.tick()

    def _exit_code(self) -> ExitCode:
        if self.failed and not self.finished:
            return self.failed[0].exit_code
        if self.failed or self.stopped:
            return ExitCode.PARTIAL
        return exit_code_of([run.plan.statistics.counts for run in self.finished])

    # --- one evaluation ---------------------------------------------------------------------------------------

    async def _play_one(self, evaluation: Evaluation, servers: ExitStack) -> None:
        began = time.monotonic()
        plans: list[RunPlan] = []
        variant = f" with {evaluation.variant}" if evaluation.variant else ""
        self.output.note(f"{evaluation.environment.described}{variant}")
        with ExitStack() as log:

            def on_start(plan: RunPlan) -> None:
                plans.append(plan)
                if plan.path is not None:
                    log.enter_context(log_file(plan.path / LOG))
                logger.info("%s", progress_backends.started(plan))
                if (asked := evaluation.config.num_examples) > plan.tasks:
                    self.output.note(f"{asked} tasks were asked for, and there are {plan.tasks}")
                self.progress.start(plan)

            try:
                config = self._resumed(evaluation, await self._connected(evaluation, servers))
                summary = await run_evaluation(config, RunCallbacks(on_start, self._on_rollout, self.output.note))
            except asyncio.CancelledError:
                self.progress.close()
                self._tell_interrupted(plans, time.monotonic() - began)
                raise
            except Error as error:
                self.progress.close()
                self._tell_failed(plans, time.monotonic() - began, error)
                return
            logger.info("finished: %s", plans[0].statistics.counts)
        self.progress.close()
        seconds = time.monotonic() - began
        report(plans[0], seconds, self.output, short=bool(self.flags.abbreviated_summary))
        self.finished.append(Finished(plans[0], seconds, evaluation.variant))
        self.stopped = self.stopped or summary.stopped_by is not None
        self._hints(plans[0])

    def _on_rollout(self, record: Mapping[str, Any]) -> None:
        error = record.get("error")
        if isinstance(error, Mapping):
            place = f"task {record.get('example_id')}, rollout {record.get('rollout_index')}"
            logger.info("%s %s: %s", place, record.get("outcome"), error.get("error_chain_repr"))
        self.progress.add(record)

    async def _connected(self, evaluation: Evaluation, servers: ExitStack) -> EvalConfig:
        """The configuration with an endpoint that answers; its model is filled in if none was named."""
        config = evaluation.config
        if config.model_is_embedded:
            server = await self._embedded(config, servers)
            dialect = {"client_type": config.client_config.client_type}
            client = server.client_config().model_copy(update=dialect)
            return config.model_copy(update={"model": server.model, "client_config": client})
        served = self.served = await self._served(config)
        if not evaluation.ask_model:
            return config
        if served is None or len(served) != 1:
            listed = f"it serves {', '.join(served)}" if served else "it does not say what it serves"
            raise ConfigError(f"no model was named, and {listed}", hint="Name the model: -m MODEL")
        self.output.note(f"no model was named: the endpoint serves {served[0]}")
        return config.model_copy(update={"model": served[0]})

    async def _served(self, config: EvalConfig) -> list[str] | None:
        """The models that the endpoint lists. An endpoint that is down or refuses the key ends the command here."""
        try:
            return await probe(config.client_config)
        except EndpointUnavailableError:
            raise
        except AuthenticationError as error:
            if "answered 401" in str(error):
                raise
            self.output.note(f"{error}; its list of models is not needed, so the run starts")
        except ModelError as error:
            self.output.note(f"the endpoint does not list its models: {error}")
        return None

    async def _embedded(self, config: EvalConfig, servers: ExitStack) -> EmbeddedServer:
        name = config.endpoint_id or EMBEDDED
        if name not in self._servers:
            path = name.partition(":")[2] or None
            server = EmbeddedServer(path, slots=_slots(path, config.max_concurrent), progress=_fetching(self.output))
            await asyncio.to_thread(server.start)
            servers.callback(server.stop)
            self._servers[name] = server
        return self._servers[name]

    def _resumed(self, evaluation: Evaluation, config: EvalConfig) -> EvalConfig:
        if evaluation.resume is False:
            return config
        config = config.model_copy(update={"force": bool(self.flags.force)})
        if isinstance(evaluation.resume, str):
            path: Path | None = Path(evaluation.resume)
        else:
            folder = runs_directory(
                config.env_id,
                config.name,
                config.model,
                env_dir=config.env_dir_path,
                output_dir=config.output_dir,
            )
            path = latest_incomplete(folder, config)
            if path is None:
                self.output.note(f"no unfinished run in {folder}: a new one is started")
                return config
        return config.model_copy(update={"resume_path": str(path)})

    # --- what is said at the end ------------------------------------------------------------------------------

    def _tell_interrupted(self, plans: list[RunPlan], seconds: float) -> None:
        if not plans:
            self.output.note("interrupted before the first rollout: nothing was saved")
            return
        plan = plans[0]
        report(plan, seconds, self.output, short=True)
        done = plan.statistics.counts.total
        if plan.path is None:
            self.output.note(
                f"interrupted after {done} of {plan.rollouts} rollouts; with --no-save they are gone"
            )
            return
        self.output.note(f"interrupted: {done} of {plan.rollouts} rollouts are saved in {plan.path}")
        self.output.hint(f"continue with: {self._resume_command(plan.path)}")

    def _tell_failed(self, plans: list[RunPlan], seconds: float, error: Error) -> None:
        """Print what was saved. Errors that the other evaluations need not share are noted; others end the command."""
        if plans and plans[0].statistics.counts.total:
            report(plans[0], seconds, self.output, short=True)
            if plans[0].path is not None:
                self.output.hint(
                    f"what was played is saved; continue with: {self._resume_command(plans[0].path)}"
                )
        if isinstance(error, ModelNotFoundError) and self.served:
            near = near_misses(str(plans[0].model) if plans else "", self.served)
            error.hint = f"{near} The endpoint serves: {', '.join(self.served[:12])}".strip()
        if not self.several or not isinstance(error, UserError):
            raise error
        self.output.error(error)
        self.failed.append(error)

    def _hints(self, plan: RunPlan) -> None:
        if self.flags.abbreviated_summary or plan.path is None:
            return
        counts = plan.statistics.counts
        if counts.failed or counts.unscored:
            self.output.hint(f"every error with its traceback: {plan.path / LOG}")
        if counts.total < plan.rollouts:  # a limit of the run was reached, which the command has to raise
            self.output.hint(f"go on, with a higher --run-limit: {self._resume_command(plan.path)}")
            return
        if counts.unscored:  # the replies are there: nobody has to pay for them twice
            again = shlex.join(["vf-eval", "--rescore", str(plan.path)])
            self.output.hint(f"once its scoring is mended, score it again without playing: {again}")
            return
        self.output.hint(f"play it again: vf-eval {shlex.quote(str(plan.path / CONFIG))}")

    def _resume_command(self, path: Path) -> str:
        if self.several:
            return shlex.join(["vf-eval", str(path / CONFIG), "--resume", str(path)])
        return shlex.join(["vf-eval", *without_resume(self.arguments), "--resume", str(path)])


def exit_code_of(counts: Sequence[Counts]) -> ExitCode:
    """What a command returns for rollouts that ended so."""
    lost = sum(count.failed + count.unscored for count in counts)
    scored = sum(count.ok + count.truncated for count in counts)
    if lost and scored:
        return ExitCode.PARTIAL
    return ExitCode.FAILED if lost else ExitCode.OK


# --- around the runs ------------------------------------------------------------------------------------------


def check_before_spending(config: EvalConfig) -> None:
    """Keys and tokens that are needed later, before anything is played."""
    check_keys(config)
    as_client(config.client_config)  # refuses a dialect that there is no client for
    if not config.save_to_hf_hub:
        return
    if not config.save_results:
        raise ConfigError(
            "--save-to-hf-hub uploads the saved run, and --no-save saves none", hint="Give one of them."
        )
    from huggingface_hub import get_token  # comes with datasets

    if get_token() is None:
        raise MissingKeyError(
            "HF_TOKEN",
            hint="export HF_TOKEN=…, log in with `hf auth login`, or leave out --save-to-hf-hub (-H).",
        )


def without_resume(arguments: Sequence[str]) -> list[str]:
    """A command line without --resume and its path."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if argument in ("--resume", "-R"):
            skip = True
        elif skip and not argument.startswith("-"):
            skip = False
        elif not argument.startswith("--resume="):
            skip = False
            kept.append(argument)
    return kept


def _slots(path: str | None, max_concurrent: int) -> int:
    """Requests that the model of this process answers at once."""
    most = FOLDER_SLOTS if path is not None and Path(path).is_dir() else EMBEDDED_SLOTS
    return min(most, max_concurrent) if max_concurrent > 0 else most


def _fetching(output: Output) -> Callable[[int, int], None]:
    """Tell at the start and at each further quarter that the embedded model's file is being fetched."""
    told = -1

    def progress(done: int, total: int) -> None:
        nonlocal told
        quarter = 4 * done // total if total else 0
        if quarter > told:
            told = quarter
            output.note(f"fetching the embedded model, once: {done / 1e6:.0f} of {total / 1e6:.0f} MB")

    return progress


async def _heartbeat(url: str) -> None:
    """Request the URL every 30 s, so that a monitor sees the command live. Its failures are not ours."""
    import aiohttp

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        while True:
            with suppress(aiohttp.ClientError, TimeoutError):
                async with session.get(url):
                    pass
            await asyncio.sleep(HEARTBEAT_SECONDS)
