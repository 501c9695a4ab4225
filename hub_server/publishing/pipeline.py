"""How files become part of a release: one list of steps for both doors, the installers' route and sessions.

    publish(Publication(context, principal, "alice", uploads))

The order is what makes a crash harmless: blobs are durable, then one transaction makes everything visible. What a step
refuses raises `Problem` or `RefusedError`; nothing that it did before is then seen by anybody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal

from sqlalchemy.orm import Session

from hub_server.accounts.service import Principal
from hub_server.context import Context
from hub_server.fault_points import reach
from hub_server.inspector import BusyError
from hub_server.operations.metrics import UPLOADS
from hub_server.publishing import service
from hub_server.publishing.closure import check_closure
from hub_server.publishing.errors import Disagreement, InspectorsBusy
from hub_server.publishing.receive import Upload
from hub_server.security.rates import spend
from verifiers.hub.package.facts import FileFacts, Policy
from verifiers.hub.package.names import SdistName, WheelName, normalise, parse_sdist_name, parse_wheel_name
from verifiers.hub.package.paths import Limits


@dataclass(slots=True)
class Publication:
    """What comes in, for whom, and what the steps have found.

    visibility: of a project that this makes. environment: False for the SDK's own wheel only. told_name, told_version:
    what the form or the session says; empty if nothing does. report: the author's check report, for the wheel. also: is
    part of the transaction.
    """

    context: Context
    principal: Principal
    owner: str
    uploads: Sequence[Upload]
    visibility: Literal["public", "private"] = "public"
    environment: bool = True
    told_name: str = ""
    told_version: str = ""
    report: dict[str, Any] | None = None
    also: Callable[[Session], None] | None = None
    name: str = ""
    version: str = ""
    place: service.Place = field(init=False)
    pending: list[Upload] = field(default_factory=list)
    facts: list[FileFacts] = field(default_factory=list)
    created: bool = False


def publish(publication: Publication) -> Publication:
    """Take every step. `created` tells whether anything was new."""
    for step in STEPS:
        step(publication)
    return publication


def read_names(publication: Publication) -> None:
    """What the files are called says which version of what this is; they agree on it."""
    named = {named_file(upload.filename) for upload in publication.uploads}
    if len(named) != 1:
        ids = " and ".join(sorted(f"{name} {version}" for name, version in named))
        raise Disagreement(f"the files are of {ids}")
    ((publication.name, publication.version),) = named


def look(publication: Publication) -> None:
    """Whether the caller may publish this at all, and which of the files are there already with the same bytes."""
    names = [upload.filename for upload in publication.uploads]
    with publication.context.database.read() as session:
        publication.place, known = service.find_place(
            session, publication.principal, publication.owner, publication.name, names, publication.visibility
        )
    publication.pending = [
        upload for upload in publication.uploads
        if not service.is_known(known.get(upload.filename), upload.filename, upload.sha256)
    ]  # fmt: skip


def count(publication: Publication) -> None:
    """Something new counts towards the caller's rate limits; files that are there already do not."""
    if publication.pending:
        context, account = publication.context, publication.principal.slug
        if publication.place.project_id is None:
            spend(context.database, context.settings, "new-project", account)
        spend(context.database, context.settings, "publish", account)


def fetch_back(publication: Publication) -> None:
    """A file that is a blob already, because a server was killed right then, is looked at like any other."""
    storage = publication.context.storage
    for upload in publication.pending:
        if not upload.path.exists():
            with upload.path.open("wb") as file:
                for chunk in storage.read(upload.sha256):
                    file.write(chunk)


def check_report(publication: Publication) -> None:
    """The author's report is about this very wheel."""
    if publication.report is not None:
        wheels = [one.sha256 for one in publication.uploads if one.filename.endswith(".whl")]
        if (told := publication.report.get("wheel_sha256")) not in wheels:
            raise Disagreement(f"the check report is about a wheel with the sha256 {str(told)[:64]!r}, not this one")


def inspect_files(publication: Publication) -> None:
    """Every rule for what a file holds; nothing of it is imported or run."""
    settings = publication.context.settings
    policy = Policy(
        limits=Limits(file_bytes=settings.max_file_size),
        strict_record=settings.strict_record,
        environment=publication.environment,
        private=publication.place.visibility == "private",
        name=publication.told_name,
        version=publication.told_version,
    )
    inspect, account = publication.context.inspector.inspect, publication.principal.slug
    try:
        publication.facts = [inspect(one.path, one.filename, policy, account) for one in publication.pending]
    except BusyError as error:
        raise InspectorsBusy(str(error), headers={"Retry-After": "10"}) from error


def compare(publication: Publication) -> None:
    """What was inspected is what arrived."""
    for upload, facts in zip(publication.pending, publication.facts, strict=True):
        if facts.sha256 != upload.sha256:
            raise Disagreement(f"{upload.filename} changed while it was inspected")


def check_hub_packages(publication: Publication) -> None:
    """The hub packages that the files declare are there, and can be installed together."""
    if not any(facts.hub_dependencies for facts in publication.facts):
        return
    with publication.context.database.read() as session:
        check_closure(session, publication.principal, publication.place, publication.facts)


def store(publication: Publication) -> None:
    """Every file, and METADATA of every wheel, is a durable blob."""
    storage = publication.context.storage
    for upload, facts in zip(publication.pending, publication.facts, strict=True):
        if facts.kind == "wheel":
            storage.put_bytes(facts.metadata, sha256(facts.metadata).hexdigest())
        storage.put(upload.path, upload.sha256)
    if publication.pending:
        reach("after-blob")


def commit(publication: Publication) -> None:
    """One transaction makes it visible, unless another publisher was first."""
    if publication.pending:
        publication.created = service.commit_files(
            publication.context, publication.principal, publication.place, publication.facts,
            publication.report, publication.also,
        )  # fmt: skip
        reach("after-commit")
        for facts in publication.facts if publication.created else ():
            UPLOADS.labels(facts.kind).inc()


STEPS: list[Callable[[Publication], None]] = [
    read_names,
    look,
    count,
    fetch_back,
    check_report,
    inspect_files,
    compare,
    check_hub_packages,
    store,
    commit,
]


def named_file(filename: str) -> tuple[str, str]:
    """Name and version of a file by what it is called. Refuses `file-name`."""
    named: WheelName | SdistName = (
        parse_wheel_name(filename) if filename.endswith(".whl") else parse_sdist_name(filename)
    )
    return normalise(named.name), named.version
