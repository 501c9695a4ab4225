"""Plain data between a submission and its judges: exact round trips, and nothing but data comes out."""

import json
import math
from collections import Counter, OrderedDict, namedtuple
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given, strategies as st

from verifiers.grading.code_data import MAX_COLLISIONS, NotPlainError, decode, encode

NUMBERS = st.integers() | st.floats(allow_nan=False) | st.complex_numbers(allow_nan=False)
HASHABLE = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=8,
)
PLAIN = st.recursive(
    HASHABLE,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(HASHABLE, inner, max_size=4) | st.sets(HASHABLE),
    max_leaves=12,
)
MARKED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("tszdifcbry"), inner, max_size=2),
    max_leaves=12,
)


def through_json(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value))))


def types_in(value: Any) -> Any:
    if isinstance(value, dict):
        return dict, [(types_in(key), types_in(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [types_in(item) for item in value]
    return type(value)


@given(PLAIN)
def test_values_come_back_as_they_were(value: Any):
    """Plain values survive the way through JSON, and so do the types of what is in them."""
    back = through_json(value)
    assert back == value and types_in(back) == types_in(value)


@given(MARKED)
def test_any_json_is_data_or_refused(data: Any):
    """Whatever JSON a submission forges is read as plain data or refused, never anything else."""
    try:
        value = decode(data)
    except NotPlainError:
        return
    assert type(value).__module__ == "builtins"


def test_not_finite_and_large_numbers_come_back():
    """NaN, infinities and integers beyond every limit of digits survive."""
    assert math.isnan(through_json(float("nan"))) and through_json(-math.inf) == -math.inf
    assert through_json([10**10_000, -(1 << 63)]) == [10**10_000, -(1 << 63)]


def test_subclasses_come_back_as_their_base():
    """Counters, ordered dicts, named tuples, enumerations and iterators are what they are made of."""
    Colour = IntEnum("Colour", "red")  # noqa: N806 - a class
    Point = namedtuple("Point", "x y")
    given_values = [Counter("aab"), OrderedDict(a=1), Point(1, 2), Colour.red, range(3)]
    assert through_json(given_values) == [{"a": 2, "b": 1}, {"a": 1}, (1, 2), 1, range(3)]
    endless = through_json(iter(lambda: 7, 8))
    assert next(endless) == 7 and not isinstance(endless, list)


class Posing:
    """Says that it is a text and equal to everything."""

    __class__ = str  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    "value", [object(), Posing(), {"a": [len]}, type, print], ids=["object", "posing", "inside", "type", "function"]
)
def test_what_is_no_data_is_refused(value: Any):
    """Functions, classes, and objects that pose as data are no data."""
    with pytest.raises((NotPlainError, TypeError)):
        encode(value)


def test_what_is_nested_without_end_is_refused():
    """A list that holds itself, and one that is nested too deeply, are refused on both sides."""
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(NotPlainError, match="nested"):
        encode(loop)
    deep: Any = []
    for _ in range(500):
        deep = [deep]
    with pytest.raises(NotPlainError, match="nested"):
        decode(deep)


def test_long_ranges_are_refused():
    """A range that nobody could go through is refused; a short one comes back."""
    assert through_json(range(10, 0, -3)) == range(10, 0, -3)
    for long in (range(10**9), range(0, -(10**30), -1)):
        with pytest.raises(NotPlainError):
            through_json(long)


def test_colliding_hashes_are_refused():
    """Numbers chosen to make a set slow are refused in every container; equal members and few collisions are fine."""
    prime = (1 << 61) - 1
    colliding = [prime * factor for factor in range(MAX_COLLISIONS + 2)]
    for value in (set(colliding), colliding, dict.fromkeys(colliding), [(one,) for one in colliding]):
        with pytest.raises(NotPlainError, match="hash"):
            through_json(value)
    assert through_json([prime] * 1000 + [-1, -2]) == [prime] * 1000 + [-1, -2]
