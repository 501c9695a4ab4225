"""When a returned value or a printed text is the expected one: types first, floats by tolerance, stated white space."""

import math
from typing import Any

import pytest

from verifiers.grading.code_compare import same, same_output


@pytest.mark.parametrize(
    ("given", "expected", "equal"),
    [
        (1, 1, True), (True, 1, False), (1, True, False), (False, 0, False), (1.0, 1, True), (1, 1.0, True),
        (0.1 + 0.2, 0.3, True), (0.30001, 0.3, False), (10**400, 1.0, False), (10**400, 10**400, True),
        (10**20, 10**20 + 1, False), (math.nan, math.nan, True), (math.nan, 1.0, False), (1e308, math.inf, False),
        (math.inf, math.inf, True), (-math.inf, math.inf, False), ("1", 1, False), ("a", "a", True), (b"a", "a", False),
        (None, None, True), (None, 0, False), ("", None, False), ((1, 2), [1, 2], True), ([1, 2], [1, 2, 3], False),
        ({1, 2}, [1, 2], False), ({1, 2}, frozenset({2, 1}), True), ({"a": 1.0000001}, {"a": 1}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False), ([[1.0], {"x": (1,)}], [[1], {"x": [1]}], True), (1 + 1e-9j, 1 + 0j, True),
        (range(3), [0, 1, 2], False), (iter([1]), [1], False),
    ],
)  # fmt: skip
def test_same(given: Any, expected: Any, equal: bool):
    """Values are compared by kind, integers exactly, floats by tolerance, and lists like tuples."""
    assert same(given, expected) is equal


@pytest.mark.parametrize(
    ("given", "expected", "equal"),
    [
        ("3\n", "3", True), ("3 \r\n\n", "3\n", True), ("\n3", "3", False), ("1  2", "1 2", True),
        ("1\n2", "1 2", False), ("0.333333", "0.333333333333", True), ("0.3333", "0.333333333333", False),
        ("1.0 2.5\n-3e2", "1 2.50\n-300.0", True), ("007", "7", False), ("yes", "YES", False),
        ("nan", "1.0", False), ("inf", "1e999", False), ("1e999", "1.0", False),
        ("9007199254740993", "9007199254740992", False), ("", "", True), ("", "0", False), ("a\x1cb", "a\x1cb", True),
        ("1.0" + "0" * 10_000, "1.0", False),
    ],
    ids=lambda value: repr(value)[:30],
)  # fmt: skip
def test_same_output(given: str, expected: str, equal: bool):
    """White space at ends does not count; words are exact unless one of two numbers is written as a decimal."""
    assert same_output(given, expected) is equal
