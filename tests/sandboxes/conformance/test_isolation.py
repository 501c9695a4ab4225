"""What the level `namespace` promises: no way to the host's network, files and processes."""

import asyncio
import contextlib
import socket
import subprocess
import sys

import pytest

REACH = "import socket,sys; s=socket.socket({family},{kind}); s.settimeout(3); {act}; print('REACHED')"


@pytest.fixture(autouse=True)
def _namespace(needs):
    needs("namespace")


async def test_no_network_reaches_the_host(sandbox):
    """Neither TCP on the loopback interface, UDP, nor an abstract socket of the host can be reached."""
    with contextlib.ExitStack() as open_:
        tcp = open_.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = open_.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        udp.settimeout(0.2)
        name = f"\0planted-{tcp.getsockname()[1]}"
        abstract = open_.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(name)
        abstract.listen()
        tries = [
            ("socket.AF_INET", "socket.SOCK_STREAM", f"s.connect(('127.0.0.1',{tcp.getsockname()[1]}))"),
            ("socket.AF_INET", "socket.SOCK_STREAM", "s.connect(('192.0.2.1',80))"),
            ("socket.AF_UNIX", "socket.SOCK_STREAM", f"s.connect({name!r})"),
        ]
        for family, kind, act in tries:
            program = REACH.format(family=family, kind=kind, act=act)
            assert b"REACHED" not in (await sandbox.exec(["python3", "-c", program])).stdout
        send = f"s.sendto(b'x',('127.0.0.1',{udp.getsockname()[1]}))"
        await sandbox.exec(["python3", "-c", REACH.format(family="socket.AF_INET", kind="socket.SOCK_DGRAM", act=send)])
        with pytest.raises(TimeoutError):
            udp.recv(10)


async def test_the_hosts_processes_are_out_of_reach(sandbox):
    """No process of the host is seen or signalled, whatever number is tried."""
    with subprocess.Popen([sys.executable, "-c", "input()", "planted-argument"], stdin=subprocess.PIPE) as victim:
        line = f"cat /proc/[0-9]*/cmdline; kill -9 {victim.pid}; kill -9 -1; cat /proc/{victim.pid}/cmdline"
        seen = await sandbox.exec(line)
        await asyncio.sleep(0)
        assert b"planted-argument" not in seen.stdout
        assert victim.poll() is None
        victim.stdin.close()
    assert victim.returncode == 1


async def test_the_hosts_files_are_out_of_reach(sandbox, tmp_path):
    """Files of the host outside the system's own are not there, and the system's can not be changed."""
    (tmp_path / "planted").write_text("planted")
    tmp_path.chmod(0o755)
    line = f"cat {tmp_path}/planted; cat /etc/shadow /dev/mem; echo x > /usr/bin/true"
    assert (await sandbox.exec(line)).stdout == b""


async def test_the_kernels_settings_are_not_seen(sandbox, provider):
    """There is no /sys. A container has it, read-only."""
    if provider.name in ("docker", "podman"):
        pytest.skip(f"{provider.name} shows a container /sys, read-only")
    assert (await sandbox.exec("true; ls /sys/kernel /sys/fs 2>/dev/null")).stdout == b""


async def test_privileges_can_not_be_raised(sandbox):
    """No set-id program, namespace or mount gives more than the sandbox has."""
    status = (await sandbox.exec("grep -E 'NoNewPrivs|CapEff|Seccomp:' /proc/self/status")).stdout_text.split()
    assert status[status.index("NoNewPrivs:") + 1] == "1"
    assert status[status.index("CapEff:") + 1].strip("0") == ""
    assert not (await sandbox.exec("mount -t tmpfs none /tmp")).ok
