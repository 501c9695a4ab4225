"""Routes that show projects and releases."""

from __future__ import annotations

from fastapi import APIRouter, Request

from hub_server.accounts.auth import HubContext, OptionalPrincipal
from hub_server.packages.records import project_info, release_info
from hub_server.packages.service import release_of, releases_of, visible_project
from hub_server.packages.urls import base_url
from verifiers.hub.schema import ProjectInfo, ReleaseInfo

router = APIRouter(prefix="/api/v1", tags=["packages"])


@router.get("/{owner}/{name}")
def project(
    owner: str, name: str, request: Request, context: HubContext, principal: OptionalPrincipal
) -> ProjectInfo:
    """A project, its releases from the newest on, and which of them an unpinned id means."""
    with context.database.read() as session:
        found = visible_project(session, owner, name, principal)
        return project_info(base_url(request, context.settings), found, releases_of(session, found))


@router.get("/{owner}/{name}/{version}")
def release(
    owner: str, name: str, version: str, request: Request, context: HubContext, principal: OptionalPrincipal
) -> ReleaseInfo:
    """One release: its facts, files, warnings and README. Any spelling of the version will do."""
    with context.database.read() as session:
        found = visible_project(session, owner, name, principal)
        return release_info(base_url(request, context.settings), found, release_of(session, found, version))
