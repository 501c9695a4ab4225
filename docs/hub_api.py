"""The page of the hub's HTTP API, from the OpenAPI description of the server and the classes of its refusals."""

import importlib
import inspect
import pkgutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hub_server
from hub_server.app import create_app
from hub_server.problems import Problem
from hub_server.settings import Settings

ROOT = Path(__file__).parent.parent

INTRODUCTION = """\
The routes of a hub but for those of installers, which have [a page of their own](../guides/hub-index.md). A running hub
serves this description for programs at `/openapi.json`.

- **Token**: `Authorization: Bearer TOKEN`, or Basic with the user `__token__`. Where none is needed a wrong one is
  refused all the same. What the caller may not see is answered like what is not there: 404.
- **Ids**: `owner` and `name` in any spelling of the name, `version` in any spelling of PEP 440. Addresses in answers
  are absolute and stable.
- **Errors** are [one record](#problem) with a stable [code](#errors); only the upload routes of uv and twine answer
  with a line of text.
- **Pages**: what may be long takes `limit` and `after`, and answers with `next`: pass it as `after` for what follows.
- **Unknown fields** of an answer are for newer clients: pass them over.
"""


def hub_api_page() -> str:
    """Routes by what they are about, records, errors."""
    described = description()
    parts = ["# HTTP API of a hub\n", INTRODUCTION]
    for tag, routes in by_tag(described):
        parts.append(f"## {tag.capitalize()}\n")
        parts += [route(method, path, found) for method, path, found in routes]
    parts.append("## Records\n")
    parts += [record(name, schema) for name, schema in sorted(described["components"]["schemas"].items())]
    return "\n".join([*parts, errors()])


def description() -> dict[str, Any]:
    """The OpenAPI document of a hub that nobody uses."""
    with tempfile.TemporaryDirectory() as folder:
        app = create_app(Settings(data=Path(folder)))
        app.state.context.inspector.close()
        return app.openapi()


def by_tag(described: dict[str, Any]) -> list[tuple[str, list[tuple[str, str, dict[str, Any]]]]]:
    """The routes of each tag, in the order of the application."""
    found: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for path, methods in described["paths"].items():
        for method, one in methods.items():
            found.setdefault(one["tags"][0], []).append((method.upper(), path, one))
    return list(found.items())


def route(method: str, path: str, found: dict[str, Any]) -> str:
    """One route: what it does, what it takes, what it answers."""
    lines = [f"### `{method} {path}`\n", found.get("description", found["summary"]) + "\n"]
    for parameter in found.get("parameters", []):
        if parameter["in"] == "query":
            said = f": {parameter['description']}" if "description" in parameter else ""
            needed = ", required" if parameter.get("required") else ""
            lines.append(f"- `?{parameter['name']}` ({kind(parameter['schema'])}{needed}){said}")
    for content_type, body in found.get("requestBody", {}).get("content", {}).items():
        lines.append(f"- body: {kind(body['schema']) if body.get('schema') else f'`{content_type}`'}")
    good = {status: answer for status, answer in found["responses"].items() if status.startswith("2")}
    for status, answer in good.items():
        content = answer.get("content", {})
        schema = next((one.get("schema") for one in content.values() if one.get("schema")), None)
        kinds = f": {kind(schema)}" if schema and schema.get("title") is None else ""
        lines.append(f"- answers {status}{kinds}")
    return "\n".join(lines) + "\n"


def record(name: str, schema: dict[str, Any]) -> str:
    """One record: its fields with their kinds and defaults."""
    lines = [f"### {name}\n", " ".join(schema.get("description", "").split()) + "\n"]
    if "properties" in schema:
        lines += ["| field | kind | default |", "|---|---|---|"]
    for field, said in schema.get("properties", {}).items():
        needed = field in schema.get("required", [])
        default = "required" if needed else f"`{said['default']}`" if said.get("default") not in (None, "") else "–"
        lines.append(f"| `{field}` | {kind(said)} | {default} |")
    return "\n".join(lines) + "\n"


def kind(schema: dict[str, Any]) -> str:
    """A schema in a few words, with a link where it is a record."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(kind(one) for one in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {kind(schema.get('items', {}))}{bounds(schema, 'Items')}"
    word = {"object": "table", "string": schema.get("format", "text")}.get(
        schema.get("type", ""), schema.get("type", "anything")
    )
    return f"{word}{bounds(schema, 'Length')}{bounds(schema, 'imum')}"


def bounds(schema: dict[str, Any], of: str) -> str:
    """The limits of a value, as in `, 1 to 100`."""
    low, high = schema.get(f"min{of}"), schema.get(f"max{of}")
    if low is None and high is None:
        return ""
    if low is not None and high is not None:
        return f", {low} to {high}"
    return f", from {low}" if high is None else f", up to {high}"


# --- errors -----------------------------------------------------------------------------------------------------


def problems() -> list[type[Problem]]:
    """All classes of refusals, by status and code."""
    for module in pkgutil.walk_packages(hub_server.__path__, "hub_server."):
        if not module.name.endswith(("__main__", ".env")) and ".versions" not in module.name:
            importlib.import_module(module.name)
    return sorted({Problem, *subclasses(Problem)}, key=lambda cls: (cls.status, cls.code, cls.__name__))


def subclasses(cls: type[Problem]) -> Iterator[type[Problem]]:
    for one in cls.__subclasses__():
        yield one
        yield from subclasses(one)


GIVEN = {
    "invalid": (422, "The request has not the form that it must have.", "Correct the fields named in the message."),
    "http-404": (404, "There is no such route.", "See the routes of this page."),
    "http-405": (405, "The route does not take this method.", "See the routes of this page."),
}
"""Codes that no class stands for: what the framework itself refuses."""


def errors() -> str:
    """One row a code."""
    rows = [
        (cls.status, cls.code, " ".join((inspect.getdoc(cls) or "").split()), cls.hint)
        for cls in problems()
        if cls is not Problem
    ]
    rows += [(status, code, meaning, hint) for code, (status, meaning, hint) in GIVEN.items()]
    lines = [
        "## Errors\n",
        (
            "A refusal of a file or a name by one of [the hub's rules](hub-rules.md) has the rule's code and status "
            "400. `message` says what is wrong in this case, `hint` what to do; the hint here is the usual one.\n"
        ),
        "| status | code | meaning | hint |",
        "|---|---|---|---|",
    ]
    return "\n".join([*lines, *(f"| {row[0]} | `{row[1]}` | {row[2]} | {row[3]} |" for row in sorted(rows)), ""])
