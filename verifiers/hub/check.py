"""Check an environment as a hub and its users will: the hub's rules, then an installation of its own that plays.

    report = check_wheel(build(Path("environments/my_env")))
    report = check_wheel(Built(wheel, sdist), static_only=True)
    report.passed, report.checks

The report says which wheel it is about by the wheel's sha256 and lies beside it. It is the author's word, unsigned: the
code of the environment has run on the author's machine only.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import platform
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from verifiers.errors import ConfigError, EnvironmentInstallError, Error
from verifiers.hub.build import Built
from verifiers.hub.check_run import PLAYED, run_checks
from verifiers.hub.credentials import token_for
from verifiers.hub.fetch import sha256_of
from verifiers.hub.package.facts import FileFacts, Policy
from verifiers.hub.package.inspect import inspect_file
from verifiers.hub.package.names import normalise
from verifiers.hub.package.project import check_agreement, split_hub_dependency
from verifiers.hub.package.refusal import RefusedError, refuse
from verifiers.hub.schema import CheckReport, CheckResult
from verifiers.rollouts.workers.venv import ensure_venv
from verifiers.rollouts.workers.wheels import Source

Listen = Callable[[CheckResult], None]
SECONDS = 600.0
"""For import, load and evaluation together: an environment may fetch its data set."""


@dataclass(slots=True)
class _Work:
    """What the checks of one release share. `facts` are of the wheel, `about` of the source archive."""

    built: Built
    policy: Policy
    env_args: Mapping[str, Any]
    seconds: float
    listen: Listen
    hub_url: str | None
    results: list[CheckResult] = field(default_factory=list)
    facts: FileFacts | None = None
    about: FileFacts | None = None
    lock: str | None = None

    def told(self, result: CheckResult) -> None:
        self.results.append(result)
        self.listen(result)

    def passed(self) -> bool:
        return all(result.status != "failed" for result in self.results)


def _silent(_result: CheckResult) -> None:
    """Nobody listens."""


def check_wheel(
    built: Built,
    *,
    policy: Policy | None = None,
    static_only: bool = False,
    env_args: Mapping[str, Any] | None = None,
    seconds: float = SECONDS,
    listen: Listen = _silent,
    hub_url: str | None = None,
    save: bool = True,
) -> CheckReport:
    """Make every check and write the report beside the wheel. `static_only` runs nothing of the environment.

    policy: what the hub is told to allow, such as a local version in a private project. env_args: arguments of
    load_environment. seconds: for all that runs of the environment. listen: hears each result at once. hub_url: of the
    hub that packages of a hub are installed from.
    """
    work = _Work(built, policy or Policy(), env_args or {}, seconds, listen, hub_url)
    for name, check in STATIC.items():
        _made(work, name, check)
    if not static_only:
        _play(work)
    report = _report(work)
    if save:
        report_path(built.wheel).write_text(report.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return report


def report_path(wheel: Path) -> Path:
    """Where the report on a wheel lies: hidden, since twine takes whatever `dist/*` names for a package."""
    return wheel.with_name(f".{wheel.stem}.check.json")


# --- static checks ----------------------------------------------------------------------------------------------


def _check_wheel_rules(work: _Work) -> str:
    """The hub's rules for the wheel."""
    work.facts = inspect_file(work.built.wheel, work.built.wheel.name, work.policy)
    return _remarks(work.facts)


def _check_sdist_rules(work: _Work) -> str:
    """The hub's rules for the source archive."""
    if work.built.sdist is None:
        return "no source archive was given"
    work.about = inspect_file(work.built.sdist, work.built.sdist.name, work.policy)
    return _remarks(work.about)


def _check_agreement(work: _Work) -> str:
    """Wheel and source archive are of one release, and agree on hub dependencies."""
    if work.facts is None or work.about is None:
        return ""
    ours, theirs = ((facts.name, facts.version) for facts in (work.facts, work.about))
    if ours != theirs:
        refuse("form", f"the wheel is {' '.join(ours)}, the source archive {' '.join(theirs)}")
    check_agreement(work.about.hub_dependencies, work.facts.requires_dist)
    return f"{' '.join(ours)}"


STATIC: dict[str, Callable[[_Work], str]] = {
    "wheel-rules": _check_wheel_rules,
    "sdist-rules": _check_sdist_rules,
    "agreement": _check_agreement,
}


def _remarks(facts: FileFacts) -> str:
    told = "; ".join(f"{remark.message} [{remark.code}]" for remark in facts.warnings)
    return f"{facts.filename}{f'; worth knowing: {told}' if told else ''}"


def _made(work: _Work, name: str, check: Callable[[_Work], str]) -> None:
    """One check with its time; what it raises is its result."""
    began = time.perf_counter()
    hint = None
    try:
        status, detail = "ok", check(work)
    except Error as error:
        code = f" [{error.code}]" if isinstance(error, RefusedError) else ""
        status, detail, hint = "failed", f"{error}{code}", error.hint
    seconds = round(time.perf_counter() - began, 3)
    work.told(CheckResult(id=name, status=status, seconds=seconds, detail=detail, hint=hint))


# --- what runs --------------------------------------------------------------------------------------------------


def _play(work: _Work) -> None:
    """Install the wheel into a virtual environment made for this, and let the environment play there."""
    if not work.passed() or work.facts is None:
        for name in ("install", *PLAYED):
            work.told(CheckResult(id=name, status="skipped", detail="the files break a rule"))
        return
    with tempfile.TemporaryDirectory(prefix="hub-check-", ignore_cleanup_errors=True) as scratch:
        home = Path(scratch)
        _made(work, "install", lambda work: _install(work, home))
        if not work.passed():
            for name in PLAYED:
                work.told(CheckResult(id=name, status="skipped", detail="it is not installed"))
            return
        python = next(home.glob("environments/*/venv/bin/python"))
        run_checks(str(python), work.facts.name, work.env_args, home, work.seconds, work.told)


def _install(work: _Work, home: Path) -> str:
    """The wheel and what it requires, in a virtual environment of its own, with this package as `verifiers`."""
    assert work.facts is not None
    source = Source(work.facts.name, file=work.built.wheel)
    token = token_for(work.hub_url) if work.hub_url else None
    try:
        venv = asyncio.run(ensure_venv(source, home, environ=_hub_indexes(work, token)))
    except EnvironmentInstallError as error:
        said = str(error).replace(token, "****") if token else str(error)  # the report keeps what uv says
        raise EnvironmentInstallError(said, hint=error.hint) from None
    work.lock = sha256_of(venv.lock)
    packages = sum(line[:1].isalnum() for line in venv.lock.read_text().splitlines())
    return f"{packages} packages"


def _hub_indexes(work: _Work, token: str | None) -> dict[str, str]:
    """uv's variable with the package-scoped index of each hub dependency: nothing else is looked for there.

    They come before the user's own indexes, and the first one that knows a name decides.
    """
    told = [facts.hub_dependencies for facts in (work.facts, work.about) if facts is not None]
    wanted = sorted({text for dependencies in told for text in dependencies})
    if not wanted:
        return {}
    if work.hub_url is None:
        raise ConfigError(
            f"it stands on {', '.join(wanted)}, and no hub was named to install from",
            hint="Name it: --hub-url URL, or export VF_HUB_URL=URL",
        )
    parts = urlsplit(work.hub_url)
    base = parts._replace(netloc=f"__token__:{token}@{parts.netloc}").geturl() if token else work.hub_url
    split = [split_hub_dependency(text) for text in wanted]
    urls = [f"{base.rstrip('/')}/{owner}/{normalise(one.name)}/simple/" for owner, one in split]
    return {"UV_INDEX": " ".join([*urls, *os.environ.get("UV_INDEX", "").split()])}


# --- the report -------------------------------------------------------------------------------------------------


def _report(work: _Work) -> CheckReport:
    facts, sdist = work.facts, work.built.sdist
    return CheckReport(
        wheel=work.built.wheel.name,
        wheel_sha256=sha256_of(work.built.wheel),
        sdist=None if sdist is None else sdist.name,
        sdist_sha256=None if sdist is None else sha256_of(sdist),
        name=facts.name if facts else None,
        version=facts.version if facts else None,
        made_at=dt.datetime.now(dt.UTC),
        sdk_version=metadata.version("verifiers"),
        python=platform.python_version(),
        platform=sysconfig.get_platform(),
        lock_sha256=work.lock,
        checks=work.results,
    )
