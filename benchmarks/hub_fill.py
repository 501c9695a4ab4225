"""Fill the database of a hub with projects, past the upload: what a page costs among very many of them.

    python -m benchmarks.hub_fill DATABASE_URL 100000
"""

import argparse
import hashlib
from collections.abc import Iterator
from typing import Any

from sqlalchemy import insert, select, update

from hub_server.accounts.models import Owner
from hub_server.database import Database, now
from hub_server.journal import HubState
from hub_server.migrations.upgrade import upgrade
from hub_server.packages.models import File, Project, Release

BATCH = 5_000
VERSIONS = 50
"""Releases of the project `big`; every other project has one."""


def fill(url: str, projects: int) -> None:
    """Projects `env-00000` and so on with one release each, and `big` with `VERSIONS`, all of one owner."""
    database = Database(url, 1)
    upgrade(database)
    with database.write() as session:
        owner = session.scalar(select(Owner).where(Owner.slug == "fill"))
        if owner is None:
            owner = Owner(slug="fill", kind="user", created_at=now())
            session.add(owner)
            session.flush()
        names = ["big", *(f"env-{number:05d}" for number in range(projects - 1))]
        session.execute(update(HubState).values(serial=HubState.serial + len(names)))
        for start in range(0, len(names), BATCH):
            numbered = list(enumerate(names[start : start + BATCH], start + 1))
            session.execute(insert(Project), [_project(owner.id, number, name) for number, name in numbered])
            releases = [release for number, name in numbered for release in _releases(number, name)]
            session.execute(insert(Release), [_without(release, "name") for release in releases])
            session.execute(insert(File), [_file(release) for release in releases])
    database.close()


def _project(owner: int, number: int, name: str) -> dict[str, Any]:
    return {
        "id": number, "owner_id": owner, "name": name, "display_name": name, "plain_name": name, "visibility": "public",
        "status": "active", "created_at": now(), "serial": number,
    }  # fmt: skip


def _releases(number: int, name: str) -> Iterator[dict[str, Any]]:
    for minor in range(VERSIONS if name == "big" else 1):
        yield {
            "id": number * 100 + minor, "project_id": number, "name": name, "version": f"0.{minor}.0",
            "given_version": f"0.{minor}.0", "summary": "A benchmark", "requires_python": ">=3.11", "facts": {},
            "warnings": [], "created_at": now(), "serial": number,
        }  # fmt: skip


def _file(release: dict[str, Any]) -> dict[str, Any]:
    filename = f"{release['name'].replace('-', '_')}-{release['version']}-py3-none-any.whl"
    digest = hashlib.sha256(filename.encode()).hexdigest()
    return {
        "id": release["id"], "project_id": release["project_id"], "release_id": release["id"], "filename": filename,
        "kind": "wheel", "size": 1234, "sha256": digest, "blake2b_256": digest, "requires_python": ">=3.11",
        "metadata_sha256": digest, "uploaded_at": now(), "serial": release["serial"],
    }  # fmt: skip


def _without(row: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}


def main() -> None:
    """Parse the command line and fill."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("projects", type=int)
    given = parser.parse_args()
    fill(given.url, given.projects)


if __name__ == "__main__":
    main()
