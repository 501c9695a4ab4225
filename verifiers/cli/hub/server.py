"""`hub serve`, `hub admin` and upkeep: the server's own commands, in this Python. The SDK never imports the server."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import NoReturn

from verifiers.errors import MissingExtraError


def become(*arguments: str) -> NoReturn:
    """Replace this process by the server's, which then gets the signals itself. `arguments` begin with the command."""
    if importlib.util.find_spec("fastapi") is None or importlib.util.find_spec("hub_server") is None:
        raise MissingExtraError("hub-server", "a hub of one's own")
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "hub_server", *arguments])  # noqa: S606 - no shell
