"""All checks, in the order in which they are made: importing this module fills the table."""

from __future__ import annotations

from verifiers.validation import (
    check_data,
    check_floor,
    check_imports,
    check_load,
    check_oracle,
    check_project,
    check_repeats,
    check_rollouts,
    check_rubric,
    check_tricks,
)
from verifiers.validation.findings import CHECKS, Findings, Severity, check
from verifiers.validation.subject import Subject

__all__ = ["CHECKS", "PROCESS"]

PROCESS = "process"


@check(
    PROCESS,
    Severity.ERROR,
    why="It would end, or hang, the command or the trainer that runs the environment.",
    fix="Raise an exception instead of exiting, and bound what may take long: downloads, searches, comparisons.",
)
def process(_: Subject) -> Findings:
    """The environment's code ends in time, and leaves the process alone."""
    yield from ()  # whoever watches the process tells


_ORDER = (
    *(check_project, check_imports, check_load, check_data, check_rubric),
    *(check_rollouts, check_oracle, check_floor, check_tricks, check_repeats),
)
"""Each needs what the ones before it have found; within a module the checks stand in order."""


def _position(name: str) -> int:
    modules = [module.__name__ for module in _ORDER]
    home = CHECKS[name].run.__module__
    return modules.index(home) if home in modules else len(modules)


_sorted = {name: CHECKS[name] for name in sorted(CHECKS, key=_position)}
CHECKS.clear()
CHECKS.update(_sorted)
