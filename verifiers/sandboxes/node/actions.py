"""What can be asked of a sandbox over the wire: one small function for each, from arguments and a blob to an answer.

    answer = await ACTIONS["exec"](sandbox, {"command": "echo hi"}, b"")

Nothing here knows of HTTP. Arguments that are missing or of another kind are a ConfigError.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any

from verifiers.errors import ConfigError
from verifiers.sandboxes.node.wire import Answer, command_of, result_answer
from verifiers.sandboxes.sandbox import Sandbox

Arguments = Mapping[str, Any]
Action = Callable[[Sandbox, Arguments, bytes], Awaitable[Answer]]


def argument(arguments: Arguments, name: str, kind: type | tuple[type, ...]) -> Any:
    """One argument, of this kind."""
    value = arguments.get(name)
    if not isinstance(value, kind):
        raise ConfigError(f"the argument {name!r} is {value!r}", hint="Both ends need one version of verifiers.")
    return value


def _path(arguments: Arguments) -> str:
    return str(argument(arguments, "path", str))


def _process(arguments: Arguments) -> str:
    return str(argument(arguments, "process", str))


async def _exec(sandbox: Sandbox, arguments: Arguments, stdin: bytes) -> Answer:
    return result_answer(await sandbox.run(command_of(arguments, stdin)))


async def _start(sandbox: Sandbox, arguments: Arguments, stdin: bytes) -> Answer:
    process = await sandbox.start(command_of(arguments, stdin))
    return Answer({"process": process.id})


async def _attach(sandbox: Sandbox, arguments: Arguments, _: bytes) -> Answer:
    process = await sandbox.attach(_process(arguments))
    return Answer({"process": process.id})


async def _wait(sandbox: Sandbox, arguments: Arguments, _: bytes) -> Answer:
    process = await sandbox.attach(_process(arguments))
    return result_answer(await process.wait())


async def _stdin(sandbox: Sandbox, arguments: Arguments, data: bytes) -> Answer:
    process = await sandbox.attach(_process(arguments))
    await process.write(data)
    return Answer({})


async def _close_stdin(sandbox: Sandbox, arguments: Arguments, _: bytes) -> Answer:
    await (await sandbox.attach(_process(arguments))).close_stdin()
    return Answer({})


async def _signal(sandbox: Sandbox, arguments: Arguments, _: bytes) -> Answer:
    process = await sandbox.attach(_process(arguments))
    await process.signal(argument(arguments, "number", int))
    return Answer({})


async def _kill(sandbox: Sandbox, arguments: Arguments, _: bytes) -> Answer:
    await (await sandbox.attach(_process(arguments))).kill()
    return Answer({})


async def _read(sandbox: Sandbox, arguments: Arguments, _: bytes) -> Answer:
    size = argument(arguments, "size", (int, type(None)))
    data = await sandbox.read(_path(arguments), offset=argument(arguments, "offset", int), size=size)
    return Answer({}, (data,))


async def _write(sandbox: Sandbox, arguments: Arguments, data: bytes) -> Answer:
    await sandbox.write(_path(arguments), data, mode=argument(arguments, "mode", int))
    return Answer({})


async def _stat(sandbox: Sandbox, arguments: Arguments, _: bytes) -> Answer:
    return Answer({"stat": asdict(await sandbox.stat(_path(arguments)))})


async def _list(sandbox: Sandbox, arguments: Arguments, _: bytes) -> Answer:
    return Answer({"entries": [asdict(entry) for entry in await sandbox.list(_path(arguments))]})


async def _mkdir(sandbox: Sandbox, arguments: Arguments, _: bytes) -> Answer:
    await sandbox.mkdir(_path(arguments))
    return Answer({})


async def _remove(sandbox: Sandbox, arguments: Arguments, _: bytes) -> Answer:
    await sandbox.remove(_path(arguments), recursive=argument(arguments, "recursive", bool))
    return Answer({})


async def _usage(sandbox: Sandbox, _: Arguments, __: bytes) -> Answer:
    return Answer({"usage": asdict(await sandbox.usage())})


async def _alive(sandbox: Sandbox, _: Arguments, __: bytes) -> Answer:
    return Answer({"alive": await sandbox.alive()})


ACTIONS: dict[str, Action] = {
    "exec": _exec,
    "start": _start,
    "attach": _attach,
    "wait": _wait,
    "stdin": _stdin,
    "close_stdin": _close_stdin,
    "signal": _signal,
    "kill": _kill,
    "read": _read,
    "write": _write,
    "stat": _stat,
    "list": _list,
    "mkdir": _mkdir,
    "remove": _remove,
    "usage": _usage,
    "alive": _alive,
}
