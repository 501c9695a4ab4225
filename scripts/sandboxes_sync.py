"""Write verifiers/sandboxes/sync.py: the interface of sandboxes for callers without an event loop.

    python scripts/sandboxes_sync.py            # writes it
    python scripts/sandboxes_sync.py --check    # exits with 1 if it would change

Every public method of the asynchronous classes appears with its signature and its documentation. What they return is
wrapped, what they take is unwrapped.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

SANDBOXES = Path(__file__).resolve().parent.parent / "verifiers" / "sandboxes"
TARGET = SANDBOXES / "sync.py"
SOURCES = {
    "sandbox": ("Process", "Sandbox", "Provider"),
    "sessions": ("Session", "Interpreter"),
}
WRAPPED = {name for names in SOURCES.values() for name in names}
HEAD = '''"""The interface of sandboxes for callers without an event loop: `SyncProvider` and what comes from it.

    with SyncProvider(LocalProvider()) as provider:
        with provider.create(SandboxSpec()) as sandbox:
            print(sandbox.exec("echo hi").stdout_text)

Written by scripts/sandboxes_sync.py from the asynchronous classes; change those. The work is done on an event loop in
a thread of its own, so any thread may call. `SyncProvider()` without a provider has the default one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from verifiers.loops import Background
from verifiers.sandboxes.default import default_provider
from verifiers.sandboxes.results import Capabilities, Chunk, ExecResult, FileStat, SandboxInfo, Usage
from verifiers.sandboxes.sandbox import Process, Provider, Sandbox
from verifiers.sandboxes.spec import COMMAND_SECONDS, OUTPUT_BYTES, OUTPUT_LIMIT, Command, SandboxSpec

if TYPE_CHECKING:
    from verifiers.sandboxes.sessions import CodeResult, Interpreter, Session, SessionResult


def _each(loop: Background, chunks: AsyncIterator[Chunk]) -> Iterator[Chunk]:
    """An asynchronous iterator's items."""

    async def following() -> Chunk:
        return await anext(chunks)

    with suppress(StopAsyncIteration):
        while True:
            yield loop.run(following())
'''
TAIL = {
    "Sandbox": '''
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.delete()
''',
    "Provider": '''
    def __enter__(self) -> Self:
        self._loop = Background("sandboxes")
        self.inner = self._loop.run(self._opened())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.close()
        finally:
            self._loop.close()

    async def _opened(self) -> Provider:
        return await default_provider() if self._given is None else await self._given.__aenter__()
''',
}
TAIL["Session"] = TAIL["Interpreter"] = TAIL["Sandbox"].replace("delete", "close")
INIT = {
    "Provider": '''
    inner: Provider
    _loop: Background

    def __init__(self, provider: Provider | None = None) -> None:
        self._given = provider
''',
}


def members(tree: ast.Module, name: str) -> list[ast.stmt]:
    """The members of a class and of its bases in the same file, each name once, the class's own first."""
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    found, seen = [], set()
    look = [name]
    while look:
        node = classes[look.pop(0)]
        look += [base.id for base in node.bases if isinstance(base, ast.Name) and base.id in classes]
        for member in node.body:
            key = member.name if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) else ast.unparse(member)
            if key not in seen:
                seen.add(key)
                found.append(member)
    return found


def public(member: ast.stmt) -> bool:
    """Whether it is a method for callers, which no constructor is."""
    return (
        isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
        and not member.name.startswith("_")
        and not any(isinstance(one, ast.Name) and one.id == "classmethod" for one in member.decorator_list)
    )


def attribute(member: ast.stmt) -> tuple[str, str] | None:
    """Name and type of an annotated attribute that instances have."""
    if not isinstance(member, ast.AnnAssign) or member.value is not None or not isinstance(member.target, ast.Name):
        return None
    kind = ast.unparse(member.annotation)
    return None if kind.startswith("ClassVar") else (member.target.id, kind)


def call(member: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The call of the asynchronous method with the parameters of the synchronous one."""
    given = member.args
    words = []
    for parameter in given.args[1:]:
        kind = ast.unparse(parameter.annotation) if parameter.annotation else ""
        words.append(f"{parameter.arg}.inner" if kind in WRAPPED else parameter.arg)
    words += [f"{parameter.arg}={parameter.arg}" for parameter in given.kwonlyargs]
    if given.kwarg:
        words.append(f"**{given.kwarg.arg}")
    return f"self.inner.{member.name}({', '.join(words)})"


def method(member: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The synchronous method."""
    returns = ast.unparse(member.returns) if member.returns else "None"
    arguments = re.sub(r"(: [^,=]+)=", r"\1 = ", ast.unparse(member.args))
    for name in WRAPPED:
        arguments = arguments.replace(f": {name},", f": Sync{name},")
    if isinstance(member, ast.FunctionDef):
        returns, body = returns.replace("AsyncIterator", "Iterator"), f"return _each(self._loop, {call(member)})"
    elif returns in WRAPPED:
        body, returns = f"return Sync{returns}(self._loop, self._loop.run({call(member)}))", f"Sync{returns}"
    else:
        body = f"{'' if returns == 'None' else 'return '}self._loop.run({call(member)})"
    head = f"    def {member.name}({arguments}) -> {returns}:"
    if len(head) > 118:
        inside = arguments if len(arguments) < 112 else arguments.replace(", ", ",\n        ") + ","
        head = f"    def {member.name}(\n        {inside}\n    ) -> {returns}:"
    if len(body) > 112:
        body = body.replace("self._loop.run(", "self._loop.run(\n            ")[:-1] + "\n        )"
    documentation = ast.get_docstring(member) or ""
    lines = documentation.splitlines()
    text = "\n".join([lines[0], *(f"        {one}".rstrip() for one in lines[1:])])
    end = '"""' if len(lines) == 1 else '\n        """'
    return f'{head}\n        """{text}{end}\n        {body}\n'


def facade(tree: ast.Module, name: str) -> str:
    """The synchronous class."""
    found = members(tree, name)
    parts = [f'class Sync{name}:\n    """`{name}` for callers without an event loop; `inner` is that."""\n']
    parts.append(
        INIT.get(
            name,
            f"\n    def __init__(self, loop: Background, inner: {name}) -> None:\n"
            "        self._loop = loop\n        self.inner = inner\n",
        )
    )
    parts += [
        f"\n    @property\n    def {held[0]}(self) -> {held[1]}:\n"
        f'        """As of `{name}`."""\n        return self.inner.{held[0]}\n'
        for held in map(attribute, found)
        if held is not None
    ]
    parts += ["\n" + method(member) for member in found if public(member)]  # type: ignore[arg-type]
    return "".join([*parts, TAIL.get(name, "")])


def text() -> str:
    """The whole module."""
    parts = [HEAD]
    for module, names in SOURCES.items():
        tree = ast.parse((SANDBOXES / f"{module}.py").read_text())
        parts += [facade(tree, name) for name in names]
    return "\n\n".join(parts)


def main() -> int:
    """Write, or compare."""
    if "--check" in sys.argv:
        return int(TARGET.read_text() != text())
    TARGET.write_text(text())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
