"""Sessions where there is no bash."""

from verifiers.sandboxes import sessions
from verifiers.sandboxes.guest.program import keeper_source
from verifiers.sandboxes.local.provider import LocalProvider
from verifiers.sandboxes.spec import SandboxSpec


async def test_a_shell_that_is_not_bash_keeps_all_but_functions_over_a_kill(tmp_path, monkeypatch):
    """Without bash it is `sh`: directory, variables, options and the status stay; a killed command costs functions."""
    program = keeper_source("shell").replace(b"/bin/bash", b"/bin/no-bash")
    monkeypatch.setattr(sessions, "keeper_source", lambda name: program)
    async with LocalProvider(root=tmp_path) as provider:
        level = (await provider.capabilities()).isolation
        sandbox = await provider.create(SandboxSpec(isolation=level))
        session = await sandbox.session()
        await session.run("cd /tmp; A='a b'; export B=2; f() { echo f; }; umask 027; set -f; (exit 4)")
        assert (await session.run('echo $?; f; echo "${BASH_VERSION-none}"')).stdout == b"4\nf\nnone\n"
        assert (await session.run("while :; do :; done", timeout=0.2)).state == "restored"
        after = await session.run("pwd; echo $A; sh -c 'echo $B'; umask; echo /*; f")
        assert after.stdout == b"/tmp\na b\n2\n0027\n/*\n" and b"not found" in after.stderr
        wrong = await session.run("if then")
        assert wrong.exit_code and wrong.state in ("kept", "restored")
        assert (await session.run("pwd")).stdout == b"/tmp\n"
