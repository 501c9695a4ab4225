"""Whether pinned releases are still what they were, asked with the standard library.

`hub install -r` needs nothing else of a hub where the wheels are in the cache: loading an HTTP client and its records
takes several times as long as uv does.

    for one in ask_state("https://hub.example", token, ["alice/demo@0.1.0"], "3.11"):
        one.id, one.digests, one.yanked
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass

from verifiers.errors import HubError, HubUnavailableError

TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class State:
    """What a hub says of a release now: the sha256 of its files, and class and reason of a yank."""

    id: str
    digests: frozenset[str]
    yanked: str | None


def ask_state(hub: str, token: str | None, ids: Sequence[str], python: str) -> list[State]:
    """One request for all of them. HubError if the hub does not tell."""
    body = json.dumps({"requirements": list(ids), "python": python}).encode()
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    request = urllib.request.Request(f"{hub}/api/v1/resolve", body, headers)  # noqa: S310 - read_lock saw to http(s)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:  # noqa: S310
            answer = json.load(response)
        return [_state(release) for release in answer["releases"]]
    except urllib.error.HTTPError as error:
        raise HubError(_message(error)) from error
    except (OSError, http.client.HTTPException) as error:
        raise HubUnavailableError(f"the hub {hub} does not answer: {error}", cause=error) from error
    except (ValueError, KeyError, TypeError) as error:
        raise HubError(f"{hub} did not answer as a hub does", cause=error) from error


def _state(release: dict[str, object]) -> State:
    yank, files = release.get("yanked"), release["files"]
    told = f"{yank['cause']}: {yank['reason']}" if isinstance(yank, dict) else None
    digests = frozenset(str(file["sha256"]) for file in files) if isinstance(files, list) else frozenset()
    return State(str(release["id"]), digests, told)


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["message"])
    except (ValueError, KeyError, TypeError, OSError):
        return str(error)
