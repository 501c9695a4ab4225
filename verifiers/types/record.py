"""`Record`: a dict whose known fields also read as attributes.

Published environments treat messages, steps and results as dicts (`m["content"]`, `m.get("role")`, `{**m}`,
`json.dumps(m)`) and as objects (`m.content`), often in one file. A record is a real dict, so all of that works on
one object; an optional field that is unset reads as None but is no key.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, ClassVar, Self, TypeVar

R = TypeVar("R", bound="Record")
T = TypeVar("T")


class Record(dict[str, Any]):
    """A dict with attribute access. Subclasses list their optional fields in `_optional`."""

    __slots__ = ()
    _optional: ClassVar[frozenset[str]] = frozenset()

    def __missing__(self, key: str) -> Any:
        if key in self._optional:
            return None
        raise KeyError(key)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no field {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no field {name!r}") from None

    def __reduce__(self) -> tuple[Any, ...]:
        # Rebuilt without __init__: a copy has exactly the keys of the original.
        return (_rebuild, (type(self), dict(self)))

    def __copy__(self) -> Self:
        return _rebuild(type(self), self)

    def copy(self) -> Self:
        """A shallow copy of the same class."""
        return _rebuild(type(self), self)

    def model_dump(self, *, exclude_none: bool = False, **_: Any) -> dict[str, Any]:
        """Plain nested dicts and lists, as code written for pydantic messages expects."""
        return {key: _plain(value) for key, value in self.items() if not (exclude_none and value is None)}

    def model_copy(self, *, update: dict[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with some fields replaced."""
        copied = deepcopy(self) if deep else self.copy()
        copied.update(update or {})
        return copied


def _rebuild(cls: type[R], items: dict[str, Any]) -> R:
    record = cls.__new__(cls)
    dict.update(record, items)
    return record


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


_ATOMS = frozenset({str, int, float, bool, bytes, type(None)})


def plain_copy(value: T) -> T:
    """A deep copy, several times faster than `copy.deepcopy` on what JSON can hold; anything else is left to it."""
    copied: Any = value
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is dict:
        copied = {key: item if type(item) in _ATOMS else plain_copy(item) for key, item in copied.items()}
    elif kind is list:
        copied = [item if type(item) in _ATOMS else plain_copy(item) for item in copied]
    else:
        copied = deepcopy(value)
    same: T = copied
    return same
