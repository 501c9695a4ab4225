"""The names of the whole-hub index, in memory: after a change only the names that it touched are asked for.

A release of a project that is listed changes nothing here, so the list of a busy hub is not made anew for each.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from hub_server.simple_index.watch import JournalWatch

MANY = 500
"""Changed names above which all names are read again."""

Ask = Callable[[Collection[str] | None], Awaitable[set[str]]]
"""Which of these names are listed; which are at all, for None."""


class PlainNames:
    """`version` counts the changes of `names`."""

    def __init__(self, watch: JournalWatch) -> None:
        self.names: frozenset[str] = frozenset()
        self.version = 0
        self._watch = watch
        self._as_of: int | None = None

    async def refresh(self, ask: Ask) -> None:
        """Bring the names up to what the watch knows."""
        serial = self._watch.serial
        if self._as_of == serial:
            return
        changed = None if self._as_of is None else self._watch.changed_since(self._as_of)
        if changed is None or len(changed) > MANY:
            names = frozenset(await ask(None))
        elif changed:
            listed = await ask(changed)
            names = self.names if self.names & changed == listed else (self.names - changed) | listed
        else:
            names = self.names
        if self._as_of is not None and self._as_of > serial:
            return  # a later request was answered first
        self._as_of = serial
        if names != self.names or self.version == 0:
            self.names = names
            self.version += 1
