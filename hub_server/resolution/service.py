"""Resolution: ids with constraints in, every hub release that they need out, pinned.

The answer is a function of the request and the serial: the caller's rights, and what is deleted or in quarantine by
now, decide whether it is given, never what it is (docs/decisions/0024-resolution.md).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping

from packaging.version import InvalidVersion, Version
from sqlalchemy.orm import Session

from hub_server.accounts.service import Principal
from hub_server.journal import current_serial, serial_before
from hub_server.packages.records import file_info
from hub_server.packages.urls import index_url
from hub_server.resolution.errors import BadMoment, BadPython, NameClash, Withdrawn
from hub_server.resolution.requirements import parse_requirement
from hub_server.resolution.search import Candidate, Search
from hub_server.resolution.universe import HubUniverse, Row
from verifiers.hub.schema import ResolveAnswer, ResolvedRelease, ResolveRequest


def resolve(session: Session, request: ResolveRequest, principal: Principal | None, base: str) -> ResolveAnswer:
    """The answer. Refuses with one of this folder's errors, or NotFound."""
    serial = _serial(session, request)
    wanted = list({str(one): one for one in map(parse_requirement, request.requirements)}.values())
    universe = HubUniverse(session, serial, principal, wanted, _python(request.python), request.prereleases)
    found = Search(wanted, universe).run()
    _check_withdrawn(found, serial)
    _check_names(found)
    askers = _askers(found, {one.project for one in wanted})
    releases = [_pinned(base, found[project], askers[project]) for project in sorted(found)]
    return ResolveAnswer(serial=serial, releases=releases)


def canonical(answer: ResolveAnswer) -> bytes:
    """The one text of an answer: sorted keys, no spaces."""
    told = answer.model_dump(mode="json")
    return json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _serial(session: Session, request: ResolveRequest) -> int:
    last = current_serial(session)
    if request.serial is not None and request.before is not None:
        raise BadMoment("a request names a serial or a moment, not both")
    if request.before is not None:
        # What lies at the ends of the calendar has no equivalent in UTC.
        if not 1970 < request.before.year < 9999:
            return 0 if request.before.year <= 1970 else last
        return min(last, serial_before(session, request.before))
    if request.serial is None:
        return last
    if request.serial > last:
        raise BadMoment(f"the hub has reached serial {last}, not {request.serial}")
    return request.serial


def _python(text: str | None) -> Version | None:
    if text is None:
        return None
    try:
        return Version(text)
    except InvalidVersion:
        raise BadPython(f"{text[:50]!r} is no version of Python") from None


def _check_withdrawn(found: Mapping[str, Candidate], serial: int) -> None:
    for project in sorted(found):
        row: Row = found[project].row
        if row.deleted is not None:
            when = f"{row.deleted.at:%Y-%m-%d} (serial {row.deleted.serial})"
            raise Withdrawn(f"as of serial {serial} the answer holds {found[project].id}, which was deleted on {when}")


def _check_names(found: Mapping[str, Candidate]) -> None:
    """No distribution name and no top-level import name twice: installed together, one would hide the other."""
    for what, names_of in (("distribution", _distribution), ("import", _imports)):
        holders: dict[str, str] = {}
        for project in sorted(found):
            for name in names_of(found[project]):
                if name in holders:
                    raise NameClash(f"{holders[name]} and {found[project].id} have the same {what} name: {name}")
                holders[name] = found[project].id


def _distribution(candidate: Candidate) -> list[str]:
    return [candidate.project.split("/")[1]]


def _imports(candidate: Candidate) -> list[str]:
    return sorted(set(candidate.row.facts.get("import_names") or []))


def _askers(found: Mapping[str, Candidate], asked: set[str]) -> dict[str, list[str]]:
    """Whose hub dependency each release is; nobody's for what was asked for."""
    askers: dict[str, list[str]] = defaultdict(list)
    for project in sorted(found):
        for need in found[project].needs:
            if need.project not in asked:
                askers[need.project].append(found[project].id)
    return askers


def _pinned(base: str, candidate: Candidate, askers: list[str]) -> ResolvedRelease:
    row: Row = candidate.row
    owner, name = candidate.project.split("/")
    required = sorted(row.facts.get("requires_dist") or [])
    direct = set(row.facts.get("direct_urls") or [])
    return ResolvedRelease(
        id=candidate.id, owner=owner, name=name, version=candidate.shown, index_url=index_url(base, owner, name),
        requires_python=row.requires_python, yanked=row.yank,
        files=[file_info(base, row.project, file) for file in row.files],
        requires_dist=[one for one in required if one not in direct], direct_urls=sorted(direct),
        required_by=askers,
    )  # fmt: skip
