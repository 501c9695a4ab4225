"""Tokens of the user, one a hub, in a file that only the user can read.

`VF_HUB_TOKEN` wins over the file, for machines without a person. The file is
`$VF_CREDENTIALS`, otherwise `verifiers/credentials.toml` in the user's data folder.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from verifiers.settings import read_toml

VARIABLE = "VF_HUB_TOKEN"


def credentials_file() -> Path:
    """Where the tokens are kept."""
    if path := os.environ.get("VF_CREDENTIALS"):
        return Path(path)
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "verifiers" / "credentials.toml"


def token_for(hub_url: str) -> str | None:
    """The token for a hub, if there is one."""
    if token := os.environ.get(VARIABLE):
        return token
    return kept_token(hub_url)


def kept_token(hub_url: str) -> str | None:
    """The token that is kept for a hub, whatever the variable says."""
    return _tokens().get(hub_url.rstrip("/"))


def keep_token(hub_url: str, token: str) -> Path:
    """Keep a token, and return where."""
    return _write({**_tokens(), hub_url.rstrip("/"): token})


def forget_token(hub_url: str) -> bool:
    """Forget the token for a hub. Whether there was one."""
    tokens = _tokens()
    found = tokens.pop(hub_url.rstrip("/"), None) is not None
    if found:
        _write(tokens)
    return found


def _tokens() -> dict[str, str]:
    path = credentials_file()
    if not path.is_file():
        return {}
    hubs = read_toml(path).get("hubs", {})
    return {url: str(entry["token"]) for url, entry in hubs.items() if isinstance(entry, dict) and "token" in entry}


def _write(tokens: dict[str, str]) -> Path:
    path = credentials_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # json.dumps writes a string as TOML's basic strings are written.
    entries = [f"[hubs.{json.dumps(url)}]\ntoken = {json.dumps(token)}\n" for url, token in sorted(tokens.items())]
    # A new file (mode 0600 from its first byte) takes the place of the old one.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".credentials-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write("\n".join(entries))
    os.replace(name, path)
    return path
