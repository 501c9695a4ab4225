"""Releases on a running hub, through its own routes, without a process for each.

    publish(client, "alice", "demo-env", "0.1.0", visibility="private")
    upload(client, "demo_env-0.1.0-py3-none-any.whl", data)              # as twine does; the answer as it comes
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import httpx

from tests.support.archives import make_sdist, make_wheel, sdist_name, wheel_name
from tests.support.uploads import form_fields, post_file
from verifiers.hub.client import HubClient

JSON_INDEX = {"Accept": "application/vnd.pypi.simple.v1+json"}


def publish(
    client: HubClient, owner: str, name: str = "demo-env", version: str = "0.1.0", *, sdist: bool = False,
    visibility: str | None = None, **content: Any,
) -> dict[str, bytes]:  # fmt: skip
    """A release with a wheel, and a source archive if asked. Returns its files."""
    files = {wheel_name(name, version): make_wheel(name, version, **content)}
    if sdist:
        files[sdist_name(name, version)] = make_sdist(name, version, **content)
    listed = [
        {"name": key, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for key, data in files.items()
    ]
    root = f"/api/v1/{owner}/{name}/releases"
    body = {"version": version, "files": listed, "visibility": visibility}
    session = client.request("POST", root, json=body).json()["id"]
    for key, data in files.items():
        client.request("PUT", f"{root}/{session}/{key}", content=data)
    client.request("POST", f"{root}/{session}/publish")
    return files


def upload(client: HubClient, filename: str, content: bytes, owner: str | None = None) -> httpx.Response:
    """What uv publish sends for a wheel or a source archive."""
    address = f"/{owner}/legacy/" if owner else "/legacy/"
    form = form_fields(filename, content)
    return client.http.post(address, data=form, files={"content": (filename, content)})


def publish_files(hub: Any, owner: Any, *files: Path) -> None:
    """Publish wheels and source archives of this machine for an owner of a live hub, one upload each."""
    for file in files:
        answer = post_file(hub, owner.token, file)
        assert answer.status_code == 200, answer.text


def index_page(client: HubClient, address: str) -> dict[str, Any] | None:
    """A page of an index as JSON; None where there is none."""
    answer = client.http.get(address, headers=JSON_INDEX)
    return answer.json() if answer.status_code == 200 else None
