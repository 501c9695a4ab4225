"""What the tests of environments with sandboxes share: a provider that is watched, environments, replies with calls."""

from __future__ import annotations

import asyncio
from typing import Any

import verifiers as vf
from conformance_harness import calling, rows
from verifiers.envs.sandbox_env import SandboxEnv
from verifiers.sandboxes.sandbox import Provider, Sandbox
from verifiers.sandboxes.spec import SandboxSpec


class Watched(Provider):
    """Hands on to another provider, and keeps what was asked for. `gate` holds creations back."""

    name = "watched"

    def __init__(self, inner: Provider) -> None:
        self.inner = inner
        self.specs: list[SandboxSpec] = []
        self.made: list[Sandbox] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.failures: list[Exception] = []

    async def create(self, spec: SandboxSpec) -> Sandbox:
        self.specs.append(spec)
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.made.append(await self.inner.create(spec))
        return self.made[-1]

    async def capabilities(self) -> Any:
        return await self.inner.capabilities()

    async def get(self, sandbox_id: str) -> Sandbox:
        return await self.inner.get(sandbox_id)

    async def list(self, labels: Any = None) -> Any:
        return await self.inner.list(labels)

    async def reap_orphans(self) -> int:
        return await self.inner.reap_orphans()

    async def close(self) -> None:
        await self.inner.close()


def shell(provider: Provider, cls: type[SandboxEnv] = SandboxEnv, **options: Any) -> Any:
    """An environment with a shell, small sandboxes, and one task unless told otherwise."""
    small = {"memory_gb": 0.25, "disk_size_gb": 0.125, "docker_image": "host"}
    return cls(**{"dataset": rows(), "rubric": vf.Rubric(), "provider": provider, **small, **options})


def bash(*commands: str) -> list[Any]:
    """Replies that run these commands, one a turn, and then an answer."""
    return [*(calling(("bash", {"command": command})) for command in commands), "done"]


def said(state: Any) -> list[str]:
    """What the tools answered."""
    return [message["content"] for message in state["completion"] if message["role"] == "tool"]


def interpreter(provider: Provider, cls: type[vf.PythonEnv] = vf.PythonEnv, **options: Any) -> Any:
    """An environment with a Python, without packages unless told otherwise."""
    small = {"memory_gb": 0.25, "disk_size_gb": 0.125, "pip_install_packages": ""}
    return cls(**{"dataset": rows(), "rubric": vf.Rubric(), "provider": provider, **small, **options})


def python(*pieces: str) -> list[Any]:
    """Replies that run these pieces of code, one a turn, and then an answer."""
    return [*(calling(("python", {"code": code})) for code in pieces), "done"]
