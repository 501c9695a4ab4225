"""Who one is at a hub: `hub login`, `hub logout`, `hub whoami`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from cyclopts import Parameter

from verifiers.cli.hub.flags import NO_FLAGS, HubFlags
from verifiers.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from verifiers.cli.output import Output
    from verifiers.hub.schema import Whoami

SCOPES = {
    "read": "find and install private projects",
    "publish": "publish releases of projects that are there",
    "publish:new": "publish, new projects too",
    "yank": "withdraw releases, and offer them again",
    "results": "record results",
    "admin": "all of it; tokens, members, visibility, deletion",
}


def login(
    *,
    token: Annotated[
        str | None, Parameter(help="- reads it from stdin; without it, it is asked for.", allow_leading_hyphen=True)
    ] = None,
    keyring: Annotated[bool, Parameter(help="Keep it in the system's keyring [a file].", negative="")] = False,
    flags: HubFlags = NO_FLAGS,
) -> ExitCode:
    """Keep a token for a hub, once the hub has said whose it is."""
    from verifiers.hub.client import HubClient, hub_url
    from verifiers.hub.credentials import keep_token
    from verifiers.hub.schema import Whoami
    from verifiers.settings import HUB_TOKEN

    output = flags.output()
    url = hub_url(flags.hub_url)
    text = _read_token(token, url)
    if urlsplit(url).scheme == "http" and urlsplit(url).hostname not in ("127.0.0.1", "::1", "localhost"):
        output.warning(f"{url} is not encrypted: others on the network can read the token")
    with HubClient(url, text) as hub:
        answer = hub.get("/api/v1/whoami", Whoami)
    place = keep_token(url, text, in_keyring=keyring)
    output.event({**answer.model_dump(mode="json"), "hub": url, "kept_in": place})
    output.result(f"logged in as {answer.owner} at {url}, {_until(answer)}; the token is in {place}")
    if os.environ.get(HUB_TOKEN):
        output.warning(f"{HUB_TOKEN} is set and wins over what was kept now")
    _hint_url(url, output)
    return ExitCode.OK


def _read_token(given: str | None, url: str) -> str:
    """From stdin or a hidden prompt: what stands on a command line, other users of the machine can read."""
    if given not in (None, "-"):
        raise ConfigError(
            "a token is never given on the command line, where others can read it",
            hint="Pipe it in (hub login --token - < FILE), or leave --token out and type it.",
        )
    if given is None and sys.stdin.isatty():
        import getpass

        text = getpass.getpass(f"Token for {url} (not shown): ")
    else:
        text = sys.stdin.readline()
    text = text.strip()
    if not text:
        hint = "Pipe it in (hub login --token - < FILE), or set VF_HUB_TOKEN instead of logging in."
        raise ConfigError("no token was given", hint=hint)
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigError("that is no token", hint="A token is one word that begins with envhub_.")
    return text


def _hint_url(url: str, output: Output) -> None:
    """Where only --hub-url named the hub, the next command would not know it."""
    from verifiers.hub.client import find_hub_url

    if find_hub_url() != url:
        output.hint(f"export VF_HUB_URL={url} makes it the hub of the commands that follow")


def logout(
    *,
    revoke: Annotated[bool, Parameter(help="Revoke the token at the hub first.", negative="")] = False,
    flags: HubFlags = NO_FLAGS,
) -> ExitCode:
    """Forget the token that is kept for a hub."""
    from verifiers.hub.client import HubClient, hub_url
    from verifiers.hub.credentials import forget_token, kept_token
    from verifiers.hub.schema import Whoami

    output = flags.output()
    url = hub_url(flags.hub_url)
    kept = kept_token(url)
    if revoke and kept is not None:
        with HubClient(url, kept) as hub:
            hub.request("DELETE", f"/api/v1/tokens/{hub.get('/api/v1/whoami', Whoami).token_id}")
    found = forget_token(url)
    output.event({"hub": url, "forgotten": found, "revoked": revoke and kept is not None})
    done = "forgotten and revoked" if revoke and found else "forgotten" if found else "not kept here"
    output.result(f"the token for {url} is {done}")
    return ExitCode.OK


def whoami(*, flags: HubFlags = NO_FLAGS) -> ExitCode:
    """Who the token acts as, and what it allows."""
    from verifiers.hub.schema import Whoami

    output = flags.output()
    with flags.client() as hub:
        answer = hub.get("/api/v1/whoami", Whoami)
    output.event({**answer.model_dump(mode="json"), "hub": hub.url})
    output.result(f"{answer.owner} at {hub.url}{', an admin of the hub' if answer.site_admin else ''}")
    output.result(f"token {answer.token_id} ({answer.token_name}), {_until(answer)}")
    output.result(f"for {', '.join(answer.patterns) if answer.patterns else 'every project'}\n")
    allowed = _allowed(answer.scopes)
    rows = [[scope, "yes" if scope in allowed else "no", meaning] for scope, meaning in SCOPES.items()]
    output.table(["scope", "allowed", "what for"], rows)
    return ExitCode.OK


def _allowed(scopes: list[str]) -> set[str]:
    """What the scopes allow, including what they imply."""
    if "admin" in scopes:
        return set(SCOPES)
    implied = {"read"} | ({"publish"} if "publish:new" in scopes else set())
    return {*scopes, *implied}


def _until(answer: Whoami) -> str:
    return f"valid until {answer.expires_at:%Y-%m-%d}" if answer.expires_at else "does not expire"
