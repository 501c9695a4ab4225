"""Who one is at a hub."""

from __future__ import annotations

from verifiers.cli.hub.flags import NO_FLAGS, HubFlags
from verifiers.errors import ExitCode


def whoami(*, flags: HubFlags = NO_FLAGS) -> ExitCode:
    """Who the token acts as, and what it allows."""
    from verifiers.hub.schema import Whoami

    output = flags.output()
    with flags.client() as hub:
        answer = hub.get("/api/v1/whoami", Whoami)
    output.event({**answer.model_dump(mode="json"), "hub": hub.url})
    expiry = f"until {answer.expires_at:%Y-%m-%d}" if answer.expires_at else "without expiry"
    output.result(f"{answer.owner} at {hub.url}: {', '.join(answer.scopes)}; token {answer.token_name}, {expiry}")
    return ExitCode.OK
