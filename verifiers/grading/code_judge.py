"""The program that runs test code, in a sandbox of its own. The submission is elsewhere, and speaks in plain data.

It holds the test code with the expected values. The functions of the submission are stand-ins here: a call sends its
arguments, and what comes back is plain data or the number of an object that stayed there. So no code of the submission
ever runs beside an assert. The verdict is the last line, with the nonce that came with the tests; without it there is
none. This text is run by `python -c`, together with that of `code_data`; a message a line, JSON.
"""

import ast
import builtins
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from verifiers.grading.code_data import PREDICATES, NotPlainError, decode, encode


class NoAnswerError(Exception):
    """The submission gave no answer: it crashed, ran out of time or memory, or answered with nonsense."""


class Line:
    """The conversation with whoever carries messages to the submission."""

    def __init__(self) -> None:
        self.incoming, self.outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
        self.calls = 0
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1):  # what tests print is no message
            os.dup2(null, standard)

    def tell(self, message: dict[str, Any]) -> None:
        """Send one message."""
        self.outgoing.write(json.dumps(message).encode() + b"\n")
        self.outgoing.flush()

    def hear(self) -> dict[str, Any]:
        """The next message; the end of this program if nobody is there any more."""
        line = self.incoming.readline()
        if not line:
            os._exit(3)
        message: dict[str, Any] = json.loads(line)
        return message

    def ask(self, request: dict[str, Any]) -> Any:
        """What the submission answers, as a value. Raises what it raised, as the nearest built-in exception."""
        self.calls += 1
        self.tell(request)
        reply = self.hear()
        if "no_answer" in reply:
            raise NoAnswerError(reply["no_answer"])
        if "raised" in reply:
            raise _as_exception(reply["raised"], reply["message"])
        if "object" in reply:
            return Remote(self, str(request.get("name"))[:1].isupper(), object=reply["object"])
        try:
            return decode(reply["value"])
        except NotPlainError as error:
            raise NoAnswerError(f"the answer is no plain data: {error}") from None


class Remote:
    """A function or object of the submission. Never equal to anything but itself, and neither true nor false.

    made: by a class under test, whose methods are what is tested; else it is where plain data was to be.
    """

    def __init__(self, line: Line, made: bool, **where: Any) -> None:
        self.__dict__.update(_line=line, _made=made, _where=where)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        sent = {"args": [_sent(arg) for arg in args], "kwargs": {name: _sent(arg) for name, arg in kwargs.items()}}
        return self._line.ask({**self._where, **sent, "keep": True})

    def __getattr__(self, name: str) -> Any:
        # Libraries ask objects by such names what they are: numpy would take an address in memory.
        if "object" not in self._where or name.startswith("__"):
            raise AttributeError(name)
        if name in PREDICATES and not self._made:
            raise NoAnswerError(f"it gave an object whose {name} is its own, where plain data is asked for")
        return self._attribute(name)

    def _attribute(self, name: str) -> Any:
        if "object" not in self._where:
            raise TypeError(f"a function of the submission has no {name}")
        return self._line.ask({**self._where, "attribute": name})

    def __setattr__(self, name: str, value: Any) -> None:
        self._attribute("__setattr__")(name, value)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __bool__(self) -> bool:
        raise TypeError("the submission gave an object that is no plain data")

    def __len__(self) -> int:
        return int(self._attribute("__len__")())

    def __getitem__(self, key: Any) -> Any:
        return self._attribute("__getitem__")(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._attribute("__setitem__")(key, value)

    def __iter__(self) -> Iterator[Any]:
        items: Iterator[Any] = self._attribute("__iter__")()
        return items

    def __str__(self) -> str:
        return str.__str__(self._attribute("__str__")())


def _sent(arg: Any) -> Any:
    return {"o": arg._where["object"]} if isinstance(arg, Remote) and "object" in arg._where else encode(arg)


def _as_exception(kinds: list[str], message: str) -> Exception:
    for kind in kinds:
        found = getattr(builtins, kind, None)
        # The end of an iteration, raised by a call, would make `all(map(candidate, …))` true.
        ends = found in (StopIteration, StopAsyncIteration)
        if isinstance(found, type) and issubclass(found, Exception) and not ends:
            try:
                return found(message)
            except TypeError:  # it takes other arguments
                continue
    return RuntimeError(f"{kinds[0]}: {message}")


class Record:
    """What the top-level asserts of the tests said."""

    def __init__(self) -> None:
        self.entries: list[list[Any]] = []

    def passed(self, text: str) -> None:
        """One held."""
        self.entries.append([text, True, ""])

    def failed(self, text: str, error: BaseException) -> None:
        """One did not, or raised."""
        message = "" if type(error) is AssertionError else f"{type(error).__name__}: {error}"
        self.entries.append([text, False, message[:500]])


def noted(tree: ast.Module) -> ast.Module:
    """The same code, whose top-level asserts (of the module and of `check`) are noted one by one and do not end it."""
    checks = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "check"]
    for body in (tree.body, *(node.body for node in checks)):
        if not any(isinstance(node, ast.Return) for statement in body for node in ast.walk(statement)):
            body[:] = [_noted(node) if isinstance(node, ast.Assert) else node for node in body]
    return ast.fix_missing_locations(tree)


def _noted(node: ast.Assert) -> ast.stmt:
    text = repr(ast.unparse(node)[:200])
    pattern = f"try:\n _record_.passed({text})\nexcept Exception as _error_:\n _record_.failed({text}, _error_)"
    attempt = ast.parse(pattern).body[0]
    attempt.body.insert(0, node)  # type: ignore[attr-defined]
    return attempt


def main() -> None:
    """Run the tests, and say how they ended."""
    line, record = Line(), Record()
    start = line.hear()
    namespace: dict[str, Any] = {"__name__": "tests", "_record_": record}
    ended = ""
    try:
        stand_ins = {name: Remote(line, True, name=theirs) for name, theirs in start["names"].items()}
        stand_ins |= {remote._where["name"]: remote for remote in stand_ins.values()}
        namespace |= stand_ins
        exec(compile(start["setup"], "<setup>", "exec"), namespace)  # noqa: S102 - test code is what it is for
        namespace |= stand_ins  # the setup may hold the head of the function that is asked for
        exec(compile(noted(ast.parse(start["code"])), "<tests>", "exec"), namespace)  # noqa: S102
        if start["call"]:
            eval(start["call"], namespace)  # noqa: S307
    except BaseException as error:  # whatever test code raises is an outcome
        ended = f"{type(error).__name__}: {error}"[:500]
    line.tell({"nonce": start["nonce"], "entries": record.entries, "ended": ended, "calls": line.calls})
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
