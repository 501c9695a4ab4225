"""Rows as the records that go over the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hub_server.packages.models import File, Project, Release
from hub_server.packages.service import latest_of
from hub_server.packages.urls import file_url, index_url
from verifiers.hub.schema import FileInfo, ProjectInfo, ReleaseInfo, Yank

APART = ("metadata_text", "readme", "readme_type", "warnings")
"""Facts that have places of their own."""


def release_id(project: Project, release: Release) -> str:
    """`owner/name@version`."""
    return f"{project.owner.slug}/{project.name}@{release.shown}"


def file_info(base: str, project: Project, file: File) -> FileInfo:
    """One file."""
    return FileInfo(
        filename=file.filename, kind=file.kind,
        url=file_url(base, project.owner.slug, project.name, file.sha256, file.filename),
        size=file.size, sha256=file.sha256, uploaded_at=file.uploaded_at, requires_python=file.requires_python,
    )  # fmt: skip


def offered_files(release: Release) -> list[File]:
    """The files of a release that are not deleted, by name."""
    return sorted((file for file in release.files if file.deleted_at is None), key=lambda file: file.filename)


def wheel_of(files: Sequence[File]) -> File | None:
    """The wheel that stands for a release: the one for any platform where there is one, else the first by name."""
    wheels = [file for file in files if file.kind == "wheel"]
    return min(wheels, key=lambda file: (not file.filename.endswith("-none-any.whl"), file.filename), default=None)


def yank_of(release: Release) -> Yank | None:
    """Why it was withdrawn; None if it is not."""
    if release.yanked_at is None:
        return None
    return Yank(reason=release.yank_reason or "yanked", cause=release.yank_class or "other", at=release.yanked_at)


def short_release(project: Project, release: Release) -> dict[str, Any]:
    """What a list of versions says of each."""
    wheel = wheel_of(offered_files(release))
    return {
        "id": release_id(project, release), "version": release.shown, "created_at": release.created_at,
        "serial": release.serial, "summary": release.summary, "requires_python": release.requires_python,
        "digest": wheel.sha256 if wheel else None, "yanked": yank_of(release),
    }  # fmt: skip


def release_info(base: str, project: Project, release: Release) -> ReleaseInfo:
    """All that is known of one release."""
    return ReleaseInfo(
        **short_release(project, release),
        index_url=index_url(base, project.owner.slug, project.name),
        status=project.status, status_reason=project.status_reason,
        # A quarantined project offers no files (PEP 792).
        files=[file_info(base, project, file) for file in offered_files(release)] if is_offered(project) else [],
        facts={name: value for name, value in release.facts.items() if name not in APART},
        warnings=release.warnings, readme=release.readme, readme_type=release.readme_type,
        check_report=release.check_report,
    )  # fmt: skip


def is_offered(project: Project) -> bool:
    """Whether the project's files may be had."""
    return project.status != "quarantined"


def project_info(base: str, project: Project, releases: Sequence[Release]) -> ProjectInfo:
    """A project with its releases, newest first, without what only one release's own record says."""
    latest = latest_of(releases)
    return ProjectInfo(
        owner=project.owner.slug, name=project.name, visibility=project.visibility, status=project.status,
        status_reason=project.status_reason, latest=latest.shown if latest else None, serial=project.serial,
        index_url=index_url(base, project.owner.slug, project.name),
        releases=[ReleaseInfo(**short_release(project, release)) for release in releases],
    )  # fmt: skip
