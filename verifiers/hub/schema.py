"""What goes over the wire between a hub and its clients, as pydantic models. The server and the client share it.

Unknown fields are kept out of nothing: a newer hub may say more than an older client knows.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal

from pydantic import BaseModel, Field

Visibility = Literal["public", "private"]
Status = Literal["active", "archived", "deprecated", "quarantined"]
YankClass = Literal["broken-reward", "leak", "unsafe", "dataset-gone", "other"]


class Problem(BaseModel):
    """Every error body of the API."""

    code: str
    message: str
    hint: str | None = None
    docs: str | None = None


class Whoami(BaseModel):
    """Who a token acts as, and what it allows."""

    owner: str
    token_id: str
    token_name: str
    scopes: list[str]
    patterns: list[str] = []
    expires_at: dt.datetime | None = None


class FileInfo(BaseModel):
    """One file of a release. `url` is absolute and stable; `size` is in bytes."""

    filename: str
    kind: Literal["wheel", "sdist"]
    url: str
    size: int
    sha256: str
    uploaded_at: dt.datetime
    requires_python: str | None = None


class Yank(BaseModel):
    """Why a release was withdrawn. Installers pass it over unless it is pinned."""

    reason: str = Field(min_length=1, max_length=2000)
    cause: YankClass = "other"
    at: dt.datetime | None = None


class ReleaseInfo(BaseModel):
    """One version of a project. `digest` is the sha256 of its wheel."""

    id: str  # owner/name@version
    version: str
    created_at: dt.datetime
    serial: int
    summary: str | None = None
    requires_python: str | None = None
    digest: str | None = None
    yanked: Yank | None = None
    files: list[FileInfo] = []
    facts: dict[str, Any] = {}
    warnings: list[str] = []


class ProjectInfo(BaseModel):
    """A project and its versions, newest first (PEP 440). `latest` is the one that an unpinned id means."""

    owner: str
    name: str
    visibility: Visibility
    status: Status = "active"
    status_reason: str | None = None
    latest: str | None = None
    serial: int = 0
    releases: list[ReleaseInfo] = []


class NewFile(BaseModel):
    """A file that an upload session is to get."""

    name: str
    size: int = Field(ge=1)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class NewSession(BaseModel):
    """What opens an upload session."""

    version: str
    files: list[NewFile] = Field(min_length=1, max_length=100)
    visibility: Visibility | None = None  # of a project that is made by this; None is public


class SessionFileInfo(NewFile):
    """A file of a session: where its bytes go, and how many are there."""

    url: str
    received: int = 0
    stored: bool = False


class SessionInfo(BaseModel):
    """An upload session."""

    id: str
    owner: str
    name: str
    version: str
    visibility: Visibility
    state: Literal["open", "published", "aborted"]
    expires_at: dt.datetime
    files: list[SessionFileInfo]


class ResolveRequest(BaseModel):
    """Ids with constraints (`owner/name`, `owner/name@1.2`, `owner/name>=1.2,<2`), as of a serial or a moment."""

    requirements: list[str] = Field(min_length=1, max_length=200)
    serial: int | None = Field(None, ge=0)
    before: dt.datetime | None = None
    prereleases: bool = False
    python: str | None = None  # a version such as 3.11: releases that need another are passed over


class ResolvedRelease(BaseModel):
    """One pinned release of an answer."""

    id: str
    owner: str
    name: str
    version: str
    index_url: str
    requires_python: str | None = None
    yanked: Yank | None = None
    files: list[FileInfo]
    requires_dist: list[str] = []
    direct_urls: list[str] = []
    required_by: list[str] = []  # ids whose hub dependency this is; empty for what was asked for


class ResolveAnswer(BaseModel):
    """Every hub release that the ids need, pinned. Byte-identical for the same request and serial."""

    schema_version: Literal[1] = 1
    serial: int
    releases: list[ResolvedRelease]
