"""Where published environments look for a client of sandboxes."""

from verifiers.sandboxes.by_id import SandboxClient as ThreadedAsyncSandboxClient

__all__ = ["ThreadedAsyncSandboxClient"]
