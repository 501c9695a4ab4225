"""`hub token`: make, list and revoke tokens."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import quote

from cyclopts import App, Parameter

from verifiers.cli.hub.flags import NO_FLAGS, HubFlags
from verifiers.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from verifiers.hub.client import HubClient
    from verifiers.hub.schema import TokenInfo

app = App(name="token", help="Make, list and revoke tokens.", help_format="plaintext")

ScopeName = Literal["read", "publish", "publish:new", "yank", "results", "admin"]
_TOKEN = re.compile(r"envhub_[0-9A-Za-z]{38}")


@app.command
def create(
    name: Annotated[str, Parameter(help="What it is for, as in 'ci of my-env'.")],
    *,
    scope: Annotated[list[ScopeName], Parameter(help="What it allows; once for each.", negative="")],
    project: Annotated[
        list[str] | None,
        Parameter(help="Only these projects: OWNER/NAME, with * for any characters; once for each.", negative=""),
    ] = None,
    days: Annotated[int | None, Parameter(help="Days that it lasts [90, or as long as yours].")] = None,
    forever: Annotated[bool, Parameter(help="It has no end.", negative="")] = False,
    owner: Annotated[str | None, Parameter(help="An organisation that it acts as [you].")] = None,
    flags: HubFlags = NO_FLAGS,
) -> ExitCode:
    """Make a token that allows no more than yours, and print it, this once."""
    from verifiers.hub.schema import CreatedToken

    output = flags.output()
    asked = {
        "name": name, "scopes": list(dict.fromkeys(scope)), "patterns": project or [], "days": days,
        "forever": forever, "owner": owner,
    }  # fmt: skip
    with flags.client() as hub:
        made = hub.read(hub.request("POST", "/api/v1/tokens", json=asked), CreatedToken)
    output.event(made.model_dump(mode="json"))
    output.result(made.token)
    output.note(f"token {made.id} of {made.owner}, {', '.join(made.scopes)}, {_end(made)}; it is shown this once")
    return ExitCode.OK


@app.command(name="list")
def list_tokens(
    *,
    owner: Annotated[str | None, Parameter(help="Of this organisation [of you].")] = None,
    everything: Annotated[
        bool, Parameter(name="--all", help="Revoked and expired ones, too.", negative="")
    ] = False,
    flags: HubFlags = NO_FLAGS,
) -> ExitCode:
    """What tokens there are. Never their texts, which the hub does not keep."""
    output = flags.output()
    with flags.client() as hub:
        tokens = [token for token in _tokens(hub, owner) if everything or _is_valid(token)]
    output.event({"hub": hub.url, "tokens": [token.model_dump(mode="json") for token in tokens]})
    rows = [
        [
            token.id, token.name, " ".join(token.scopes), " ".join(token.patterns) or "every project", _end(token),
            f"{token.last_used_at:%Y-%m-%d}" if token.last_used_at else "never",
        ]
        for token in tokens
    ]  # fmt: skip
    output.table(["id", "name", "scopes", "for", "state", "used"], rows)
    return ExitCode.OK


@app.command
def revoke(
    token_id: Annotated[str, Parameter(help="Its id (hub token list); never its text.")],
    /,
    *,
    owner: Annotated[str | None, Parameter(help="The organisation whose token it is [you].")] = None,
    with_derived: Annotated[bool, Parameter(help="And all tokens that were made with it.", negative="")] = False,
    dry_run: Annotated[bool, Parameter(help="Say what would be revoked.", negative="")] = False,
    yes: Annotated[bool, Parameter(alias="-y", help="Do not ask.", negative="")] = False,
    flags: HubFlags = NO_FLAGS,
) -> ExitCode:
    """Revoke a token. What uses it is refused from the next request on."""
    from verifiers.hub.schema import TokenList

    if _TOKEN.search(token_id):
        raise ConfigError(
            "that is a token itself, which others can read on the command line",
            hint="Revoke it by its id (hub token list), or report it: hub token leaked < FILE",
        )
    output = flags.output()
    with flags.client() as hub:
        known = {token.id: token for token in _tokens(hub, owner)}
        concerned = _with_derived(token_id, known) if with_derived else [token_id]
        valid = [known[one] for one in concerned if one in known and _is_valid(known[one])]
        names = ", ".join(f"{token.name} ({token.id})" for token in valid) or token_id
        if dry_run:
            output.event({"dry_run": True, "tokens": [token.model_dump(mode="json") for token in valid]})
            output.result(f"would be revoked: {names}")
            return ExitCode.OK
        name = known[token_id].name if token_id in known else token_id
        if not output.confirm_name(f"Revoke {names}?", name, yes=yes):
            raise ConfigError("nothing was revoked", hint="Type the token's name when asked, or give --yes.")
        query = "?derived=true" if with_derived else ""
        done = hub.read(hub.request("DELETE", f"/api/v1/tokens/{quote(token_id, safe='')}{query}"), TokenList)
    output.event({"dry_run": False, **done.model_dump(mode="json")})
    told = ", ".join(f"{token.name} ({token.id})" for token in done.tokens)
    output.result(f"revoked: {told}" if told else f"{token_id} was not valid any more")
    return ExitCode.OK


@app.command
def leaked(*, flags: HubFlags = NO_FLAGS) -> ExitCode:
    """Report what stdin holds of tokens: the hub revokes those that are valid. Anyone may do it."""
    from verifiers.hub.client import HubClient, hub_url
    from verifiers.hub.schema import LeakedTokens, Received

    output = flags.output()
    found = sorted(set(_TOKEN.findall(sys.stdin.read())))
    with HubClient(hub_url(flags.hub_url), "") as hub:
        for start in range(0, len(found), 100):
            hub.post("/api/v1/tokens/leaked", LeakedTokens(tokens=found[start : start + 100]), Received)
    output.event({"reported": len(found)})
    output.result(f"reported: {len(found)}; those that were valid are no longer")
    return ExitCode.OK


def _tokens(hub: HubClient, owner: str | None) -> list[TokenInfo]:
    from verifiers.hub.schema import TokenList

    return hub.get("/api/v1/tokens", TokenList, owner=owner).tokens


def _with_derived(token_id: str, known: dict[str, TokenInfo]) -> list[str]:
    """The token, and what was made with it, with that, and so on."""
    found = [token_id]
    for one in found:
        found += [token.id for token in known.values() if token.parent_id == one]
    return found


def _is_valid(token: TokenInfo) -> bool:
    import datetime as dt

    ended = token.expires_at is not None and token.expires_at <= dt.datetime.now(dt.UTC)
    return token.revoked_at is None and not ended


def _end(token: TokenInfo) -> str:
    if token.revoked_at is not None:
        return f"revoked on {token.revoked_at:%Y-%m-%d}"
    return f"valid until {token.expires_at:%Y-%m-%d}" if token.expires_at else "does not expire"
