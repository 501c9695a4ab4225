"""Packages on a live hub, put there through its upload route.

    published = publish(hub, owner, write_wheel(tmp_path))
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import httpx


def publish(hub: Any, owner: Any, *files: Path) -> None:
    """Upload wheels and source archives of an owner, each as an installer's tool would."""
    for path in files:
        name, version = path.name.removesuffix(".tar.gz").split("-")[:2]
        wheel = path.suffix == ".whl"
        fields = {
            ":action": "file_upload",
            "protocol_version": "1",
            "metadata_version": "2.4",
            "name": name,
            "version": version,
            "filetype": "bdist_wheel" if wheel else "sdist",
            "pyversion": "py3" if wheel else "source",
            "sha256_digest": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        answer = httpx.post(
            f"{hub.url}/legacy/", data=fields, files={"content": (path.name, path.read_bytes())},
            auth=("__token__", owner.token), timeout=60,
        )  # fmt: skip
        assert answer.status_code == 200, answer.text


def sha256_of(path: Path) -> str:
    """The digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
