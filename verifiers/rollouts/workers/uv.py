"""uv, run as a program."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Mapping

from verifiers.errors import EnvironmentInstallError
from verifiers.settings import environ_of_others

logger = logging.getLogger(__name__)

_LAST_LINES = 20


async def uv(*arguments: str, environ: Mapping[str, str] | None = None) -> None:
    """Run uv with the user's own settings and indexes, and these variables, which may hold secrets.

    EnvironmentInstallError with what it said if it fails.

    Cancellation ends it, and the builds that it started.
    """
    from uv import find_uv_bin

    process = await asyncio.create_subprocess_exec(
        *(find_uv_bin(), *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={**environ_of_others(), **(environ or {})},
    )
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    said = output.decode("utf-8", "backslashreplace").strip()
    logger.debug("uv %s: %s", " ".join(arguments), said)
    if process.returncode != 0:
        last = "\n".join(said.splitlines()[-_LAST_LINES:])
        raise EnvironmentInstallError(f"uv {' '.join(arguments[:2])} ended with {process.returncode}:\n{last}")
