"""The bodies of the Simple API, from plain rows: JSON 1.4 (PEP 691, 700, 714, 792) and HTML (PEP 503, 592, 629).

Addresses of files start with a slash: one body serves the whole-hub, the owner's and the package's index, under
whichever name the hub is reached.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

import orjson
from packaging.version import Version

API_VERSION = "1.4"


class FileRow(NamedTuple):
    """One file as the database has it. `yanked` is None, or the reason, which may be empty."""

    version: str
    filename: str
    size: int
    sha256: str
    requires_python: str | None
    metadata_sha256: str | None
    uploaded_at: dt.datetime
    yanked: str | None


class ProjectFacts(NamedTuple):
    """What a page says of its project."""

    owner: str
    name: str
    status: str
    status_reason: str | None
    serial: int


def project_json(project: ProjectFacts, rows: Sequence[FileRow], prefix: str = "") -> bytes:
    """The page of a project. prefix: the path below which the hub is reached."""
    status = {"status": project.status}
    if project.status_reason:
        status["reason"] = project.status_reason
    return orjson.dumps(
        {
            "meta": {"api-version": API_VERSION, "_last-serial": project.serial},
            "name": project.name,
            "project-status": status,
            "versions": list(dict.fromkeys(row.version for row in rows)),
            "files": [_file(project, row, prefix) for row in rows],
            "_env": f"{project.owner}/{project.name}",
        }
    )


def _file(project: ProjectFacts, row: FileRow, prefix: str) -> dict[str, Any]:
    metadata = {"sha256": row.metadata_sha256} if row.metadata_sha256 else False
    return {
        "filename": row.filename,
        "url": file_path(project, row, prefix),
        "hashes": {"sha256": row.sha256},
        "size": row.size,
        "upload-time": _moment(row.uploaded_at),
        **({"requires-python": row.requires_python} if row.requires_python else {}),
        "core-metadata": metadata,
        "dist-info-metadata": metadata,  # the name before PEP 714
        "yanked": False if row.yanked is None else row.yanked or True,
    }


def file_path(project: ProjectFacts, row: FileRow, prefix: str = "") -> str:
    """Where a file is, for ever. Every part is plain ASCII that needs no escaping (`hub.package.names`), but for `+`
    and `!`, which a path may hold as they are."""
    return f"{prefix}/files/{project.owner}/{project.name}/{row.sha256}/{row.filename}"


def _moment(at: dt.datetime) -> str:
    return f"{at.astimezone(dt.UTC):%Y-%m-%dT%H:%M:%S.%f}Z"


def project_html(project: ProjectFacts, rows: Sequence[FileRow], prefix: str = "") -> bytes:
    """The same as HTML, which has no place for sizes and upload times."""
    metas = [f'<meta name="pypi:project-status" content="{project.status}">']
    if project.status_reason:
        metas.append(f'<meta name="pypi:project-status-reason" content="{escape(project.status_reason)}">')
    anchors = [_anchor(project, row, prefix) for row in rows]
    return _document(f"Links for {project.name}", metas, anchors)


def _anchor(project: ProjectFacts, row: FileRow, prefix: str) -> str:
    attributes = [f'href="{file_path(project, row, prefix)}#sha256={row.sha256}"']
    if row.requires_python:
        attributes.append(f'data-requires-python="{escape(row.requires_python)}"')
    if row.metadata_sha256:
        attributes.append(f'data-core-metadata="sha256={row.metadata_sha256}"')
        attributes.append(f'data-dist-info-metadata="sha256={row.metadata_sha256}"')
    if row.yanked is not None:
        attributes.append(f'data-yanked="{escape(row.yanked)}"')
    return f"<a {' '.join(attributes)}>{row.filename}</a><br>"


def listing_json(names: Iterable[str]) -> bytes:
    """The projects of an index, by their normal names."""
    return orjson.dumps({"meta": {"api-version": API_VERSION}, "projects": [{"name": name} for name in names]})


def listing_html(names: Iterable[str]) -> bytes:
    """The same as HTML."""
    return _document("Simple index", [], [f'<a href="{name}/">{name}</a><br>' for name in names])


def _document(title: str, metas: Sequence[str], lines: Sequence[str]) -> bytes:
    head = [
        "<!DOCTYPE html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        f'<meta name="pypi:repository-version" content="{API_VERSION}">', *metas,
        f"<title>{title}</title>", "</head>", "<body>", f"<h1>{title}</h1>",
    ]  # fmt: skip
    return "\n".join([*head, *lines, "</body>", "</html>", ""]).encode()


def in_order(rows: Iterable[FileRow]) -> list[FileRow]:
    """By version (PEP 440), then by file name."""
    keys: dict[str, Version] = {}
    rows = list(rows)
    for row in rows:
        if row.version not in keys:
            keys[row.version] = Version(row.version)
    return sorted(rows, key=lambda row: (keys[row.version], row.filename))
