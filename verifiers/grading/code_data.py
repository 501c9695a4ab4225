"""Plain data between a submission, the judge and this process: a value becomes JSON that cannot run anything.

    decode(json.loads(json.dumps(encode({"a": (1, 2)}))))       # {"a": (1, 2)}

Standard library only and without state: the text of this module is also part of the programs that run inside the
sandboxes. What `decode` gives is made of exact built-in types, whatever the other side sent, so that `==`, `hash` and
`isinstance` on it run no code but the interpreter's own.

Numbers, texts, None, truth values and lists are themselves; everything else is an object with one key:
t tuple, s set, z frozenset, d dict (pairs), i large int (hex), f float that is not finite, c complex, b bytes,
r range, y an iterator (a generator, say) with what it gives.
"""

from collections.abc import Iterable
from itertools import islice
from operator import itemgetter
from typing import Any

MAX_DEPTH = 100
"""Containers in one another."""
MAX_COLLISIONS = 100
"""Different members of one container with the same hash: more are an attack on the time of whoever compares them."""
MAX_ITERATED = 10_000
"""Items that are taken from an iterator, which may have no end."""
MAX_RANGE = 100_000
PREDICATES = frozenset(
    (
        *("startswith", "endswith", "isdisjoint", "issubset", "issuperset", "is_integer", "equals", "all", "any"),
        *("empty", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric"),
        *("isprintable", "isspace", "istitle", "isupper", "__eq__", "__ne__", "__contains__"),
    )
)
"""Methods that say yes or no about plain data: a submission's own object could say yes to everything."""
_LARGE = 1 << 63
_CONTAINERS: tuple[tuple[type[Iterable[Any]], str], ...] = ((list, ""), (tuple, "t"), (set, "s"), (frozenset, "z"))


class NotPlainError(Exception):
    """A value is no plain data, or what came is no encoding of any. The message says which."""


def encode(value: Any, depth: int = 0) -> Any:
    """The JSON value for plain data; members of subclasses (`Counter`, `IntEnum`, named tuples) as their base.

    Raises NotPlainError for anything else, and for what is nested too deeply (or holds itself).
    """
    if depth > MAX_DEPTH:
        raise NotPlainError(f"it is nested deeper than {MAX_DEPTH}")
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        number = int.__index__(value)
        return number if -_LARGE < number < _LARGE else {"i": hex(number)}
    if isinstance(value, float):
        real = float.__float__(value)
        return real if real - real == 0 else {"f": float.__repr__(real)}
    if isinstance(value, complex):
        return {"c": [encode(value.real), encode(value.imag)]}
    if isinstance(value, bytes | bytearray):
        return {"b": bytes(value).hex()}
    return _encode_container(value, depth + 1)


def _encode_container(value: Any, depth: int) -> Any:
    if isinstance(value, dict):
        return {"d": [[encode(key, depth), encode(item, depth)] for key, item in dict.items(value)]}
    for kind, mark in _CONTAINERS:
        if isinstance(value, kind):
            items = [encode(item, depth) for item in value]
            return {mark: items} if mark else items
    if isinstance(value, range):
        return {"r": [encode(part) for part in (value.start, value.stop, value.step)]}
    if hasattr(value, "__next__"):
        return {"y": [encode(item, depth) for item in islice(value, MAX_ITERATED)]}
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return encode(value.tolist(), depth)
    raise NotPlainError(f"{type(value).__name__} is no plain data")


def decode(data: Any, depth: int = 0) -> Any:
    """The value that an encoding stands for. Raises NotPlainError for what `encode` does not write."""
    if depth > MAX_DEPTH:
        raise NotPlainError(f"it is nested deeper than {MAX_DEPTH}")
    if data is None or type(data) in (bool, int, float, str):
        return data
    if type(data) is list:
        return _decode_all(data, depth + 1)
    if type(data) is not dict or len(data) != 1:
        raise NotPlainError("it is no encoding of plain data")
    ((mark, content),) = data.items()
    try:
        return _decode_marked(mark, content, depth + 1)
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise NotPlainError(f"it is no encoding of plain data: {error}") from None


def _decode_marked(mark: str, content: Any, depth: int) -> Any:
    if mark == "i":
        return int(content, 16)
    if mark == "f":
        return {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}[content]
    if mark == "b":
        return bytes.fromhex(content)
    if mark == "c":
        real, imaginary = (decode(part, depth) for part in content)
        return complex(real, imaginary)
    if mark == "r":
        return _short(range(*(decode(part, depth) for part in content)))
    if mark == "y":
        return iter(_decode_all(content, depth))
    if mark == "t":
        return tuple(_decode_all(content, depth))
    if mark in ("s", "z"):
        return (set if mark == "s" else frozenset)(_decode_all(content, depth))
    if mark == "d":
        keys = _decode_all([key for key, _ in content], depth)
        return dict(zip(keys, _decode_all([item for _, item in content], depth), strict=True))
    raise NotPlainError(f"it is no encoding of plain data: {mark!r:.20}")


def _short(numbers: range) -> range:
    """A range as it is, if going through it is no work."""
    if len(numbers) > MAX_RANGE:
        raise NotPlainError(f"a range of more than {MAX_RANGE} numbers")
    return numbers


def _decode_all(content: list[Any], depth: int) -> list[Any]:
    return _checked([decode(item, depth) for item in content])


def _checked(members: list[Any]) -> list[Any]:
    """The same members. Raises NotPlainError for what would make a hash table of them slow: a megabyte of well-chosen
    integers costs minutes."""
    hashed = sorted(((hash(one), one) for one in members if _is_hashable(one)), key=itemgetter(0))
    first, collisions = None, 0
    for pair in hashed:
        if first is None or pair[0] != first[0]:
            first, collisions = pair, 0
        elif pair[1] != first[1]:
            collisions += 1
            if collisions > MAX_COLLISIONS:
                raise NotPlainError("too many members of a container have the same hash")
    return members


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
