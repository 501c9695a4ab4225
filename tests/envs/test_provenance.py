"""Which bits a score names, where the environment comes from no file."""

import sys
import types

from verifiers.envs.provenance import environment_ref


def test_a_session_without_a_file_is_no_obstacle(monkeypatch):
    """At a prompt or in a notebook the main module has no file: version and digest are unknown, and that is all."""
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    assert environment_ref("__main__") == {"name": "__main__", "version": None, "digest": None}
