"""The search: of all answers that satisfy every constraint, the highest, and always the same one.

    found = Search(wanted, universe).run()       # {"alice/my-env": Release, …}

Projects are decided one at a time: first those asked for, then those that their releases need, each by id; versions
from the highest down. The first full answer is the result, which makes it the highest in that order (a law that the
tests check against trying everything). Where nothing fits, the search goes back to the last decision that had a part
in it, not merely to the last one (conflict-directed backjumping: Prosser, "Hybrid algorithms for the constraint
satisfaction problem", 1993), so an unrelated project costs nothing. It knows no database and no rights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from packaging.version import Version

from hub_server.resolution.errors import NoAnswer, TooHard
from hub_server.resolution.requirements import Requirement

MAX_CHECKS = 500_000
"""Comparisons of a version with a constraint before the search is given up: about a second."""
MAX_RELEASES = 300
_REASONS = 8
"""Reasons in a refusal."""


@dataclass(frozen=True)
class Candidate:
    """A release that may be taken: its version, and which hub projects it needs. `row` is the caller's own."""

    project: str
    version: Version
    shown: str
    needs: tuple[Requirement, ...] = ()
    row: Any = None

    @property
    def id(self) -> str:
        """`owner/name@version`."""
        return f"{self.project}@{self.shown}"


class Universe(Protocol):
    """What there is."""

    def offer(self, project: str, asker: str) -> Sequence[Candidate]:
        """The releases of a project that may be taken, highest first. Refuses a project that may not be had at all."""

    def passed_over(self, project: str) -> Sequence[str]:
        """Why its other releases may not be taken, one sentence each."""


class Search:
    """One search for what satisfies `wanted`. Good for one `run`."""

    def __init__(self, wanted: Sequence[Requirement], universe: Universe) -> None:
        self._asked = sorted({one.project for one in wanted})
        self._universe = universe
        self._limits: dict[str, list[Requirement]] = {project: [] for project in self._asked}
        for one in sorted(wanted, key=str):
            self._limits[one.project].append(one)
        self._taken: dict[str, Candidate] = {}
        self._checks = 0
        self._reasons: dict[str, None] = {}  # a set that keeps its order

    def run(self) -> dict[str, Candidate]:
        """The answer by project. NoAnswer if nothing satisfies all, TooHard if it would take too long to know."""
        # What the request rules out by itself is said first.
        impossible = [project for project in self._asked if not self._has_choice(project)]
        if impossible or self._decide() is not None:
            shown = list(self._reasons)[:_REASONS]
            left = len(self._reasons) - len(shown)
            raise NoAnswer("; ".join([*shown, f"and {left} reasons more"] if left else shown))
        return self._taken

    def _decide(self) -> set[str] | None:
        """Decide the rest. None once all is decided, else the projects whose releases leave nothing."""
        project = self._next()
        if project is None:
            return None
        if len(self._taken) >= MAX_RELEASES:
            raise TooHard(f"the answer has more than {MAX_RELEASES} releases")
        first = self._limits[project][0]
        culprits = {first.asking}  # without that one, this project would not have to be decided at all
        for candidate in self._universe.offer(project, first.asker):
            against: set[str] | None = self._excluded_by(candidate)
            if not against:
                self._take(candidate)
                against = self._excluded_needs(candidate) or self._decide()
                if against is None:
                    return None
                self._put_back(candidate)
                if project not in against:
                    return against
            culprits |= against - {project}
        return culprits

    def _next(self) -> str | None:
        """What is decided next: asked for before needed, then by id."""
        undecided = [project for project in self._limits if project not in self._taken]
        return min(undecided, key=lambda project: (project not in self._asked, project), default=None)

    def _take(self, candidate: Candidate) -> None:
        self._taken[candidate.project] = candidate
        for need in candidate.needs:
            self._limits.setdefault(need.project, []).append(need)

    def _put_back(self, candidate: Candidate) -> None:
        del self._taken[candidate.project]
        for need in reversed(candidate.needs):
            limits = self._limits[need.project]
            limits.pop()
            if not limits:
                del self._limits[need.project]

    def _excluded_by(self, candidate: Candidate) -> set[str]:
        """The project whose decision excludes a candidate; one suffices. Empty if none does."""
        for limit in self._limits[candidate.project]:
            if not self._admits(limit, candidate):
                self._because(f"{limit.told()}, which excludes {candidate.id}")
                return {limit.asking}
        return set()

    def _excluded_needs(self, candidate: Candidate) -> set[str]:
        """The projects that together with a candidate leave nothing for what it needs."""
        for need in candidate.needs:
            taken = self._taken.get(need.project)
            if taken is not None and not self._admits(need, taken):
                self._because(f"{need.told()}, which excludes {taken.id}")
                return {candidate.project, need.project}
            if taken is None and not self._has_choice(need.project):
                return {limit.asking for limit in self._limits[need.project]}
        return set()

    def _has_choice(self, project: str) -> bool:
        """Whether a release is left by what is decided so far."""
        limits = self._limits[project]
        for candidate in self._universe.offer(project, limits[-1].asker):
            if all(self._admits(limit, candidate) for limit in limits):
                return True
        self._because(f"{' and '.join(limit.told() for limit in limits)}, but {self._there_is(project)}")
        return False

    def _there_is(self, project: str) -> str:
        shown = [candidate.shown for candidate in self._universe.offer(project, "")]
        there = f"there is {', '.join(shown[:5])}{', …' if len(shown) > 5 else ''}" if shown else "there is none"
        return "; ".join([there, *list(self._universe.passed_over(project))[:3]])

    def _admits(self, limit: Requirement, candidate: Candidate) -> bool:
        self._checks += 1
        if self._checks > MAX_CHECKS:
            raise TooHard("the search for an answer was given up: there are too many combinations")
        return limit.admits(candidate.version)

    def _because(self, reason: str) -> None:
        self._reasons.setdefault(reason)
