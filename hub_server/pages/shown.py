"""What pages show of a release, put into words: how to install it, what it needs, who has checked it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verifiers.hub.schema import ReleaseInfo


@dataclass(frozen=True, slots=True)
class Recipe:
    """One way to install a release: a title, what to know, and the lines to copy."""

    title: str
    note: str
    lines: tuple[str, ...]


def recipes(hub: str, owner: str, name: str, version: str, index_url: str) -> list[Recipe]:
    """Ways to install, the best first. None has a second index: pip would take the highest version of all indexes."""
    id = f"{owner}/{name}@{version}"
    return [
        Recipe("hub", "The digest is verified, nothing else is upgraded.", (f"hub install {id} --hub-url {hub}",)),
        Recipe(
            "uv",
            "This index has this package, the hub packages that it declares and verifiers; the rest is public.",
            (f"uv pip install {name}=={version} --index {index_url}",),
        ),
        Recipe(
            "uv, in pyproject.toml",
            "Before any other index, and not explicit: verifiers is to come from here as well.",
            ("[[tool.uv.index]]", f'name = "{owner}-{name}"', f'url = "{index_url}"'),
        ),
        Recipe(
            "pip",
            "By a lock with hashes: pip has no order of indexes.",
            (f"hub lock {id} --hub-url {hub}", "pip install -r pylock.toml"),
        ),
    ]


def needs(facts: Mapping[str, Any]) -> list[str] | None:
    """What an environment needs where it is played; None if it does not say, empty if it says nothing."""
    told = facts.get("needs")
    if told is None:
        return None
    words = {"network": "the network", "sandbox": "a sandbox", "gpu": "a GPU"}
    return [f"the secret {name}" for name in told.get("secrets", [])] + [
        text for key, text in words.items() if told.get(key)
    ]


def checked(report: Mapping[str, Any] | None, release: ReleaseInfo) -> str | None:
    """What the author's check report says of this wheel: it is the author's word."""
    if report is None or report.get("wheel_sha256") != release.digest:
        return None
    statuses = [check["status"] for check in report["checks"]]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in ("ok", "failed", "skipped"))
    where = f"{str(report['made_at'])[:10]}, SDK {report['sdk_version']}, Python {report['python']}"
    return f"{len(statuses)} checks by the author ({where}): {counts}"


def diff_lines(diff: str) -> list[tuple[str, str]]:
    """The lines of a unified diff with the element that says what each is: `ins`, `del` or `span`."""
    kinds = {"+": "ins", "-": "del"}
    return [(kinds.get(line[:1], "span"), line) for line in diff.removesuffix("\n").split("\n")]


def value_text(value: Any) -> str:
    """A statement of the metadata for people."""
    if value is None or value in ("", [], {}):
        return "nothing"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def size_text(size: int) -> str:
    """Bytes for people."""
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024 or unit == "GiB":
            break
    return f"{value:.1f} {unit}"
