"""What a command did is told exactly: how it ended, what it printed, what it was given."""

import asyncio
import contextlib
import hashlib
import os
import signal

import pytest

from tests.support.sandbox_providers import CANARY
from verifiers.errors import ConfigError, Error, SandboxFileNotFoundError
from verifiers.sandboxes.spec import MIB, Secret, command


async def test_a_command_tells_its_exit_status(sandbox):
    """The status comes from `wait`: 137 is an exit, a signal is a signal, whatever was printed."""
    for code in (0, 1, 137, 255):
        result = await sandbox.exec(f"echo 'exit code: 9'; exit {code}")
        assert (result.exit_code, result.signal, result.reason) == (code, None, "exited")
        assert result.ok == (code == 0)
        assert result.seconds > 0
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGSEGV):
        result = await sandbox.exec(f"kill -{number:d} $$; sleep 30")
        assert (result.exit_code, result.signal, result.reason) == (None, number, "signalled")
        assert not result.ok


async def test_a_list_of_words_is_one_program(sandbox):
    """A list meets no shell: its words arrive as they are; a line is the shell's."""
    words = ["$HOME", "a b", "*", "é\n", "", "-n"]
    result = await sandbox.exec(["printf", "[%s]", *words])
    assert result.stdout_text == "".join(f"[{word}]" for word in words)
    assert (await sandbox.exec("printf '[%s]' 'a b' $((1 + 1))")).stdout == b"[a b][2]"


async def test_what_can_not_be_started_is_the_commands_fault(sandbox):
    """A program that is not there ends with 127 as in a shell, what is no program with 126, and says its name."""
    missing = await sandbox.exec(["no-such-program", "x"])
    assert (missing.exit_code, missing.reason) == (127, "exited")
    assert "no-such-program" in missing.stderr_text
    await sandbox.write("plain.txt", b"text", mode=0o644)
    assert (await sandbox.exec(["./plain.txt"])).exit_code == 126
    await sandbox.write("script", b"#!/no/such/interpreter\n", mode=0o755)
    assert (await sandbox.exec(["./script"])).exit_code == 127
    too_long = await sandbox.exec(["true", "x" * 3 * MIB])
    assert (too_long.exit_code, too_long.reason) == (126, "exited")
    assert (await sandbox.exec("echo on")).stdout == b"on\n"


async def test_output_is_binary_and_in_two_streams(sandbox):
    """Bytes come as they were printed, in the stream that they were printed to."""
    result = await sandbox.exec(r"printf 'a\0\377\r\n'; printf 'b\0' >&2")
    assert (result.stdout, result.stderr) == (b"a\0\xff\r\n", b"b\0")
    assert (result.stdout_bytes, result.stderr_bytes, result.truncated) == (5, 2, False)


async def test_output_is_cut_loudly(sandbox):
    """The first bytes of each stream are kept, all are counted, and the command goes on to its end."""
    line = "head -c 3000000 /dev/zero | tr '\\0' x; head -c 70000 /dev/zero >&2; exit 3"
    result = await sandbox.exec(line, max_output=65_536)
    assert (result.stdout, result.stderr) == (b"x" * 65_536, b"\0" * 65_536)
    assert (result.stdout_bytes, result.stderr_bytes) == (3_000_000, 70_000)
    assert (result.truncated, result.exit_code, result.reason) == (True, 3, "exited")
    exact = await sandbox.exec("head -c 65536 /dev/zero", max_output=65_536)
    assert (len(exact.stdout), exact.truncated) == (65_536, False)


async def test_a_flood_is_stopped(sandbox):
    """Who prints without end is killed at the limit, with that as the reason, and what was kept is told."""
    for line in ("yes", "yes >&2", "cat /dev/zero"):
        result = await sandbox.exec(line, output_limit=4 * MIB, max_output=10_000)
        assert (result.reason, result.exit_code, result.truncated) == ("output_limit", None, True)
        assert not result.timed_out
        assert result.stdout_bytes + result.stderr_bytes >= 4 * MIB
        assert len(result.stdout) + len(result.stderr) == 10_000
    assert (await sandbox.exec("echo on")).ok


async def test_input_arrives_whole(sandbox):
    """Five megabytes of input arrive; without any, the program sees its end."""
    data = os.urandom(5 * MIB)
    result = await sandbox.exec("sha256sum", stdin=data)
    assert result.stdout_text.split()[0] == hashlib.sha256(data).hexdigest()
    assert (await sandbox.exec("cat; echo end")).stdout == b"end\n"
    assert (await sandbox.exec("cat", stdin=b"")).stdout == b""
    assert (await sandbox.exec("cat; cat", stdin="é\0")).stdout == "é\0".encode()


async def test_input_that_nobody_reads_changes_nothing(sandbox):
    """A program that ends or closes its input before reading five megabytes has its own result."""
    for line in ("exit 3", "exec <&-; echo closed; exit 3", "head -c 1 >/dev/null; exit 3"):
        result = await sandbox.exec(line, stdin=bytes(5 * MIB))
        assert (result.exit_code, result.reason) == (3, "exited")


async def test_a_child_that_holds_the_pipes_is_not_waited_for(sandbox):
    """The call returns when the command has ended, though a child still holds stdout, stderr or both."""
    for line in ("sleep 1000 & echo x", "sleep 1000 >/dev/null & echo x", "sleep 1000 2>/dev/null & echo x",
                 "setsid sleep 1000 & echo x", "(sleep 1000 & ) & wait; echo x"):  # fmt: skip
        result = await sandbox.exec(line, timeout=60)
        assert (result.reason, result.exit_code, result.stdout) == ("exited", 0, b"x\n")
        assert result.leftovers >= 1


async def test_leftovers_live_on_unless_they_are_not_wanted(sandbox, running):
    """What a command leaves running lives and is counted; with `kill_leftovers` it is killed and counted."""
    kept = await sandbox.exec("sleep 7101 & setsid sleep 7101 & sleep 0.1")
    assert (kept.leftovers, kept.killed_leftovers) == (2, 0)
    assert await running("7101") == 2
    swept = await sandbox.exec("sleep 7102 & setsid sleep 7102 & sleep 0.1", kill_leftovers=True)
    assert (swept.leftovers, swept.killed_leftovers) == (2, 2)
    assert (await running("7101"), await running("7102")) == (2, 0)


async def test_the_environment_is_what_was_asked_for(provider, spec):
    """A command sees the sandbox's variables and its own on top, secrets too, and none of the host's."""
    given = spec(env={"A": "1", "B": "1"}, secrets={"TOKEN": Secret("s3cret")})
    sandbox = await provider.create(given)
    result = await sandbox.exec("echo $A $B $TOKEN", env={"B": "2 "})
    assert result.stdout_text.split() == ["1", "2", "s3cret"]
    assert CANARY not in (await sandbox.exec("env")).stdout_text
    assert "s3cret" not in repr(given) + repr(sandbox.spec) + repr(await provider.list())


async def test_the_hosts_secrets_are_nowhere(provider, spec):
    """No file of /proc and no argument shows what the host's environment holds, nor a sandbox's own secrets."""
    sandbox = await provider.create(spec(secrets={"TOKEN": Secret("s3cret")}))
    line = "unset TOKEN; exec cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/1/mountinfo 2>/dev/null"
    seen = (await sandbox.exec(["env", "-i", "/bin/sh", "-c", line], max_output=8 * MIB)).stdout
    assert CANARY.encode() not in seen
    mine = (await sandbox.exec("cat /proc/[0-9]*/cmdline", max_output=8 * MIB)).stdout
    assert b"s3cret" not in mine


async def test_commands_start_in_the_workdir(provider, spec):
    """Without `cwd` in the workdir, which is made; a relative one leads from there; a missing one is told."""
    sandbox = await provider.create(spec(workdir="/tmp/deep/er"))
    assert (await sandbox.exec("pwd")).stdout == b"/tmp/deep/er\n"
    await sandbox.mkdir("in")
    assert (await sandbox.exec("pwd", cwd="in")).stdout == b"/tmp/deep/er/in\n"
    assert (await sandbox.exec("pwd", cwd="/usr")).stdout == b"/usr\n"
    with pytest.raises(SandboxFileNotFoundError, match="nowhere"):
        await sandbox.exec("pwd", cwd="nowhere")


async def test_fifty_commands_at_once_do_not_mix(sandbox):
    """Each of fifty commands has its own input, output and status."""

    async def one(number: int) -> None:
        line = "cat; echo $N >&2; exit $N"
        result = await sandbox.exec(line, stdin=b"%d" % number * 5000, env={"N": str(number)})
        assert (result.exit_code, result.stderr) == (number, b"%d\n" % number)
        assert result.stdout == b"%d" % number * 5000

    await asyncio.gather(*(one(number) for number in range(50)))


async def test_what_is_no_command_is_refused(sandbox):
    """An empty command, a NUL and a limit of zero are the caller's mistakes, told before anything runs."""
    for line, options in (("", {}), ("echo \0", {}), ("true", {"timeout": 0}), ("true", {"max_output": -1})):
        with pytest.raises(ConfigError):
            await sandbox.exec(line, **options)


async def test_odd_text_does_no_harm(sandbox):
    """A word that is no UTF-8 on the host either arrives as its bytes or is refused; the sandbox goes on."""
    word = os.fsdecode(b"\xff\xfe")
    with contextlib.suppress(Error):
        assert (await sandbox.exec(["printf", "%s", word])).stdout == b"\xff\xfe"
    assert (await sandbox.exec("echo on")).ok


async def test_modules_that_code_plants_are_not_run_for_us(sandbox, tmp_path):
    """Modules by the names of Python's own, planted wherever the code may write, run in none of our operations."""
    names = "os shlex json select struct base64 tempfile shutil stat io codecs signal subprocess threading tarfile"
    plant = (
        "for d in $PWD /tmp $HOME $(python3 -c 'import sys; print(*filter(None, sys.path))'); do "
        f"for m in {names} encodings; do echo \"open('$PWD/ran', 'a').write('$m')\" > $d/$m.py; done; done; "
        "mkdir -p encodings; cp os.py encodings/__init__.py; rm encodings.py; ls"
    )
    assert b"shlex.py" in (await sandbox.exec(plant)).stdout
    (tmp_path / "tree").mkdir()
    await sandbox.upload(tmp_path / "tree", "tree")
    await sandbox.download("tree", tmp_path / "back")
    await sandbox.write("file", b"x")
    await sandbox.remove("tree", recursive=True)
    assert (await sandbox.exec("sleep 1000", timeout=0.1)).timed_out
    process = await sandbox.start(command("cat"))
    await process.kill()
    assert b"ran" not in (await sandbox.exec("ls")).stdout.split()
