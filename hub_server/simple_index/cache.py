"""Answers that are kept for as long as the journal says that they hold, the least recently used going first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from hub_server.simple_index.watch import JournalWatch

V = TypeVar("V")


class Entry(Generic[V]):
    """A kept value: what it hangs on, and up to which serial it is known to hold."""

    __slots__ = ("as_of", "tags", "value", "weight")

    def __init__(self, value: V, tags: tuple[str, ...], as_of: int, weight: int) -> None:
        self.value = value
        self.tags = tags
        self.as_of = as_of
        self.weight = weight


class Cache(Generic[V]):
    """Values by key, up to `limit` of weight together: a number of entries, or of bytes."""

    def __init__(self, watch: JournalWatch, limit: int) -> None:
        self._watch = watch
        self._limit = limit
        self._weight = 0
        self._entries: OrderedDict[Hashable, Entry[V]] = OrderedDict()

    def find(self, key: Hashable) -> Entry[V] | None:
        """The entry, if it still holds."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.as_of != self._watch.serial:
            if not self._watch.unchanged(entry.tags, entry.as_of):
                self._drop(key)
                return None
            entry.as_of = self._watch.serial
        self._entries.move_to_end(key)
        return entry

    def keep(self, key: Hashable, value: V, tags: tuple[str, ...], as_of: int, weight: int = 1) -> Entry[V]:
        """Keep a value that was read at serial `as_of` or later."""
        self._drop(key)
        entry = Entry(value, tags, as_of, weight)
        self._entries[key] = entry
        self._weight += weight
        while self._weight > self._limit and len(self._entries) > 1:
            self._drop(next(iter(self._entries)))
        return entry

    def _drop(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._weight -= entry.weight
