"""Where user namespaces are refused, tests of what stands on them are skipped, by name and with the finding."""

import os

import pytest


def need_namespaces() -> None:
    """Skip the running test if this machine gives none; in CI that is a failure."""
    from verifiers.sandboxes.local import probe

    missing = probe.failed("namespace")
    if missing and os.environ.get("CI"):
        pytest.fail(f"no sandboxes here, vf-sandbox doctor: {missing}")
    if missing:
        pytest.skip(f"vf-sandbox doctor: {missing}")
