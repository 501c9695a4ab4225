"""The environment variables of a process that a test starts."""

from __future__ import annotations

import os
from collections.abc import Mapping

OURS = ("COV", "HUB_", "VF_")
"""Beginnings of the variables that a test sets itself if it wants them: of package, hub and coverage."""


def variables(own: Mapping[str, str], *hidden: str) -> dict[str, str]:
    """This process's variables without `OURS` and those that begin with `hidden`; `own` are added."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith((*OURS, *hidden))}
    return {**kept, **own}
