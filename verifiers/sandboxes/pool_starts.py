"""How a pool makes one sandbox: which failures another attempt may mend, and how long it waits for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from verifiers.errors import SandboxBusyError, SandboxError, SandboxNotReadyError
from verifiers.sandboxes.sandbox import Provider, Sandbox
from verifiers.sandboxes.spec import SandboxSpec

logger = logging.getLogger(__name__)

ATTEMPTS = 3
"""How often one sandbox is tried to be made, or deleted. Only creation is repeated, never a command."""
PAUSE_S = 0.2
"""Before the second attempt; each further one waits twice as long. Also after a busy answer that names no time."""
LONGEST_PAUSE_S = 30.0


async def started(
    provider: Provider, spec: SandboxSpec, *, start_s: float, wait_s: float | None, busy: Callable[[], None]
) -> Sandbox:
    """A new sandbox, tried again where that can help; a creation that failed has left nothing.

    start_s: seconds of one attempt. wait_s: of all waiting for a provider that has no room, None for no limit; `busy`
    is called each time it has none. Raises what the last attempt raised; SandboxNotReadyError if it took too long.
    """
    attempt, waited, pause = 1, 0.0, PAUSE_S
    while True:
        try:
            async with asyncio.timeout(start_s):
                return await provider.create(spec)
        except SandboxBusyError as error:
            pause = min(error.retry_after or PAUSE_S, LONGEST_PAUSE_S)
            waited += pause
            if wait_s is not None and waited > wait_s:
                raise
            busy()
        except TimeoutError as error:
            if attempt == ATTEMPTS:
                said = f"a sandbox was not ready within {start_s:g} s, {attempt} times"
                raise SandboxNotReadyError(said, cause=error) from error
            attempt += 1
        except SandboxError as error:
            if attempt == ATTEMPTS or not error.retryable:
                raise
            logger.info("a sandbox could not be made, attempt %d of %d: %s", attempt, ATTEMPTS, error)
            pause = PAUSE_S * 2 ** (attempt - 1)
            attempt += 1
        await asyncio.sleep(pause)
