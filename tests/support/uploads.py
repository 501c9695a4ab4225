"""What an installer's upload sends, field by field, so that a test can lie in each of them.

    answer = post_upload(hub, owner.token, wheel_name(), make_wheel())
    answer = post_upload(hub, owner.token, wheel_name(), make_wheel(), form={"sha256_digest": "0" * 64, "name": None})
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

BOUNDARY = "0123456789abcdef0123456789abcdef"

Parts = Sequence[tuple[str, str | None, bytes]]


def form_fields(filename: str, data: bytes) -> dict[str, str | None]:
    """The fields that uv sends for a file; name and version are those of its name."""
    wheel = filename.endswith(".whl")
    name, version = filename.removesuffix(".tar.gz").split("-")[:2]
    return {
        ":action": "file_upload",
        "sha256_digest": hashlib.sha256(data).hexdigest(),
        "blake2_256_digest": hashlib.blake2b(data, digest_size=32).hexdigest(),
        "protocol_version": "1",
        "metadata_version": "2.4",
        "name": name.replace("_", "-"),
        "version": version,
        "filetype": "bdist_wheel" if wheel else "sdist",
        "pyversion": "py3" if wheel else "source",
        "requires_python": "",
    }


def multipart(parts: Parts) -> bytes:
    """The body of a form: (name, file name, bytes) of each part."""
    body = b""
    for name, filename, data in parts:
        more = "" if filename is None else f'; filename="{filename}"\r\nContent-Type: application/octet-stream'
        body += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + data + b"\r\n"
    return body + f"--{BOUNDARY}--\r\n".encode()


def upload_body(
    filename: str, data: bytes, form: Mapping[str, str | None] | None = None, extra: Parts = (), content: bool = True
) -> bytes:
    """The body of an upload. A field given as None is left out; `extra` parts come before the file."""
    fields = form_fields(filename, data) | dict(form or {})
    parts = [(name, None, value.encode()) for name, value in fields.items() if value is not None]
    return multipart([*parts, *extra, *([("content", filename, data)] if content else [])])


def post_body(hub: Any, token: str | None, body: Any, *, path: str = "/legacy/", **headers: str) -> httpx.Response:
    """Send a body as an upload."""
    sent = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}", **headers}
    login = None if token is None else ("__token__", token)
    return httpx.post(f"{hub.url}{path}", content=body, headers=sent, auth=login, timeout=100)


def post_upload(
    hub: Any, token: str | None, filename: str, data: bytes, *, path: str = "/legacy/", **changed: Any
) -> httpx.Response:
    """Upload a file as uv does; `changed` is what `upload_body` takes."""
    return post_body(hub, token, upload_body(filename, data, **changed), path=path)


def post_file(hub: Any, token: str, file: Path) -> httpx.Response:
    """Upload a wheel or a source archive of this machine."""
    return post_upload(hub, token, file.name, file.read_bytes())
