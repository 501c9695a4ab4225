"""Tokens of the user, one a hub, in a file that only the user can read, or in the keyring of the system.

`VF_HUB_TOKEN` wins over both, for machines without a person. The file is `$VF_CREDENTIALS`, otherwise
`verifiers/credentials.toml` in the user's data folder. It also says which hubs' tokens are in the keyring, so that
the keyring (extra `hub`) is loaded for these only.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from verifiers.errors import ConfigError, MissingExtraError
from verifiers.locks import turn
from verifiers.settings import HUB_TOKEN, read_toml

SERVICE = "verifiers-hub"
"""What the keyring files the tokens under, each with its hub's URL as the user name."""


def credentials_file() -> Path:
    """Where the tokens are kept."""
    if path := os.environ.get("VF_CREDENTIALS"):
        return Path(path)
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "verifiers" / "credentials.toml"


def token_for(hub_url: str) -> str | None:
    """The token for a hub, if there is one."""
    if token := os.environ.get(HUB_TOKEN):
        return token
    return kept_token(hub_url)


def kept_token(hub_url: str) -> str | None:
    """The token that is kept for a hub, whatever the variable says."""
    url = hub_url.rstrip("/")
    entry = _entries().get(url, {})
    if entry.get("keyring") is True:
        return _keyring("read", url)
    return str(entry["token"]) if "token" in entry else None


def keep_token(hub_url: str, token: str, *, in_keyring: bool = False) -> str:
    """Keep a token, and return where: the file's path, or `the keyring`. One that was kept elsewhere is forgotten."""
    url = hub_url.rstrip("/")
    with _one_at_a_time():
        if in_keyring:
            _keyring("write", url, token)
            _write({**_entries(), url: {"keyring": True}})
            return "the keyring"
        with contextlib.suppress(ConfigError, MissingExtraError):  # a keyring that can not be used now
            _forget(url)
        return str(_write({**_entries(), url: {"token": token}}))


def forget_token(hub_url: str) -> bool:
    """Forget the token for a hub. Whether there was one."""
    if not _entries():
        return False  # also where nothing can be written
    with _one_at_a_time():
        return _forget(hub_url.rstrip("/"))


def _forget(url: str) -> bool:
    entries = _entries()
    entry = entries.pop(url, None)
    if entry is None:
        return False
    if entry.get("keyring") is True:
        _keyring("delete", url)
    _write(entries)
    return True


def _one_at_a_time() -> AbstractContextManager[None]:
    """Who changes the file reads and writes all of it: two at once would lose a token."""
    path = credentials_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return turn(path.with_name(f".{path.name}.lock"))


def _entries() -> dict[str, dict[str, Any]]:
    path = credentials_file()
    hubs = read_toml(path).get("hubs", {}) if path.is_file() else {}
    return {url: entry for url, entry in hubs.items() if isinstance(entry, dict)}


def _write(entries: dict[str, dict[str, Any]]) -> Path:
    path = credentials_file()
    # json.dumps writes strings and truth values as TOML writes them.
    tables = [
        f"[hubs.{json.dumps(url)}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in entry.items())
        for url, entry in sorted(entries.items())
    ]
    # A new file (mode 0600 from its first byte) takes the place of the old one.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".credentials-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write("\n".join(tables))
        os.replace(name, path)
    except BaseException:
        os.unlink(name)  # it holds tokens
        raise
    return path


def _keyring(action: str, url: str, token: str = "") -> str | None:
    """Read, write or delete a token in the system's keyring. ConfigError where there is none that can be used."""
    try:
        import keyring
        import keyring.errors
    except ImportError:
        raise MissingExtraError("hub", "the system's keyring") from None
    try:
        if action == "write":
            keyring.set_password(SERVICE, url, token)
        elif action == "delete":
            keyring.delete_password(SERVICE, url)
        else:
            return keyring.get_password(SERVICE, url)
    except keyring.errors.PasswordDeleteError:
        pass  # somebody has removed it there
    except keyring.errors.KeyringError as error:
        raise ConfigError(
            f"the keyring can not be used: {error}",
            hint="Log in without --keyring: the token is then kept in a file that only you can read.",
            cause=error,
        ) from error
    return None
