"""Routes that show projects and releases."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import PlainTextResponse
from sqlalchemy.orm import Session

from hub_server.accounts.auth import HubContext, OptionalPrincipal
from hub_server.accounts.service import Principal
from hub_server.answers import errors_of_text
from hub_server.packages.archives import Wheel, difference, members_of, text_in, wheel_to_open
from hub_server.packages.records import project_info, release_info
from hub_server.packages.service import release_of, releases_of, visible_project
from hub_server.packages.urls import base_url
from verifiers.hub.schema import Difference, ProjectInfo, ReleaseInfo, WheelContents

router = APIRouter(prefix="/api/v1", tags=["packages"])

Version = Annotated[str, Query(max_length=100, description="A version, in any spelling.")]
WheelName = Annotated[str | None, Query(max_length=255, description="Another wheel of the release than the first.")]

TEXT_HEADERS = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "default-src 'none'; sandbox"}
"""Text of somebody else is shown as nothing but text."""


@router.get("/{owner}/{name}")
def project(
    owner: str, name: str, request: Request, context: HubContext, principal: OptionalPrincipal
) -> ProjectInfo:
    """A project, its releases from the newest on, and which of them an unpinned id means."""
    with context.database.read() as session:
        found = visible_project(session, owner, name, principal)
        return project_info(base_url(request, context.settings), found, releases_of(session, found))


@router.get("/{owner}/{name}/diff")
def diff(
    owner: str, name: str, a: Version, b: Version, context: HubContext, principal: OptionalPrincipal
) -> Difference:
    """What changed from release `a` to release `b`: files with unified diffs of text, dependencies, metadata, needs."""
    with context.database.read() as session:
        before, after = (_wheel(session, owner, name, version, principal) for version in (a, b))
    return difference(context, before, after)


@router.get("/{owner}/{name}/{version}")
def release(
    owner: str, name: str, version: str, request: Request, context: HubContext, principal: OptionalPrincipal
) -> ReleaseInfo:
    """One release: its facts, files, warnings and README. Any spelling of the version will do."""
    with context.database.read() as session:
        found = visible_project(session, owner, name, principal)
        return release_info(base_url(request, context.settings), found, release_of(session, found, version))


@router.get("/{owner}/{name}/{version}/files/")
def members(
    owner: str, name: str, version: str, context: HubContext, principal: OptionalPrincipal, wheel: WheelName = None
) -> WheelContents:
    """What the wheel of a release holds."""
    with context.database.read() as session:
        found = _wheel(session, owner, name, version, principal, wheel)
    return members_of(context, found)


@router.get(
    "/{owner}/{name}/{version}/files/{path:path}",
    response_class=PlainTextResponse,
    responses=errors_of_text(413, 415),
)
def member(
    owner: str, name: str, version: str, path: str, context: HubContext, principal: OptionalPrincipal,
    wheel: WheelName = None,
) -> Response:  # fmt: skip
    """One text file of the wheel of a release, up to 1 MiB, as plain text."""
    with context.database.read() as session:
        found = _wheel(session, owner, name, version, principal, wheel)
    return PlainTextResponse(text_in(context, found, path), headers=TEXT_HEADERS)


def _wheel(
    session: Session, owner: str, name: str, version: str, principal: Principal | None, filename: str | None = None
) -> Wheel:
    project = visible_project(session, owner, name, principal)
    return wheel_to_open(project, release_of(session, project, version), filename)
