"""The program around a submission, inside its sandbox: loads it, and answers calls with plain data.

Nothing here is trusted: the submission shares the process and may do what it likes with it. All it can reach by that
is to answer for itself, and the answers are compared elsewhere, with values that never come here. This text is run by
`python -c`, together with that of `code_data`. It says that it is ready before anything of the submission runs; then a
request and a reply a line, JSON, over stdin and stdout.
"""

import contextlib
import json
import os
import resource
import signal
import sys
import time
import types
from typing import Any

from verifiers.grading.code_data import NotPlainError, decode, encode

NAME = "submission"
OBJECTS: list[Any] = []


def allow(seconds: float) -> None:
    """Let the process use so much CPU time from now; then the kernel ends it with SIGXCPU."""
    limit = int(time.process_time() + seconds) + 1
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def load(units: list[str]) -> dict[str, Any]:
    """Run the parts of the program, one after another, as a module that is not the main one."""
    module = types.ModuleType(NAME)
    sys.modules[NAME] = module
    for unit in units:
        exec(compile(unit, f"<{NAME}>", "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - what it is for
    return module.__dict__


def function(namespace: dict[str, Any], name: str) -> Any:
    """The function of that name, or the method of `Solution`."""
    if name not in namespace and "Solution" in namespace:
        return getattr(namespace["Solution"](), name)
    return eval(name, namespace)  # noqa: S307


def argument(data: Any) -> Any:
    """What was sent: plain data, or an object that stayed here."""
    return OBJECTS[data["o"]] if isinstance(data, dict) and "o" in data else decode(data)


def result(value: Any, keep: bool) -> dict[str, Any]:
    """A value as data; what is none stays here, and its number is sent, if the caller can do something with that."""
    try:
        return {"value": encode(value)}
    except NotPlainError:
        if not keep:
            raise
        OBJECTS.append(value)
        return {"object": len(OBJECTS) - 1}


def answer(namespace: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """What a call gives, as data."""
    if "expression" in request:
        return {"value": encode(eval(request["expression"], namespace))}  # noqa: S307
    if "attribute" in request:
        return result(getattr(OBJECTS[request["object"]], request["attribute"]), keep=True)
    args = [argument(arg) for arg in request["args"]]
    kwargs = {name: argument(arg) for name, arg in request["kwargs"].items()}
    called = OBJECTS[request["object"]] if "object" in request else function(namespace, request["name"])
    return result(called(*args, **kwargs), keep=request["keep"])


def raised(error: BaseException) -> dict[str, Any]:
    """An exception as data: the names of its classes, and its message."""
    return {"raised": [kind.__name__ for kind in type(error).__mro__], "message": str(error)[:500]}


def main() -> None:
    """Serve until the requests end."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):  # what the submission reads and prints is none of the conversation
        os.dup2(null, standard)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    namespace: dict[str, Any] = {}
    os.write(replies, b'{"ready": true}\n')
    for line in requests:
        request = json.loads(line)
        allow(request["seconds"])
        try:
            if "units" in request:
                namespace, reply = load(request["units"]), {}
            else:
                reply = answer(namespace, request)
            text = json.dumps({"token": request["token"], **reply})
        except BaseException as error:  # a submission may raise anything, SystemExit too
            text = json.dumps({"token": request["token"], **raised(error)})
        data = memoryview(text.encode() + b"\n")
        while data:
            data = data[os.write(replies, data) :]
    os._exit(0)


if __name__ == "__main__":
    main()
