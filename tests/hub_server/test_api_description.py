"""The OpenAPI description says what the routes answer, and its page every code that a refusal may have."""

import ast
import re

import pytest

from docs.hub_api import GIVEN, ROOT, description, problems
from hub_server.problems import Problem


@pytest.fixture(scope="module")
def described():
    return description()


def operations(described):
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def test_every_route_says_what_it_does_and_how_it_fails(described):
    """A sentence, one success, and the errors as the one record; on the upload routes as text."""
    for name, operation in operations(described):
        assert operation.get("description", "").endswith((".", ":")), name
        assert any(status.startswith("2") for status in operation["responses"]), name
        failures = {status: one for status, one in operation["responses"].items() if not status.startswith("2")}
        assert {"400", "401", "403", "404", "409", "422", "429", "503"} <= failures.keys(), name
        kinds = {kind for one in failures.values() for kind in one["content"]}
        assert kinds == ({"text/plain"} if "legacy" in name else {"application/json"}), name


def test_every_list_of_pages_has_bounds(described):
    """`limit` has a smallest and a largest value wherever there is one."""
    limits = [
        parameter["schema"]
        for _, operation in operations(described)
        for parameter in operation.get("parameters", [])
        if parameter["name"] == "limit"
    ]
    assert limits
    assert all({"minimum", "maximum"} <= schema.keys() for schema in limits)


def test_every_code_of_a_refusal_is_documented():
    """Each class says what it means and what to do, and its code has a row; so has a code that is given in place."""
    page = (ROOT / "docs" / "reference" / "hub-api.md").read_text()
    rows = set(re.findall(r"^\| \d+ \| `([a-z0-9-]+)` \| \S.* \| \S.* \|$", page, re.MULTILINE))
    for cls in problems():
        if cls is not Problem:
            assert cls.__doc__ and cls.hint, cls
            assert cls.code in rows, f"{cls.__name__}: run `make docs`"
    given = set()
    for path in (ROOT / "hub_server").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "code" and isinstance(node.value, ast.Constant):
                given.add(node.value.value)
    assert given - {None} <= rows | GIVEN.keys()


def test_no_code_means_two_things():
    """A code that two classes have is for one of them a kind of the other."""
    by_code = {}
    for cls in problems():
        other = by_code.setdefault(cls.code, cls)
        assert issubclass(cls, other) or issubclass(other, cls), f"{cls.__name__} and {other.__name__}: {cls.code}"
