"""The pages: start, search, owner, project, release, its contents, difference, and the style sheet that they share.

Private projects look absent to those who may not see them, as in the JSON twins: both come from the same services.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from packaging.version import Version

from hub_server.accounts.auth import HubContext, OptionalPrincipal
from hub_server.packages.archives import difference, members_of, wheel_to_open
from hub_server.packages.models import Project, Release
from hub_server.packages.records import project_info, release_info, short_release
from hub_server.packages.service import latest_of, release_of, releases_of, visible_project
from hub_server.packages.urls import base_url
from hub_server.pages.readme import readme_html
from hub_server.pages.render import STYLE, PageRoute, page
from hub_server.pages.service import newest_releases
from hub_server.pages.shown import checked, needs, recipes
from hub_server.search.service import projects_of, search
from verifiers.hub.schema import ReleaseInfo

NEWEST = 20
HITS = 20
VERSIONS = 50
"""Versions that a project's page lists before it is asked for all."""

ShownVersion = Annotated[str, Query(max_length=100)]

router = APIRouter(route_class=PageRoute, include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/static/hub.css")
def style() -> Response:
    """The one style sheet. Its address in a page changes with it."""
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
    return Response(STYLE, media_type="text/css", headers=headers)


@router.get("/")
def start(request: Request, context: HubContext, principal: OptionalPrincipal) -> Response:
    """Search first, then what is new."""
    with context.database.read() as session:
        found = newest_releases(session, principal, NEWEST)
        newest = [(one.project, ReleaseInfo(**short_release(one.project, one))) for one in found]
        return page(request, "start.html", twin="/api/v1/search", newest=newest)


@router.get("/search")
def search_page(
    request: Request, context: HubContext, principal: OptionalPrincipal,
    q: Annotated[str, Query(max_length=200)] = "", after: Annotated[str | None, Query(max_length=400)] = None,
) -> Response:  # fmt: skip
    """What has these words; without words all projects by name."""
    with context.database.read() as session:
        found = search(session, q, principal, HITS, after)
    given = {"q": q} | ({"after": after} if after else {})
    following = urlencode({"q": q, "after": found.next}) if found.next else None
    return page(
        request, "search.html", twin=f"/api/v1/search?{urlencode(given)}", query=q, found=found, following=following
    )


@router.get("/{owner}")
def owner_page(owner: str, request: Request, context: HubContext, principal: OptionalPrincipal) -> Response:
    """The projects of an owner."""
    with context.database.read() as session:
        found = projects_of(session, owner, principal)
    return page(request, "owner.html", twin=f"/api/v1/owners/{found.owner}/projects", owner=found)


@router.get("/{owner}/{name}")
def project_page(
    owner: str, name: str, request: Request, context: HubContext, principal: OptionalPrincipal, versions: str = ""
) -> Response:
    """How to install it, its README, its versions."""
    base = base_url(request, context.settings)
    with context.database.read() as session:
        found = visible_project(session, owner, name, principal)
        if name != found.name:
            return RedirectResponse(f"{base}/{found.owner.slug}/{found.name}", 301)
        releases = releases_of(session, found)
        shown = latest_of(releases) or next(iter(releases), None)
        info = project_info(base, found, releases)
        number = len(releases) if versions == "all" else VERSIONS
        return page(
            request, "project.html", twin=f"/api/v1/{info.owner}/{info.name}", project=info,
            versions=info.releases[:number], **_release_values(base, found, shown),
        )  # fmt: skip


@router.get("/{owner}/{name}/diff")
def difference_page(
    owner: str, name: str, request: Request, context: HubContext, principal: OptionalPrincipal,
    a: ShownVersion = "", b: ShownVersion = "",
) -> Response:  # fmt: skip
    """What changed from release `a` to release `b`: by default, what the latest one changed."""
    with context.database.read() as session:
        found = visible_project(session, owner, name, principal)
        releases = releases_of(session, found)
        after = release_of(session, found, b) if b else latest_of(releases) or next(iter(releases), None)
        before = release_of(session, found, a) if a else _release_before(releases, after)
        wheels = [wheel_to_open(found, one) for one in (before, after) if one is not None]
        info = project_info(base_url(request, context.settings), found, releases)
    told = difference(context, *wheels) if len(wheels) == 2 else None
    pair = {"a": before.shown if before else "", "b": after.shown if after else ""}
    return page(
        request, "difference.html", twin=f"/api/v1/{info.owner}/{info.name}/diff?{urlencode(pair)}" if told else None,
        project=info, told=told, pair=pair,
    )  # fmt: skip


def _release_before(releases: Sequence[Release], release: Release | None) -> Release | None:
    """The next lower version; `releases` are from the highest down."""
    return next((one for one in releases if release and Version(one.shown) < Version(release.shown)), None)


@router.get("/{owner}/{name}/{version}")
def release_page(
    owner: str, name: str, version: str, request: Request, context: HubContext, principal: OptionalPrincipal
) -> Response:
    """One release. Any spelling of the version leads to the one address."""
    base = base_url(request, context.settings)
    with context.database.read() as session:
        found = visible_project(session, owner, name, principal)
        release = release_of(session, found, version)
        path = f"/{found.owner.slug}/{found.name}/{quote(release.shown)}"
        if (name, version) != (found.name, release.shown):
            return RedirectResponse(base + path, 301)
        info = project_info(base, found, [release])
        return page(
            request, "release.html", twin=f"/api/v1{path}", project=info, **_release_values(base, found, release)
        )


@router.get("/{owner}/{name}/{version}/contents")
def contents_page(
    owner: str, name: str, version: str, request: Request, context: HubContext, principal: OptionalPrincipal
) -> Response:
    """What the wheel of a release holds; a file's link shows its text."""
    with context.database.read() as session:
        found = visible_project(session, owner, name, principal)
        release = release_of(session, found, version)
        wheel = wheel_to_open(found, release)
        path = f"/{found.owner.slug}/{found.name}/{quote(release.shown)}"
    held = members_of(context, wheel)
    return page(request, "contents.html", twin=f"/api/v1{path}/files/", held=held, path=path)


@router.get("/{owner}/")
@router.get("/{owner}/{name}/")
def without_slash(request: Request, context: HubContext, owner: str, name: str = "") -> Response:
    """The address of an owner or a project has no slash at its end."""
    path = "/".join(quote(part, safe="") for part in (owner, name) if part)
    return RedirectResponse(f"{base_url(request, context.settings)}/{path}", 301)


def _release_values(base: str, project: Project, release: Release | None) -> dict[str, Any]:
    """What templates show of a release."""
    if release is None:
        return {"release": None}
    info = release_info(base, project, release)
    return {
        "release": info,
        "recipes": recipes(base, project.owner.slug, project.name, info.version, info.index_url or ""),
        "needs": needs(info.facts),
        "checked": checked(release.check_report, info),
        "readme": readme_html(info.readme, info.readme_type) if info.readme else None,
    }
