"""Absolute, stable addresses of what a hub serves: the same for every caller, so that a lock may keep them."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import Request

from hub_server.settings import Settings


def base_url(request: Request, settings: Settings) -> str:
    """The hub's own URL without a slash at its end: `public_url` where it is set, else how this request reached us."""
    return (settings.public_url or str(request.base_url)).rstrip("/")


def file_url(base: str, owner: str, name: str, sha256: str, filename: str) -> str:
    """Where a file's bytes are, for ever."""
    return f"{base}/files/{owner}/{name}/{sha256}/{quote(filename)}"


def index_url(base: str, owner: str, name: str) -> str:
    """The package-scoped simple index, the one for installs."""
    return f"{base}/{owner}/{name}/simple/"
