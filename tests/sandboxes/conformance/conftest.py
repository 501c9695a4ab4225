"""One suite for every provider: `provider` is each of tests/support/sandbox_providers.py in turn, `sandbox` one of its
sandboxes, `spec` makes specifications at the level that it has.

What a provider declares that it cannot do is skipped, by name; nothing else is.
"""

import functools
import os

import pytest

from tests.support.sandbox_providers import AT_LANDLOCK, AT_PRIME, CANARY, PROVIDERS, QUICK, SLOW
from verifiers.sandboxes.local import probe
from verifiers.sandboxes.spec import SandboxSpec


def pytest_generate_tests(metafunc):
    """Run over every provider; what is neither local nor in QUICK is slow, and of `SLOW` also long."""
    if "provider" in metafunc.fixturenames:
        in_quick = metafunc.function.__name__ in QUICK
        quick = {"local"} | (set(PROVIDERS) - SLOW if in_quick else set())
        marks = {name: () if name in quick else (pytest.mark.slow,) for name in PROVIDERS}
        marks |= {} if in_quick else dict.fromkeys(SLOW, (pytest.mark.slow, pytest.mark.long))
        metafunc.parametrize("provider", [pytest.param(name, marks=marks[name]) for name in PROVIDERS], indirect=True)


@pytest.fixture
async def provider(request, tmp_path, monkeypatch):
    """A provider that was opened in a process with a secret in its environment."""
    monkeypatch.setenv("PLANTED_API_KEY", CANARY)
    monkeypatch.setenv("PLANTED", CANARY)
    async with PROVIDERS[request.param](tmp_path / "provider") as provider:
        isolation = (await provider.capabilities()).isolation
        name = request.node.originalname
        if isolation == "landlock" and name in AT_LANDLOCK:
            pytest.skip(f"at the level {isolation} {AT_LANDLOCK[name]}")
        if provider.name == "prime" and name in AT_PRIME:
            pytest.skip(AT_PRIME[name])
        yield provider


@pytest.fixture
async def capabilities(provider):
    """What it says that it can do. In CI a machine that gives less than `namespace` is a failure."""
    if os.environ.get("CI") and (missing := probe.failed("namespace")):
        pytest.fail(f"no sandboxes of the level namespace here, vf-sandbox doctor: {missing}")
    return await provider.capabilities()


@pytest.fixture
def spec(capabilities):
    """`SandboxSpec` with the level that the provider has."""
    return functools.partial(SandboxSpec, isolation=capabilities.isolation)


@pytest.fixture
def needs(provider, capabilities):
    """Skip what this provider declares that it cannot do: a limit, or an attribute of its capabilities."""

    def check(name: str) -> None:
        if name == "namespace":
            able = capabilities.isolation == "namespace"
        else:
            able = name in capabilities.limits or getattr(capabilities, name, False)
        if not able:
            pytest.skip(f"{provider.name} has no {name} here")

    return check


@pytest.fixture
async def sandbox(provider, spec):
    """A sandbox with the defaults."""
    return await provider.create(spec())


@pytest.fixture
def running(sandbox):
    """How many processes in the sandbox have this word among their arguments, read from outside their reach."""

    async def count(word: str) -> int:
        seen = await sandbox.exec("for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f; echo; done 2>/dev/null")
        return sum(word in line for line in seen.stdout_text.splitlines())

    return count
