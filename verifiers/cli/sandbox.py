"""`vf-sandbox`: what this machine can do about sandboxes, a command in a fresh one, and those that are there.

The probing is `verifiers.sandboxes.local.probe`'s, the sweep `owners`'. This file says what the flags are and shows
what was found.
"""

from __future__ import annotations

import asyncio
import difflib
import inspect
import os
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from verifiers.cli.frame import package_version, parsed, start
from verifiers.cli.output import Output, run_command, styled
from verifiers.errors import ConfigError, Error, ExitCode
from verifiers.loops import run_to_end

if TYPE_CHECKING:
    from verifiers.sandboxes.local.owners import Owner
    from verifiers.sandboxes.results import Capabilities, ExecResult
    from verifiers.sandboxes.sandbox import Process
    from verifiers.sandboxes.spec import SandboxSpec

Level = Literal["none", "landlock", "namespace"]
TIMED_OUT = 124
"""The exit code for a command that was out of time, timeout(1)'s."""
EXECS = 5
BEHIND = 16 << 20
"""Bytes of output that may wait to be printed."""
MARKS = {True: "✓", False: "✗", None: "!"}

app = App(
    name="vf-sandbox",
    suppress_keyboard_interrupt=False,  # run_command answers for it
    help=(
        "Sandboxes of this machine: what works and how to get the rest, and one command in a fresh sandbox.\n\n"
        "  vf-sandbox doctor\n"
        "  vf-sandbox run --memory 256 --timeout 10 -- python3 -c 'print(1)'\n"
        "  vf-sandbox run 'ls | wc -l'      one word is a line for the shell"
    ),
    help_format="plaintext",
    version_format="plaintext",
    usage="Usage: vf-sandbox COMMAND [OPTIONS]",
    version=package_version,
    version_flags=["--version"],
    result_action="return_value",
    default_parameter=Parameter(negative="", show_default=lambda value: value or None),
)
Json = Annotated[bool, Parameter(help="One JSON object a line on stdout.")]
Verbose = Annotated[bool, Parameter(alias="-v", help="Show tracebacks.")]
Isolation = Annotated[Level, Parameter(help="Level of isolation.")]


# --- doctor ---------------------------------------------------------------------------------------------------------


@app.command
def doctor(*, isolation: Isolation = "namespace", json: Json = False, verbose: Verbose = False) -> int:
    """Try what sandboxes need here, and say how to get what is missing; exit code 1 if the level cannot be given."""
    from verifiers.sandboxes.local import probe

    output = Output(json=json, verbose=verbose)
    checks = probe.checks()
    needed = {check.name for check in probe.failed(isolation)}
    best = probe.best()
    speed: dict[str, float] = {}
    limits: list[str] = []
    trouble: Error | None = None
    if not needed:
        try:
            speed, found = run_to_end(_measured(isolation))
            limits = _limits(found)
        except Error as error:
            trouble = error
    rows = [[check.name, MARKS[check.ok or (False if check.name in needed else None)], check.found] for check in checks]
    output.table(["what", "", "found"], rows)
    for check in checks:
        output.event({"event": "check", "name": check.name, "ok": check.ok, "found": check.found, "fix": check.fix})
        if not check.ok and check.fix:
            output.result(f"\n{check.name}: {check.fix}")
    if trouble is not None:
        output.error(trouble)
    if limits:
        output.result("\n" + "\n".join(limits))
    passed = not needed and trouble is None
    times = f"; first output after {speed['start_ms']:.1f} ms, a command {speed['exec_ms']:.2f} ms" if speed else ""
    refused = f"level {isolation} does not work here; {best} does{_chosen(best)}"
    verdict = f"level {isolation} works{times}" if passed else refused
    output.result("\n" + styled(verdict, "ok" if passed else "error", sys.stdout))
    summary = {"event": "summary", "schema_version": 1, "isolation": isolation, "passed": passed, "best": best, **speed}
    output.event(summary)
    return ExitCode.OK if passed else ExitCode.FAILED


LIMITS = {"cpu": " core", "memory": " MiB", "disk": " MiB", "pids": "", "inodes": "", "lifetime": " s"}
"""What is limited → its unit."""


def _limits(found: Capabilities) -> list[str]:
    """Which limits are kept here, what they are unless something else is asked for, and which are weaker."""
    from verifiers.sandboxes.spec import SandboxSpec

    usual = SandboxSpec()
    kept = [f"{name} {getattr(usual, name):g}{unit}" for name, unit in LIMITS.items() if name in found.limits]
    absent = [f"not limited here: {name}" for name in LIMITS if name not in found.limits]
    weaker = [f"{name}: {how}" for name, how in sorted(found.weak.items())]
    return [f"limits of a sandbox, unless others are asked for: {', '.join(kept)}", *absent, *weaker]


def _chosen(level: Level) -> str:
    return f" (VF_SANDBOX_LEVEL={level}, or --isolation {level})" if level != "none" else ""


async def _measured(isolation: Level) -> tuple[dict[str, float], Capabilities]:
    """Milliseconds of a start up to the first output, and of a small command afterwards; and what can be done here."""
    from verifiers.sandboxes.local.provider import LocalProvider

    async with LocalProvider(level=isolation) as provider:
        found = await provider.capabilities()
        before = time.perf_counter()
        sandbox = await provider.create(_spec(isolation))
        await sandbox.exec("echo ready")
        started = time.perf_counter() - before
        times = []
        for _ in range(EXECS):
            before = time.perf_counter()
            await sandbox.exec(["true"])
            times.append(time.perf_counter() - before)
    return {"start_ms": round(started * 1e3, 2), "exec_ms": round(statistics.median(times) * 1e3, 2)}, found


def _spec(isolation: Level, **fields: Any) -> SandboxSpec:
    from verifiers.sandboxes.spec import SandboxSpec

    network = "open" if isolation == "none" else "none"
    return SandboxSpec(**{"isolation": isolation, "network": network, "lifetime": None, **fields})


# --- run -----------------------------------------------------------------------------------------------------------


@app.command(name="run")
def run_one(
    *command: Annotated[str, Parameter(allow_leading_hyphen=True, help="A program and its arguments, after `--`.")],
    isolation: Isolation = "namespace",
    timeout: Annotated[float | None, Parameter(help="Seconds after which it is killed.")] = None,
    memory: Annotated[int, Parameter(help="MiB.")] = 1024,
    network: Annotated[Literal["none", "open"] | None, Parameter(help="Whether it reaches other machines.")] = None,
    image: Annotated[str, Parameter(help="`host`, or a directory with a root file system.")] = "host",
    file: Annotated[
        list[str] | None,
        Parameter(help="Copy a file or folder in: SOURCE, or SOURCE:TARGET; repeatable.", negative_iterable=""),
    ] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> int:
    """Run one command in a fresh sandbox; its input, output and exit code are the command's (124: out of time)."""
    if not command:
        raise ConfigError("no command was given", hint="As in: vf-sandbox run -- python3 -c 'print(1)'")
    if command[0].startswith("-"):
        raise _unknown_option(command[0])
    fields: dict[str, Any] = {"memory": memory, "image": image} | ({"network": network} if network else {})
    output = Output(json=json, verbose=verbose)
    return run_to_end(_run_one(command, _spec(isolation, **fields), timeout, _sources(file or []), output))


def _unknown_option(word: str) -> ConfigError:
    """The error for an option before the command: no program's name begins with a dash."""
    options = [f"--{name}" for name in inspect.signature(run_one).parameters if name != "command"]
    name = word.partition("=")[0]
    near = [option for option in options if option.startswith(name)] or difflib.get_close_matches(name, options, n=1)
    meant = f"Did you mean {near[0]}?" if near else "vf-sandbox run --help lists the options."
    return ConfigError(f"unknown option {name}", hint=meant)


def _sources(pairs: list[str]) -> list[tuple[Path, str]]:
    """What is to be copied, and to where."""
    found = []
    for pair in pairs:
        source, _, target = pair.partition(":")
        if not Path(source).exists():
            hint = "As in: --file SOURCE, or --file SOURCE:TARGET"
            raise ConfigError(f"there is no file {source!r} to copy", hint=hint)
        found.append((Path(source), target or Path(source).name))
    return found


async def _run_one(
    words: tuple[str, ...],
    spec: SandboxSpec,
    timeout: float | None,
    files: list[tuple[Path, str]],
    output: Output,
) -> int:
    from verifiers.sandboxes.local.provider import LocalProvider
    from verifiers.sandboxes.spec import command

    async with LocalProvider(level=spec.isolation) as provider:
        sandbox = await provider.create(spec)
        for source, target in files:
            await sandbox.upload(source, target)
        line = words[0] if len(words) == 1 else words
        quiet = sys.stdin is None or sys.stdin.isatty()
        stream: dict[str, Any] = {"keep": "last", "max_output": BEHIND, "output_limit": None}
        process = await sandbox.start(command(line, timeout=timeout, stdin=b"" if quiet else None, **stream))
        if not quiet:
            _forward_input(process)
        printed = {"stdout": bytearray(), "stderr": bytearray()}
        async for chunk in process.output():
            if output.json:
                printed[chunk.stream] += chunk.data
            else:
                output.raw(chunk.data, error=chunk.stream == "stderr")
        result = await process.wait()
    return _told(result, timeout, {name: data.decode(errors="replace") for name, data in printed.items()}, output)


def _told(result: ExecResult, timeout: float | None, printed: dict[str, str], output: Output) -> int:
    """Say what an exit code does not; the exit code."""
    code = TIMED_OUT if result.timed_out else result.exit_code
    code = 128 + (result.signal or 0) if code is None else code
    if result.timed_out:
        output.warning(f"it was killed after {timeout:g} s (--timeout)")
    if result.oom_killed:
        output.warning("its memory ran out (--memory)")
    if result.pids_limited:
        output.warning("it met the limit on processes")
    names = ("exit_code", "signal", "reason", "seconds", "cpu_seconds", "peak_memory", "oom_killed", "pids_limited")
    output.event({"event": "result", **{name: getattr(result, name) for name in names}, **printed})
    return code


def _forward_input(process: Process) -> None:
    """Give the command what comes on stdin, from a thread that nobody waits for."""
    loop = asyncio.get_running_loop()

    def feed() -> None:
        try:
            while data := os.read(0, 1 << 16):
                asyncio.run_coroutine_threadsafe(process.write(data), loop).result()
            asyncio.run_coroutine_threadsafe(process.close_stdin(), loop).result()
        except (OSError, RuntimeError, Error):  # it has ended, and the loop with it
            return

    threading.Thread(target=feed, daemon=True).start()


# --- list and reap -------------------------------------------------------------------------------------------------


@app.command(name="list")
def list_all(*, json: Json = False, verbose: Verbose = False) -> int:
    """List this user's sandboxes on this machine, of all processes."""
    from verifiers.sandboxes.local import owners

    output = Output(json=json, verbose=verbose)
    rows = [row for owner in owners.owners() for row in _rows(owner)]
    for row in rows:
        output.event({"event": "sandbox", **row})
    output.table(
        ["id", "owner", "age", "MiB", "processes", "CPU s"],
        [[row["id"], _owner(row), f"{row['age']:.0f} s", *(_cell(row[name]) for name in FIGURES)] for row in rows],
    )
    if not rows:
        output.note("there are none")
    return ExitCode.OK


FIGURES = ("memory", "pids", "cpu_seconds")


def _rows(owner: Owner) -> list[dict[str, Any]]:
    rows = []
    for name in owner.sandboxes():
        group = owner.group(name)
        places = [owner.folder / name, *(Path(path) for _, path in group.places)]
        try:
            age = time.time() - next(place for place in places if place.exists()).stat().st_mtime
        except (OSError, StopIteration):  # gone meanwhile
            continue
        memory = group.memory()
        figures = (None if memory is None else round(memory / (1 << 20), 1), group.pids(), group.cpu_seconds())
        row = {"id": name, "owner": owner.pid, "alive": owner.alive, "age": round(age, 1)}
        rows.append(row | dict(zip(FIGURES, figures, strict=True)))
    return rows


def _owner(row: dict[str, Any]) -> str:
    return f"process {row['owner']}" if row["alive"] else f"process {row['owner']}, gone"


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{round(value, 2):g}"


@app.command
def reap(*, json: Json = False, verbose: Verbose = False) -> int:
    """Remove what sandboxes have left whose process is gone."""
    from verifiers.sandboxes.local import owners

    output = Output(json=json, verbose=verbose)
    count = owners.sweep()
    output.event({"event": "reaped", "sandboxes": count})
    output.result(f"{count} sandboxes were removed")
    return ExitCode.OK


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point `vf-sandbox`."""
    start(run, arguments)


def run(arguments: list[str]) -> int:
    """Run the command and return its exit code; that of `run` is the sandboxed command's."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    output = Output(json="--json" in own, verbose=bool({"--verbose", "-v"} & set(own)))

    def called() -> int:
        result = parsed(app, arguments, "vf-sandbox --help lists the commands.")
        return result if isinstance(result, int) else ExitCode.OK

    return run_command(called, output)


if __name__ == "__main__":
    main()
