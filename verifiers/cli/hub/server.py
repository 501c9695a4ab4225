"""`hub serve` and `hub admin`: the server's own commands, in this Python. The SDK never imports the server."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Annotated

from cyclopts import Parameter

from verifiers.errors import MissingExtraError

Tokens = Annotated[str, Parameter(allow_leading_hyphen=True)]


def serve(*arguments: Tokens) -> None:
    """Run a hub on this machine."""
    _become("serve", *arguments)


def admin(*arguments: Tokens) -> None:
    """Owners, tokens and the SDK's wheel, on the hub's machine."""
    _become("admin", *arguments)


def _become(*arguments: str) -> None:
    """Replace this process by the server's, which then gets the signals itself."""
    if importlib.util.find_spec("fastapi") is None or importlib.util.find_spec("hub_server") is None:
        raise MissingExtraError("hub-server", "a hub of one's own")
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "hub_server", *arguments])  # noqa: S606 - no shell
