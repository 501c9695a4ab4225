"""A directory that holds a root file system, as an image."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from verifiers.errors import SandboxUnsupportedError
from verifiers.sandboxes.spec import Mount, SandboxSpec


@pytest.fixture
def image(tmp_path):
    """The least that a shell needs, and what this interpreter links to."""
    root = tmp_path / "image"
    for name in ("usr/bin", "testbed", "etc"):
        (root / name).mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    programs = [shutil.which(name) for name in ("sh", "cat", "rm")]
    for program in programs:
        shutil.copy(program, root / "usr/bin")
    linked = subprocess.run(["ldd", *programs, os.path.realpath(sys.executable)], capture_output=True, text=True)
    modules = Path(sys.base_prefix, "lib").glob("python3*/lib-dynload/_ctypes.*")
    linked.stdout += subprocess.run(["ldd", *modules], capture_output=True, text=True).stdout
    for word in set(linked.stdout.split()):
        if word.startswith("/") and os.path.isfile(word):
            (root / word[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(word, root / word[1:])
    (root / "testbed" / "data").write_text("from the image")
    tmp_path.chmod(0o755)
    return root


async def test_an_image_is_seen_and_never_written(local_provider, image):
    """Its files are there, what is written over them is the sandbox's own, and the next sandbox has them anew."""
    for _ in range(2):
        spec = SandboxSpec(image=str(image), workdir="/testbed", memory=256)
        sandbox = await local_provider.create(spec)
        assert await sandbox.read("data") == b"from the image"
        result = await sandbox.exec("rm -f data; echo new > /testbed/own; cat /testbed/own; cat /etc/passwd")
        assert (result.stdout, result.exit_code) == (b"new\n", 1)
        assert await sandbox.read("own") == b"new\n"
    assert (image / "testbed" / "data").read_text() == "from the image"
    assert os.listdir(image / "testbed") == ["data"]


async def test_an_image_without_what_is_needed_is_named(local_provider, tmp_path):
    """Neither a path that is none nor a root that runs no Python is taken for an image."""
    (tmp_path / "usr").mkdir()
    tmp_path.chmod(0o755)
    for name in ("/no/such/place", str(tmp_path)):
        with pytest.raises(SandboxUnsupportedError, match=name):
            await local_provider.create(SandboxSpec(image=name))
    assert await local_provider.list() == []


@pytest.mark.parametrize("place", ["/usr/work", "/proc/x", "/bin", "/a/../usr", "//etc"])
async def test_a_folder_that_cannot_be_made_is_named_at_create(local_provider, place, tmp_path):
    """For the place where commands start and for mounts, before anything starts."""
    for spec in (SandboxSpec(workdir=place), SandboxSpec(mounts=(Mount(str(tmp_path), place),))):
        with pytest.raises(SandboxUnsupportedError, match=place):
            await local_provider.create(spec)


async def test_commands_may_start_anywhere_else(local_provider):
    """A folder that is there, one that is deep, and the root itself."""
    for place in ("/", "/tmp", "/home/sandbox", "/home/sandbox/deep/er", "/app", "/root", "/opt"):
        sandbox = await local_provider.create(SandboxSpec(workdir=place))
        assert (await sandbox.exec("pwd && touch file")).stdout.decode() == f"{place}\n"


async def test_python_is_neither_hidden_nor_written_into(local_provider, tmp_path, monkeypatch):
    """Of a Python outside /usr: commands may start above it, not in it, and a mount over it is refused."""
    home = tmp_path / "pythons" / "one"
    home.mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(home))  # of a virtual environment
    above = await local_provider.create(SandboxSpec(workdir=str(home.parent)))
    assert (await above.exec("touch file && ls")).stdout == b"file\none\n"
    below = SandboxSpec(workdir=str(home / "lib"))
    over = SandboxSpec(mounts=(Mount(str(tmp_path), str(home.parent)),))
    for spec in (below, over):
        with pytest.raises(SandboxUnsupportedError, match="Python"):
            await local_provider.create(spec)
