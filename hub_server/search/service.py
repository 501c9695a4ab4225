"""Search: the projects whose words begin with all words of a question.

The hits come as streams, one after another: whole names that begin with the whole question, then whole names, words of
names, owners, keywords and summaries that begin with its rarest word, each by word and age. All are ranges of one
index, so a page is read without sorting, and a cursor is the place in it where the page ended.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import ColumnElement, and_, func, literal, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased, lazyload, load_only, selectinload

from hub_server.accounts.service import Principal, find_owner
from hub_server.packages.models import Project, Release, SearchTerm
from hub_server.packages.service import latest_of, visible_where
from hub_server.packages.terms import NAME, PLACES, words
from hub_server.search.errors import BadCursor
from verifiers.hub.schema import OwnerProjects, SearchAnswer, SearchHit

MAX_WORDS = 8
_BEYOND = "\U0010ffff"
"""After every character of a word."""

MANY = 500
"""Rows from which on a word counts as frequent, however many more it has."""


class Position(NamedTuple):
    """Where a page ended: which stream, and the last word and project of it."""

    stream: int
    term: str
    project_id: int


class Cursor(NamedTuple):
    """What `after` says: which word picked the rows, and where the page ended."""

    main: str
    position: Position


@dataclass(frozen=True)
class Question:
    """What is looked for. `whole` is all words as a name would have them, `main` the word that picks the rows."""

    whole: str
    main: str
    others: tuple[str, ...]

    def streams(self) -> list[tuple[int, str]]:
        """Place and beginning of what to look for, best first."""
        by_main = [(place, self.main) for place in PLACES]
        return [(NAME, self.whole), *by_main] if self.others else by_main if self.main else [(NAME, "")]


def search(
    session: Session, text: str, principal: Principal | None, limit: int, after: str | None
) -> SearchAnswer:
    """One page of what the caller may see."""
    asked = list(dict.fromkeys(words(text)))[:MAX_WORDS]
    if after is None:
        main, start = _rarest(session, asked), Position(0, "", 0)
    else:
        main, start = _read_cursor(after)
    question = Question("-".join(asked), main, tuple(word for word in asked if word != main))
    streams = question.streams()
    if (main not in asked and asked) or start.stream >= len(streams):
        raise BadCursor("after is no cursor of this search")
    seen = visible_where(session, principal)
    found: list[Position] = []
    for number in range(start.stream, len(streams)):
        begin = start if number == start.stream else Position(number, "", 0)
        found += _read(session, question, number, begin, seen, limit + 1 - len(found))
        if len(found) > limit:
            break
    page = found[:limit]
    following = _cursor(Cursor(main, page[-1])) if len(found) > limit else None
    return SearchAnswer(hits=_hits(session, [position.project_id for position in page]), next=following)


def _rarest(session: Session, asked: Sequence[str]) -> str:
    """The word with the fewest rows, as far as it is worth counting: by it there is the least to look through."""
    if len(asked) < 2:
        return "".join(asked)
    counted = {}
    for word in asked:
        rows = (
            select(SearchTerm.term).where(SearchTerm.place == place, _begins(SearchTerm.term, word)).limit(MANY)
            for place in PLACES
        )
        counts = (select(func.count()).select_from(one.subquery()).scalar_subquery() for one in rows)
        counted[word] = min(MANY, sum(session.execute(select(*counts)).one()))
    return min(asked, key=lambda word: (counted[word], -len(word), word))


def _read(
    session: Session, question: Question, number: int, begin: Position, seen: ColumnElement[bool], limit: int
) -> list[Position]:
    """Up to `limit` rows of one stream after a position, without what an earlier stream has.

    All conditions but the range are subqueries that give a value. Databases make joins of other forms, and then read
    and sort everything before the first row: a second instead of milliseconds at 100,000 projects on PostgreSQL.
    """
    streams = question.streams()
    place, beginning = streams[number]
    term, other = SearchTerm, aliased(SearchTerm)

    def one(*conditions: ColumnElement[bool]) -> ColumnElement[int]:
        found = select(literal(1)).where(other.project_id == term.project_id, *conditions).limit(1)
        return found.correlate(term).scalar_subquery()

    visible = select(literal(1)).where(Project.id == term.project_id, seen).correlate(term).scalar_subquery()
    others = [one(_begins(other.term, word)) for word in question.others]
    earlier = [one(other.place == before, _begins(other.term, text)) for before, text in streams[:number]]
    # A project may have several words with this beginning in one place: its first counts.
    earlier.append(one(other.place == place, _begins(other.term, beginning), other.term < term.term))
    conditions = [*(found.is_not(None) for found in (visible, *others)), *(found.is_(None) for found in earlier)]
    query = (
        select(term.term, term.project_id)
        .where(term.place == place, _begins(term.term, beginning), *conditions)
        .order_by(term.place, term.term, term.project_id)
        .limit(limit)
    )
    if begin.term:
        after = tuple_(term.term, term.project_id) > tuple_(literal(begin.term), literal(begin.project_id))
        query = query.where(after)
    return [Position(number, row.term, row.project_id) for row in session.execute(query)]


def _begins(column: InstrumentedAttribute[str], beginning: str) -> ColumnElement[bool]:
    return and_(column >= beginning, column < beginning + _BEYOND)


_OF_HIT = (Release.project_id, Release.given_version, Release.yanked_at, Release.deleted_at, Release.summary)
"""What `hit_of` looks at of a release."""


def _hits(session: Session, ids: Sequence[int]) -> list[SearchHit]:
    projects = {one.id: one for one in session.scalars(select(Project).where(Project.id.in_(ids)))}
    query = select(Release).options(load_only(*_OF_HIT), lazyload(Release.project))
    query = query.where(Release.project_id.in_(ids), Release.deleted_at.is_(None))
    releases: dict[int, list[Release]] = defaultdict(list)
    for release in session.scalars(query):
        releases[release.project_id].append(release)
    return [hit_of(projects[id], releases[id]) for id in ids]


def projects_of(session: Session, slug: str, principal: Principal | None) -> OwnerProjects:
    """An owner and what the caller may see of its projects, by name. NotFound if there is no such owner."""
    owner = find_owner(session, slug)
    query = select(Project).where(Project.owner_id == owner.id, visible_where(session, principal))
    releases = selectinload(Project.releases).options(load_only(*_OF_HIT), lazyload(Release.project))
    found = session.scalars(query.options(releases).order_by(Project.name))
    hits = [hit_of(project, project.releases) for project in found]
    return OwnerProjects(owner=owner.slug, kind=owner.kind, created_at=owner.created_at, projects=hits)


def hit_of(project: Project, releases: Sequence[Release]) -> SearchHit:
    """A project as a search shows it. `releases` may hold deleted ones."""
    latest = latest_of(releases)
    return SearchHit(
        id=f"{project.owner.slug}/{project.name}", owner=project.owner.slug, name=project.name,
        visibility=project.visibility, status=project.status,
        latest=latest.shown if latest else None, summary=latest.summary if latest else None,
    )  # fmt: skip


def _cursor(cursor: Cursor) -> str:
    return base64.urlsafe_b64encode(json.dumps(cursor).encode()).rstrip(b"=").decode()


def _read_cursor(text: str) -> Cursor:
    try:
        main, (stream, term, project_id) = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, TypeError, binascii.Error):
        raise BadCursor("after is no cursor of this search") from None
    kinds = [type(part) for part in (main, stream, term, project_id)]  # not isinstance: true is no number here
    if kinds != [str, int, str, int] or "\0" in main + term or stream < 0 or not 0 <= project_id < 2**31:
        raise BadCursor("after is no cursor of this search")
    return Cursor(main, Position(stream, term, project_id))
