"""`hub search`, `hub info`, `hub versions`: what there is on a hub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from verifiers.cli.hub.flags import NO_FLAGS, HubFlags
from verifiers.errors import ConfigError, ExitCode
from verifiers.hub.terminal import printable

if TYPE_CHECKING:
    from verifiers.cli.output import Output
    from verifiers.hub.schema import ProjectInfo, ReleaseInfo


def search(
    *words: Annotated[str, Parameter(help="Words, or beginnings of words, of name, owner, keywords and summary.")],
    limit: Annotated[int, Parameter(alias="-n", help="Projects at most.")] = 50,
    flags: HubFlags = NO_FLAGS,
) -> ExitCode:
    """Find environments; without words all, by name."""
    from verifiers.hub.find import search as find

    if limit < 1:
        raise ConfigError(f"--limit is {limit}", hint="Give 1 or more.")
    output = flags.output()
    with flags.client() as hub:
        hits = list(find(hub, " ".join(words), limit + 1))
    more = len(hits) > limit
    hits = hits[:limit]
    output.event({"hits": [hit.model_dump(mode="json") for hit in hits], "more": more})
    rows = [
        [hit.id, hit.latest or "–", _marks(hit.visibility, hit.status), printable(hit.summary or "")] for hit in hits
    ]
    output.table(["project", "latest", "state", "summary"], rows)
    if not hits:
        output.note(f"nothing on {hub.url} has {' '.join(words)!r}" if words else f"{hub.url} has no projects yet")
    elif more:
        output.note(f"There are more: --limit {2 * limit}")
    return ExitCode.OK


def _marks(visibility: str, status: str) -> str:
    marks = [mark for mark, plain in ((visibility, "public"), (status, "active")) if mark != plain]
    return ", ".join(marks) or "public"


def versions(
    id: Annotated[str, Parameter(help="OWNER/NAME.")],
    *,
    flags: HubFlags = NO_FLAGS,
) -> ExitCode:
    """List the versions of an environment, newest first."""
    from verifiers.hub.find import project_of
    from verifiers.hub.ids import parse_id

    output = flags.output()
    with flags.client() as hub:
        project = project_of(hub, parse_id(id).project)
    output.event(project.model_dump(mode="json"))
    rows = [
        [release.id, _short(release.digest), f"{release.created_at:%Y-%m-%d}", _state(project, release)]
        for release in project.releases
    ]
    output.table(["release", "digest", "published", "state"], rows)
    if not rows:
        output.note(f"{project.owner}/{project.name} has no releases")
    return ExitCode.OK


def _state(project: ProjectInfo, release: ReleaseInfo) -> str:
    from packaging.version import Version

    if release.yanked is not None:
        return f"yanked, {release.yanked.cause}: {printable(release.yanked.reason)}"
    marks = ["latest"] if release.version == project.latest else []
    return ", ".join([*marks, "pre-release"] if Version(release.version).is_prerelease else marks)


def _short(digest: str | None) -> str:
    from verifiers.hub.resolve import short

    return short(digest) if digest else "no wheel"


def info(
    id: Annotated[str, Parameter(help="OWNER/NAME[@VERSION]; without a version, the latest.")],
    *,
    flags: HubFlags = NO_FLAGS,
) -> ExitCode:
    """Show what is to know of a release before it is installed, and how to install it."""
    from verifiers.hub.find import install_lines, look_up
    from verifiers.hub.ids import parse_id

    output = flags.output()
    with flags.client() as hub:
        project, release = look_up(hub, parse_id(id))
    lines = install_lines(hub.url, project, release)
    told = {"install": [{"how": how, "lines": commands} for how, commands in lines], "latest": project.latest}
    output.event({**release.model_dump(mode="json"), "visibility": project.visibility, **told})
    _card(output, project, release)
    if project.status != "quarantined":
        output.result("\ninstall:")
        for how, commands in lines:
            output.result("\n".join([f"  {how}", *(f"    {command}" for command in commands)]))
    _warn(output, project, release)
    return ExitCode.OK


def _card(output: Output, project: ProjectInfo, release: ReleaseInfo) -> None:
    facts = release.facts
    output.result(f"{release.id}  {_short(release.digest)}")
    if release.summary:
        output.result(printable(release.summary))
    newest = f", latest is {project.latest}" if project.latest and project.latest != release.version else ""
    counted = f"{len(project.releases)} release{'s' * (len(project.releases) != 1)}"
    fields = {
        "published": f"{release.created_at:%Y-%m-%d}, {project.visibility}, {counted}{newest}",
        "python": release.requires_python,
        "license": facts.get("license"),
        "needs": _needs(facts.get("needs")),
        "depends on": ", ".join(facts.get("requires_dist") or []) or "nothing",
        "of the hub": ", ".join(facts.get("hub_dependencies") or []),
        "checked": _report(release),
    }
    output.result()
    for name, value in fields.items():
        if value:
            output.result(f"{name:<12}{printable(value)}")
    for file in release.files:
        output.result(f"{file.kind:<12}{file.filename}, {file.size:,} bytes, sha256 {file.sha256}")


def _needs(needs: dict[str, object] | None) -> str:
    """What must be there where the environment is played, in words."""
    if needs is None:
        return "not said"
    secrets = needs.get("secrets")
    told = [f"secret {name}" for name in secrets] if isinstance(secrets, list) else []
    told += [name for name in ("network", "sandbox", "gpu") if needs.get(name)]
    return ", ".join(told) or "nothing"


def _report(release: ReleaseInfo) -> str | None:
    report = release.check_report
    return f"by its author, with verifiers {report.get('sdk_version', '?')}" if report else None


def _warn(output: Output, project: ProjectInfo, release: ReleaseInfo) -> None:
    if release.yanked is not None:
        output.warning(f"{release.id} is yanked ({release.yanked.cause}): {printable(release.yanked.reason)}")
    if project.status != "active":
        reason = project.status_reason or "no reason was given"
        output.warning(f"{project.owner}/{project.name} is {project.status}: {printable(reason)}")
    for warning in release.warnings:
        output.warning(printable(warning))
