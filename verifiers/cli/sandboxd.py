"""`sandboxd`: the daemon of a node, which makes sandboxes on this machine for clients on others.

Serving is `verifiers.sandboxes.node.server`'s; this file says what the flags are, and ends in order: at the first
signal no more sandboxes are made, those that are there may end by themselves for a while, and then they are deleted.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from verifiers.cli.frame import framed, package_version, parsed, start
from verifiers.cli.output import Output
from verifiers.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from verifiers.sandboxes.node.server import NodeServer

PORT = 8475
TOKEN = "VF_SANDBOXD_TOKEN"  # noqa: S105 - the name of a variable
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def _flag(text: str, letter: str | None = None) -> Parameter:
    return Parameter(alias=letter, help=text, negative="", show_default=lambda value: value or None)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Flags:
    """What was given."""

    host: Annotated[str, _flag("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, _flag("Port to listen on; 0 takes a free one.")] = PORT
    socket: Annotated[Path | None, _flag("Listen on this unix socket instead; only this user may connect.")] = None
    token_file: Annotated[Path | None, _flag(f"File that holds the token; else {TOKEN} does.")] = None
    capacity: Annotated[int, _flag("Sandboxes at a time.")] = 200
    ready: Annotated[int, _flag("Idle ones kept of each kind that is asked for.")] = 4
    lease: Annotated[float, _flag("Seconds without a word of a client after which its sandboxes end.")] = 60.0
    drain: Annotated[float, _flag("Seconds that sandboxes may go on after a signal to end.")] = 30.0
    images: Annotated[Path | None, _flag("Folder of root file systems that may be asked for by name.")] = None
    allow_mounts: Annotated[bool, _flag("Let clients mount folders of this machine.")] = False
    json: Annotated[bool, _flag("Say where it listens as a JSON object.")] = False
    verbose: Annotated[bool, _flag("Show tracebacks and the whole log.", "-v")] = False


app = App(
    name="sandboxd",
    suppress_keyboard_interrupt=False,  # run_command answers for it
    help=(
        "Make sandboxes on this machine for clients on others.\n\n"
        "sandboxd --socket /tmp/sandboxd.sock           for this user, without a token\n"
        "sandboxd --token-file token                    on 127.0.0.1:8475\n"
        "sandboxd --host 10.0.0.1 --token-file token    on a private network\n\n"
        "A signal to end drains: no more sandboxes, and those that are there have --drain seconds."
    ),
    help_format="plaintext",
    version_format="plaintext",
    version=package_version,
    version_flags=["--version"],
)


@app.default
def parse(*, flags: Flags = Flags()) -> Flags:  # frozen, and cyclopts wants a default instance
    return flags


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point `sandboxd`. Ends the process with one of the exit codes of `verifiers.errors.ExitCode`."""
    start(run, arguments)


def run(arguments: list[str]) -> int:
    """Run the command and return its exit code."""
    return framed(arguments, lambda output: _command(arguments, output))


def _command(arguments: list[str], output: Output) -> ExitCode:
    flags = parsed(app, arguments, "sandboxd --help lists the options.")
    if isinstance(flags, Flags):  # else --help or --version has been answered
        from verifiers.settings import setup_logging

        setup_logging()
        asyncio.run(_serve(flags, _token(flags), output))
    return ExitCode.OK


def _token(flags: Flags) -> str | None:
    """The token, which is never on the command line: others can read that."""
    if flags.token_file is not None:
        try:
            token = flags.token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"can not read the token from {flags.token_file}", cause=error) from error
    else:
        token = os.environ.get(TOKEN, "").strip()
    if not token and flags.socket is None:
        raise ConfigError(
            "there is no token, so everybody on this machine could run programs here",
            hint="Make one: (umask 077; openssl rand -hex 32 > token), then --token-file token; or use --socket.",
        )
    return token or None


async def _serve(flags: Flags, token: str | None, output: Output) -> None:
    from verifiers.cli.interrupts import interruptible
    from verifiers.sandboxes.local.provider import LocalProvider
    from verifiers.sandboxes.node.server import NodeServer
    from verifiers.sandboxes.pool import SandboxPool

    starting = 4 * (os.cpu_count() or 1)
    local = LocalProvider()
    if left := await local.reap_orphans():
        output.note(f"removed what {left} sandboxes of a daemon that is gone had left")
    async with SandboxPool(local, max_alive=flags.capacity, max_starting=starting, ready=flags.ready) as pool:
        found = await pool.capabilities()  # raises here, with the finding, where nothing can be isolated
        server = NodeServer(
            pool,
            token=token,
            capacity=flags.capacity,
            starting=starting,
            lease=flags.lease,
            images=flags.images,
            mounts=flags.allow_mounts,
        )
        await _listen(server, flags, output)
        ended = asyncio.Event()
        try:
            with interruptible(output, ended.set, f"draining for at most {flags.drain:g} seconds"):
                _tell(server.url, found, flags, output)
                await ended.wait()
                await server.drain(flags.drain)
        finally:
            await server.stop()


async def _listen(server: NodeServer, flags: Flags, output: Output) -> None:
    if flags.socket is not None:
        await server.start_unix(flags.socket)
        return
    await server.start_tcp(flags.host, flags.port)
    if flags.host not in LOOPBACK:
        output.warning("what travels to and from here is not encrypted: keep it to a private network")


def _tell(url: str, found: Any, flags: Flags, output: Output) -> None:
    listening = {"url": url, "isolation": found.isolation, "capacity": flags.capacity}
    output.event({"event": "listening", **listening})
    if not flags.json:
        output.result(f"{url}: {flags.capacity} sandboxes, level {found.isolation}")


if __name__ == "__main__":
    main()
