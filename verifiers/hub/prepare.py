"""An evaluation's environment from a hub, before it is played: installed, or fetched for a virtual environment.

An id with an owner means the hub's release and nothing else. What is installed from that hub under that very id is
played without a question to the network; a folder of the same name never stands in for it; a package that someone
installed from a folder to work on it is not replaced (docs/decisions/0025-installing-from-a-hub.md).

    prepare = Preparer(hub_url="https://hub.example", note=print)
    prepare("alice/demo@0.1.0", isolated=False)       # FoundEnvironment
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from verifiers.clients.model_file import cache_dir
from verifiers.envs.origin import direct_url
from verifiers.errors import EnvironmentInstallError
from verifiers.evals.lookup import FoundEnvironment, find_environment, find_installed
from verifiers.hub.client import HubClient, find_hub_url, hub_url
from verifiers.hub.fetch import fetch_all
from verifiers.hub.ids import HubId, parse_id
from verifiers.hub.install import Options, holds, install, warn_of_yanks
from verifiers.hub.resolve import Wanted, resolve
from verifiers.hub.target import Target, find_target
from verifiers.hub.wheel_file import declared
from verifiers.types.config import HubWheel


@dataclass(slots=True)
class Preparer:
    """Callable for `verifiers.evals.config.resolve`. Where no hub is named, it finds what is installed.

    hub_url: as given, None for that of the settings. dry_run: fetch, but install nothing.
    agree: see `verifiers.hub.install.Options`.
    """

    hub_url: str | None = None
    dry_run: bool = False
    agree: Callable[[str], bool] = lambda _: False
    note: Callable[[str], None] = lambda _: None
    warn: Callable[[str], None] = lambda _: None

    def __call__(self, env_id: str, isolated: bool) -> FoundEnvironment | None:
        """The environment of an id with an owner. ConfigError where it is not installed and no hub is named."""
        if find_hub_url(self.hub_url) is None:
            look = find_environment if Path(env_id).is_dir() else find_installed  # the first says how to name a folder
            if (here := look(env_id)) is not None:
                return here
        url = hub_url(self.hub_url)
        one, target = parse_id(env_id), find_target(None)
        if not isolated and (found := _installed(one, target, url)) is not None:
            return found
        with HubClient(url) as hub:
            if isolated or self.dry_run:
                return self._fetched(hub, one, target)
            return self._newly_installed(hub, one, target)

    def _newly_installed(self, hub: HubClient, one: HubId, target: Target) -> FoundEnvironment | None:
        _keep_editable(one, target)
        options = Options(agree=self.agree, note=self.note, warn=self.warn)
        done = install(hub, [one], target, options)
        chosen = next(package for package in done.packages if package.id.startswith(f"{one.project}@"))
        importlib.invalidate_caches()
        self.note(f"{chosen.described} of {hub.url}")
        return find_installed(chosen.id)

    def _fetched(self, hub: HubClient, one: HubId, target: Target) -> FoundEnvironment:
        _, packages = resolve(hub, [one], Wanted(target.version))
        packages.sort(key=lambda package: not package.id.startswith(f"{one.project}@"))
        warn_of_yanks(packages, self.warn)
        paths = fetch_all(hub, [package.file for package in packages], cache_dir())
        wheels = [
            HubWheel(name=package.name, path=str(path), url=package.file.url, sha256=package.file.sha256)
            for package, path in zip(packages, paths, strict=True)
        ]
        self.note(f"{packages[0].described} of {hub.url}")
        version = packages[0].release.version
        defaults = declared(paths[0], "eval")
        return FoundEnvironment(packages[0].id, paths[0], version, False, defaults, tuple(wheels))


def _installed(one: HubId, target: Target, url: str) -> FoundEnvironment | None:
    """What is installed, if it is this hub's release of exactly this id, with the files of its wheel."""
    origin = target.origin(one.name)
    if one.version is None or origin is None or origin.hub != url:
        return None
    same = (origin.owner, origin.version) == (one.owner, one.version)
    return find_installed(origin.id) if same and holds(target, one.name, one.owner, origin.sha256) else None


def _keep_editable(one: HubId, target: Target) -> None:
    """Refuse to put the hub's package over one that is being worked on."""
    distribution = target.distribution(one.name)
    told = direct_url(distribution) if distribution is not None else {}
    if (told.get("dir_info") or {}).get("editable"):
        raise EnvironmentInstallError(
            f"{one} was asked for, and {one.name} is installed from the folder {told['url'].removeprefix('file://')}",
            hint=f"Play that one: vf-eval {one.name}. Or the hub's beside it: --isolated. "
            f"Or replace it: hub install {one}",
        )
