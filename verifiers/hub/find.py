"""Finding projects of a hub, and what is to know of one: what `hub search`, `hub info` and `hub versions` show.

    for hit in search(hub, "word ladder", limit=50): ...
    project, release = look_up(hub, parse_id("alice/my-env"))      # the release that the id means
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from verifiers.errors import HubNotFoundError, HubRefusedError
from verifiers.hub.ids import HubId
from verifiers.hub.schema import ProjectInfo, ReleaseInfo, SearchAnswer, SearchHit

if TYPE_CHECKING:
    from verifiers.hub.client import HubClient

PAGE = 100


def search(hub: HubClient, text: str, limit: int) -> Iterator[SearchHit]:
    """Up to `limit` projects, best first, a page at a time."""
    after: str | None = None
    while limit > 0:
        page = hub.get("/api/v1/search", SearchAnswer, q=text, limit=min(limit, PAGE), after=after)
        yield from page.hits
        limit -= len(page.hits)
        after = page.next
        if after is None:
            return


def project_of(hub: HubClient, project: str) -> ProjectInfo:
    """A project with its versions. HubNotFoundError with near misses, from all of the hub if its owner has none."""
    try:
        return hub.get(f"/api/v1/{project}", ProjectInfo)
    except HubNotFoundError as error:
        if error.hint and "Did you mean" in error.hint:
            raise
        found = [hit.id for hit in search(hub, project.partition("/")[2], 3)]
        if found:
            error.hint = f"Did you mean {' or '.join(found)}?"
        raise


def look_up(hub: HubClient, wanted: HubId) -> tuple[ProjectInfo, ReleaseInfo]:
    """The project, and the release that an id means: the pinned one, the latest, or the highest within the bounds."""
    project = project_of(hub, wanted.project)
    version = wanted.version or (project.latest if not wanted.specifier else _highest(project, wanted.specifier))
    if version is None:
        has = ", ".join(release.version for release in project.releases[:5]) or "none"
        raise HubRefusedError(
            f"{wanted} has no release that fits; {wanted.project} has {has}",
            hint=f"hub versions {wanted.project} lists them, with yanked ones and pre-releases.",
        )
    return project, hub.get(f"/api/v1/{wanted.project}/{version}", ReleaseInfo)


def _highest(project: ProjectInfo, specifier: str) -> str | None:
    from packaging.specifiers import SpecifierSet

    offered = [release.version for release in project.releases if release.yanked is None]
    fitting = list(SpecifierSet(specifier).filter(offered))
    return fitting[0] if fitting else None  # they come highest first


def install_lines(hub_url: str, project: ProjectInfo, release: ReleaseInfo) -> list[tuple[str, list[str]]]:
    """How to install a release, safest first. Never with two indexes for pip: it takes the highest version of any,
    so that whoever publishes the name elsewhere would be installed."""
    index = release.index_url or f"{hub_url}/{project.owner}/{project.name}/simple/"
    id, pin = release.id, f"{project.name}=={release.version}"
    return [
        ("with this command", [f"hub install {id}"]),
        ("with uv", [f'uv pip install "{pin}" --index {index}']),
        ("in a project of uv", ["[[tool.uv.index]]", f'name = "{project.owner}-{project.name}"', f'url = "{index}"']),
        ("with pip", [f"hub lock {id} -o pylock.toml", "pip install -r pylock.toml"]),
    ]
