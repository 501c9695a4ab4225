"""Wheels and source archives made in memory: valid unless a test asks for something else.

    make_wheel("demo-env", "0.1.0")                                     bytes of a wheel that binds load_environment
    make_wheel(files={"demo_env/data.json": b"{}"}, module=None)        other files
    make_wheel(headers={"Version": "0.2.0", "Requires-Dist": ["numpy>=2", "packaging"]})
    make_wheel(dist_info={"RECORD": None})                              without a RECORD
    make_wheel(record=lambda rows: rows[1:])                            a RECORD that lacks a row
    make_wheel(entries=lambda entries: entries + entries[:1])           tampered with as a ZIP, see raw_zip.py
    make_sdist("demo-env", "0.1.0", members=lambda members: …)          the same for raw_tar.py
    path = write_wheel(folder, "demo-env", "0.1.0")                     on disk, under its right name

The same arguments give the same bytes, other arguments others.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version

from tests.support.raw_tar import FOLDER, TarMember, gzip_bytes, tar_bytes
from tests.support.raw_zip import ZipEntry, zip_bytes

Files = Mapping[str, bytes | str]
Headers = Mapping[str, str | Sequence[str] | None]
Rows = list[list[str]]

MODULE = '''"""One question with one answer."""

import verifiers as vf


def load_environment(**kwargs):
    def right(completion, answer) -> float:
        return float(answer in str(completion))

    tasks = [{"question": "What is 2 + 2?", "answer": "4"}]
    return vf.SingleTurnEnv(dataset=tasks, rubric=vf.Rubric(funcs=[right]), **kwargs)
'''


def normal(name: str) -> str:
    """The name as indexes spell it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def module_name(name: str) -> str:
    return normal(name).replace("-", "_")


def wheel_name(name: str = "demo-env", version: str = "0.1.0", tag: str = "py3-none-any") -> str:
    """The file name that a wheel must have."""
    return f"{module_name(name)}-{Version(version)}-{tag}.whl"


def sdist_name(name: str = "demo-env", version: str = "0.1.0") -> str:
    """The file name that a source archive must have."""
    return f"{module_name(name)}-{Version(version)}.tar.gz"


def metadata_bytes(name: str, version: str, headers: Headers | None, description: str) -> bytes:
    """Core metadata. A header given as a list is repeated, one given as None is left out."""
    plain: dict[str, str | Sequence[str] | None] = {
        "Metadata-Version": "2.4",
        "Name": name,
        "Version": version,
        "Summary": "An environment for tests",
        "Requires-Python": ">=3.11",
        "Requires-Dist": ["verifiers>=0.1"],
        "Description-Content-Type": "text/markdown",
    }
    lines = []
    for key, value in {**plain, **(headers or {})}.items():
        values = [value] if isinstance(value, str) else value or []
        lines += [f"{key}: {one}" for one in values]
    return ("\n".join(lines) + "\n\n" + description).encode()


def sha256_row(path: str, data: bytes) -> list[str]:
    """A row of RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return [path, f"sha256={digest}", str(len(data))]


def record_bytes(files: Mapping[str, bytes], own: str, change: Callable[[Rows], Rows] | None = None) -> bytes:
    """RECORD for these files; `own` is its own path."""
    rows = [sha256_row(path, data) for path, data in files.items() if not path.endswith("/")] + [[own, "", ""]]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(change(rows) if change else rows)
    return out.getvalue().encode()


def raw(data: bytes | str) -> bytes:
    return data if isinstance(data, bytes) else data.encode()


def wheel_files(
    name: str,
    version: str,
    files: Files | None = None,
    *,
    module: str | None = MODULE,
    headers: Headers | None = None,
    description: str = "# An environment for tests\n",
    tags: Sequence[str] = ("py3-none-any",),
    dist_info: Mapping[str, bytes | str | None] | None = None,
    record: Callable[[Rows], Rows] | None = None,
) -> dict[str, bytes]:
    """Path → bytes of all that a wheel holds. `dist_info` adds or replaces files there; None leaves one out."""
    folder = f"{module_name(name)}-{Version(version)}.dist-info"
    inside: dict[str, bytes] = {} if module is None else {f"{module_name(name)}.py": module.encode()}
    inside |= {path: raw(data) for path, data in (files or {}).items()}
    wheel = "Wheel-Version: 1.0\nGenerator: tests 1.0\nRoot-Is-Purelib: true\n" + "".join(f"Tag: {t}\n" for t in tags)
    about: dict[str, bytes | str | None] = {
        "METADATA": metadata_bytes(name, version, headers, description),
        "WHEEL": wheel,
        **(dist_info or {}),
    }
    inside |= {f"{folder}/{path}": raw(data) for path, data in about.items() if data is not None and path != "RECORD"}
    given = about.get("RECORD", b"")
    if given is not None:
        inside[f"{folder}/RECORD"] = raw(given) or record_bytes(inside, f"{folder}/RECORD", record)
    return inside


def make_wheel(
    name: str = "demo-env",
    version: str = "0.1.0",
    files: Files | None = None,
    *,
    entries: Callable[[list[ZipEntry]], list[ZipEntry]] | None = None,
    zip_options: Mapping[str, Any] | None = None,
    **content: Any,
) -> bytes:
    """A wheel. `content` is what `wheel_files` takes; `entries` changes the members and `zip_options` the rest of the
    archive after RECORD was made."""
    inside = wheel_files(name, version, files, **content)
    members = [
        ZipEntry(path, data, mode=0o40755 if path.endswith("/") else 0o100644) for path, data in inside.items()
    ]
    return zip_bytes(entries(members) if entries else members, **(zip_options or {}))


def pyproject_text(name: str, version: str, tool: str = "") -> str:
    """A pyproject.toml that hatchling builds; `tool` is appended to it."""
    return (
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n\n'
        f'[project]\nname = "{name}"\nversion = "{version}"\ndescription = "An environment for tests"\n'
        'readme = "README.md"\nrequires-python = ">=3.11"\ndependencies = ["verifiers>=0.1"]\n\n'
        f'[tool.hatch.build.targets.wheel]\ninclude = ["{module_name(name)}.py"]\n{tool}'
    )


def make_sdist(
    name: str = "demo-env",
    version: str = "0.1.0",
    files: Files | None = None,
    *,
    top: str | None = None,
    module: str | None = MODULE,
    headers: Headers | None = None,
    description: str = "# An environment for tests\n",
    pyproject: str | None = None,
    tool: str = "",
    without: Sequence[str] = (),
    members: Callable[[list[TarMember]], list[TarMember]] | None = None,
    tar_options: Mapping[str, Any] | None = None,
) -> bytes:
    """A source archive. `top` is its folder, `without` leaves files out by name, `members` changes what was put
    together, `tar_options` goes to `tar_bytes`."""
    top = f"{module_name(name)}-{Version(version)}" if top is None else top
    inside: dict[str, bytes | str] = {} if module is None else {f"{module_name(name)}.py": module}
    inside["pyproject.toml"] = pyproject_text(name, version, tool) if pyproject is None else pyproject
    inside["README.md"] = description
    inside |= files or {}
    inside["PKG-INFO"] = metadata_bytes(name, version, headers, description)
    found = [
        TarMember(f"{top}/{path}", raw(data), kind=FOLDER if path.endswith("/") else b"0")
        for path, data in inside.items()
        if path not in without
    ]
    return gzip_bytes(tar_bytes(members(found) if members else found, **(tar_options or {})))


def write_wheel(folder: Path, name: str = "demo-env", version: str = "0.1.0", *args: Any, **content: Any) -> Path:
    """A wheel on disk, under its right name."""
    path = folder / wheel_name(name, version, next(iter(content.get("tags", ())), "py3-none-any"))
    path.write_bytes(make_wheel(name, version, *args, **content))
    return path


def write_sdist(folder: Path, name: str = "demo-env", version: str = "0.1.0", *args: Any, **content: Any) -> Path:
    """A source archive on disk, under its right name."""
    path = folder / sdist_name(name, version)
    path.write_bytes(make_sdist(name, version, *args, **content))
    return path


def write_large_wheel(folder: Path, name: str, version: str, size: int) -> Path:
    """A valid wheel with `size` bytes of data that does not shrink, written in bounded memory."""
    path = folder / wheel_name(name, version)
    inside = wheel_files(name, version, dist_info={"RECORD": None})
    block = hashlib.shake_256(b"large").digest(1 << 20)
    total, large, own = hashlib.sha256(), f"{module_name(name)}_data.bin", ""
    with zipfile.ZipFile(path, "w") as archive:
        with archive.open(zipfile.ZipInfo(large, (2025, 1, 1, 0, 0, 0)), "w") as target:
            for start in range(0, size, len(block)):
                part = block[: min(len(block), size - start)]
                total.update(part)
                target.write(part)
        for member, data in inside.items():
            own = member.replace("METADATA", "RECORD") if member.endswith("/METADATA") else own
            archive.writestr(zipfile.ZipInfo(member, (2025, 1, 1, 0, 0, 0)), data)
        digest = base64.urlsafe_b64encode(total.digest()).rstrip(b"=").decode()
        rows = record_bytes(inside, own, lambda rows: [[large, f"sha256={digest}", str(size)], *rows])
        archive.writestr(zipfile.ZipInfo(own, (2025, 1, 1, 0, 0, 0)), rows)
    return path
