"""The Python that a hub's packages are installed into: this one, or another that is named.

    target = find_target(None)              # this process's; or a path of an interpreter or a virtual environment
    target.distribution("demo-env")         # what is installed there, None if nothing of that name
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from verifiers.envs.origin import HubOrigin, hub_origin
from verifiers.errors import ConfigError

_ASK = (
    "import json, os, sys, sysconfig; print(json.dumps([sys.version.split()[0], sys.prefix, sys.path[:], "
    "sys.prefix != sys.base_prefix, os.path.exists(sysconfig.get_path('stdlib') + '/EXTERNALLY-MANAGED')]))"
)


@dataclass(frozen=True, slots=True)
class Target:
    """An interpreter. `version` is as in 3.11.7; `paths` is where it imports from; `managed`: it is the system's."""

    python: str
    version: str
    prefix: str
    paths: tuple[str, ...]
    virtual: bool
    managed: bool

    @property
    def minor(self) -> str:
        """As in 3.11."""
        return ".".join(self.version.split(".")[:2])

    @property
    def here(self) -> bool:
        """Whether it is the interpreter of this process."""
        return self.python == sys.executable

    def distribution(self, name: str) -> metadata.Distribution | None:
        """The installed distribution of that name."""
        return next(iter(metadata.distributions(name=name, path=list(self.paths))), None)

    def origin(self, name: str) -> HubOrigin | None:
        """The hub's wheel that the distribution of that name comes from; None if there is none, or from elsewhere."""
        distribution = self.distribution(name)
        return hub_origin(distribution) if distribution is not None else None

    def check_writable(self) -> None:
        """Refuse (ConfigError) the Python of the operating system, which is for its own packages."""
        if not self.virtual and self.managed:
            raise ConfigError(
                f"{self.python} is the operating system's own Python, and no virtual environment is active",
                hint="Make one: uv venv (or python3 -m venv .venv), then: source .venv/bin/activate. "
                "Or name another Python: --python PATH",
            )


def find_target(python: str | None) -> Target:
    """This process's Python, or the one at a path: an interpreter or the folder of a virtual environment."""
    if python is None:
        stdlib = Path(sysconfig.get_path("stdlib"))
        managed, virtual = (stdlib / "EXTERNALLY-MANAGED").exists(), sys.prefix != sys.base_prefix
        version = sys.version.split()[0]
        return Target(sys.executable, version, sys.prefix, tuple(sys.path), virtual, managed)
    path = Path(python).expanduser()
    path = path / "bin" / "python" if path.is_dir() else path
    # The name by which a virtual environment's interpreter was called decides which one it is: no link is followed.
    path = Path(os.path.abspath(path))
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        line = [str(path), "-I", "-c", _ASK]
        asked = subprocess.run(line, capture_output=True, text=True, env=variables, timeout=60, check=False)
        version, prefix, paths, virtual, managed = json.loads(asked.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise ConfigError(
            f"{python} is no Python", hint="Give an interpreter or the folder of a virtual environment.", cause=error
        ) from error
    return Target(str(path), version, prefix, tuple(paths), virtual, managed)
