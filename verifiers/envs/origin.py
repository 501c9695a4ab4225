"""Which hub an installed distribution comes from, as its own metadata say. Light: loads nothing of the package.

    hub_origin(metadata.distribution("demo"))       HubOrigin(hub="https://hub.example", owner="alice", …) or None
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import re
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

_FILE_OF_A_HUB = re.compile(
    r"(?P<hub>https?://.+?)/files/(?P<owner>[^/]+)/(?P<name>[^/]+)/(?P<sha256>[0-9a-f]{64})/[^/]+\Z"
)
"""The address under which a hub serves a file for ever; the digest in it is that of the file."""


@dataclass(frozen=True, slots=True)
class HubOrigin:
    """The hub's wheel that a distribution was installed from. `hub` is the hub's URL, `sha256` in hexadecimal."""

    hub: str
    owner: str
    name: str
    version: str
    sha256: str

    @property
    def id(self) -> str:
        """`owner/name@version`."""
        return f"{self.owner}/{self.name}@{self.version}"


def hub_origin(distribution: metadata.Distribution) -> HubOrigin | None:
    """Where PEP 610 `direct_url.json` says that a distribution comes from; None unless that is a hub.

    pip notes the digest that it verified, uv only the address, which for a hub's file holds the digest.
    """
    told = direct_url(distribution)
    match = _FILE_OF_A_HUB.match(str(told.get("url", "")))
    if match is None or (noted_digest(told) or match["sha256"]) != match["sha256"]:
        return None
    return HubOrigin(match["hub"], match["owner"], match["name"], distribution.version, match["sha256"])


def direct_url(distribution: metadata.Distribution) -> dict[str, Any]:
    """PEP 610 `direct_url.json`: where a distribution was installed from, if that was no index. Empty if not told."""
    text = distribution.read_text("direct_url.json")
    told = json.loads(text) if text else {}
    return told if isinstance(told, dict) else {}


def noted_digest(told: dict[str, Any]) -> str | None:
    """The sha256 of a wheel that an installer noted there."""
    archive = told.get("archive_info") or {}
    digest = (archive.get("hashes") or {}).get("sha256") or str(archive.get("hash", "")).removeprefix("sha256=")
    return str(digest) if digest else None


def changed_files(distribution: metadata.Distribution) -> list[str]:
    """Installed files that are gone, or are not what RECORD says of them. uv installs by hard links: whoever edits such
    a file in place changes it in uv's cache, too, and with it what is installed from there later."""
    text = distribution.read_text("RECORD")
    if text is None:
        return ["RECORD"]
    rows = [row for row in csv.reader(io.StringIO(text)) if len(row) == 3 and row[1].startswith("sha256=")]
    return [name for name, digest, _ in rows if _hash_of(distribution, name) != digest]


def _hash_of(distribution: metadata.Distribution, name: str) -> str | None:
    """A digest in RECORD's form; None for a file that can not be read."""
    try:
        return _record_hash(Path(str(distribution.locate_file(name))).read_bytes())
    except OSError:
        return None


def _record_hash(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def note_origin(distribution: metadata.Distribution, url: str, sha256: str) -> None:
    """Write `direct_url.json` of an installed wheel: its address at a hub, and the digest that was verified."""
    info = next(file for file in distribution.files or [] if file.match("*.dist-info/METADATA"))
    folder = Path(str(info.locate())).parent
    told = {"archive_info": {"hash": f"sha256={sha256}", "hashes": {"sha256": sha256}}, "url": url}
    text = json.dumps(told, sort_keys=True)
    _replace(folder / "direct_url.json", text)
    record, place = folder / "RECORD", f"{folder.name}/direct_url.json"
    rows = [row for row in csv.reader(io.StringIO(record.read_text(encoding="utf-8"))) if row and row[0] != place]
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows([*rows, [place, _record_hash(text.encode()), len(text)]])
    _replace(record, lines.getvalue())


def _replace(path: Path, text: str) -> None:
    """A new file in the place of the old one: files of an installation may be links into an installer's cache."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
