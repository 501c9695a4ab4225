"""The end of a process that has sandboxes: they die with it, however it died, and a sweep removes what is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from verifiers.sandboxes.local import owners, probe

PARENT = """
import asyncio, os, sys
from pathlib import Path
from verifiers.sandboxes.local.provider import LocalProvider
from verifiers.sandboxes.spec import SandboxSpec

LEVEL, COUNT, ROOT, WORD = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]

async def main():
    async with LocalProvider(level=LEVEL, root=ROOT) as provider:
        spec = SandboxSpec(isolation=LEVEL, network="open" if LEVEL == "none" else "none")
        sandboxes = await asyncio.gather(*(provider.create(spec) for _ in range(COUNT)))
        left = f"(trap '' TERM HUP; setsid sleep {WORD} &); echo x > f; chmod 0 ."
        await asyncio.gather(*(one.exec(left) for one in sandboxes))
        print(*(one.id for one in sandboxes), flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""


def _processes(word: str) -> list[str]:
    found = []
    for name in os.listdir("/proc"):
        try:
            line = Path(f"/proc/{name}/cmdline").read_bytes() if name.isdigit() else b""
        except OSError:
            continue
        if word.encode() in line:
            found.append(f"{name} {line.decode(errors='replace')}")
    return found


def _until_gone(word: str) -> list[str]:
    """Wait until no process has the word in its command line; those that stay."""
    until = time.monotonic() + 20
    while (left := _processes(word)) and time.monotonic() < until:
        time.sleep(0.02)
    return left


@pytest.mark.parametrize(
    ("level", "count"),
    [pytest.param("namespace", 20), pytest.param("landlock", 4), pytest.param("none", 4)],
)
def test_nothing_is_left_of_the_sandboxes_of_a_killed_process(level: str, count: int, tmp_path: Path) -> None:
    """Their processes end by themselves at once; groups, directories and records go with the next sweep."""
    if missing := probe.failed(level):  # type: ignore[arg-type]
        pytest.skip(f"doctor: {[check.found for check in missing]}")
    root = Path("/tmp") / f"vf-orphans-{os.getpid()}-{level}"  # where other users may enter, unlike tmp_path
    word = f"77{os.getpid()}{count}"
    line = [sys.executable, "-c", PARENT, level, str(count), str(root), word]
    parent = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        names = parent.stdout.readline().split()
        assert len(names) == count
        (owner,) = [one for one in owners.owners() if one.pid == parent.pid]
        assert set(owner.sandboxes()) == set(names)
        assert len(_processes(f"sleep\0{word}")) == count
    finally:
        parent.kill()
        parent.communicate()
    assert _until_gone(f"sleep\0{word}") == []
    owners.sweep()
    assert owner.sandboxes() == []
    assert not owner.state.exists() and not owner.record.exists()
    assert [str(path) for tree in owner.trees for path in tree.base.glob(owner.group_name("*"))] == []
    root.rmdir()
