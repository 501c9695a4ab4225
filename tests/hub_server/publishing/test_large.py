"""A large file passes through the hub without passing through its memory."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.hub_server.publishing.test_rules import workers_of
from tests.support.archives import make_wheel, wheel_name, write_large_wheel
from tests.support.hub import running_hub
from tests.support.uploads import BOUNDARY, form_fields, multipart, post_body, post_upload
from verifiers.hub.build import Built
from verifiers.hub.push import carry_out, make_plan

MIB = 1 << 20
SIZE = 300 * MIB
GROWTH = 32 * MIB


def resident(pid: int) -> int:
    """Bytes of memory that a process holds now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


class Peak:
    """The most that some processes grow while a block runs."""

    def __init__(self, *pids: int) -> None:
        self.pids = pids
        self.before = {pid: resident(pid) for pid in pids}
        self.most = dict(self.before)
        self.done = threading.Event()

    def __enter__(self):
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self) -> None:
        while not self.done.wait(0.02):
            for pid in self.pids:
                self.most[pid] = max(self.most[pid], resident(pid))

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()

    @property
    def grown(self) -> int:
        return max(self.most[pid] - self.before[pid] for pid in self.pids)


def body_of(wheel: Path):
    """The form of an upload, read from the disk as it is sent."""
    fields = form_fields(wheel.name, b"") | {"sha256_digest": None, "blake2_256_digest": None}
    parts = [(name, None, value.encode()) for name, value in fields.items() if value is not None]
    head, tail = multipart([*parts, ("content", wheel.name, b"\0")]).split(b"\0")
    assert tail.endswith(f"{BOUNDARY}--\r\n".encode())
    yield head
    with wheel.open("rb") as file:
        while chunk := file.read(MIB):
            yield chunk
    yield tail


@pytest.mark.slow
@pytest.mark.parametrize("door", ["upload", "session"])
def test_a_wheel_of_300_mib_grows_no_process_by_32(tmp_path, door):
    """Neither the server nor the process that looks into the file holds much of it, by either way in."""
    wheel = write_large_wheel(tmp_path, "demo-env", "0.1.0", SIZE)
    with running_hub(tmp_path / "hub", max_file_size=SIZE + MIB, inspectors=1) as hub:
        owner = hub.owner()
        warm = post_upload(hub, owner.token, wheel_name("first-env"), make_wheel("first-env"))
        assert warm.status_code == 200, warm.text
        with Peak(hub.process.pid, *workers_of(hub.process.pid)) as peak:
            if door == "upload":
                answer = post_body(hub, owner.token, body_of(wheel))
                assert answer.status_code == 200, answer.text
            else:
                with hub.client(owner.token) as client:
                    assert carry_out(client, make_plan(client, Built(wheel))).created
        assert peak.grown < GROWTH, f"{peak.grown / MIB:.0f} MiB"
        assert [path.name for path in (hub.data / "incoming").iterdir()] == []
