"""The words by which projects are found, kept in the transaction that changes them.

One plain table for both databases: a word, the place where it stands, the project. A search reads ranges of its index
and stops when the page is full, so its cost does not grow with the hub (docs/decisions/0024-resolution.md).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, delete, insert, select
from sqlalchemy.orm import Session

from hub_server.database import table_of
from hub_server.packages.models import Project, Release, SearchTerm
from hub_server.packages.service import rank

NAME, WORD, OWNER, KEYWORD, SUMMARY = PLACES = range(5)
"""Where a word stands, what counts most first: the whole name, a word of it, the owner, a keyword, the summary."""

MAX_WORDS = 40
"""Words of the keywords and of the summary that are kept, each."""
MAX_LENGTH = 40
"""Characters of a word that are kept."""

_TERMS, _RELEASES = table_of(SearchTerm), table_of(Release)
_WORD = re.compile(r"[^\W_]+")
Terms = set[tuple[int, str]]


def words(text: str) -> list[str]:
    """The words of a text, as they are compared: letters and digits, without case."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return [word[:MAX_LENGTH] for word in _WORD.findall(folded)]


def terms_of(owner: str, name: str, summary: str | None, keywords: Iterable[str]) -> Terms:
    """All words of a project with their places. `name` is the normal form."""
    found: Terms = {(NAME, name), (OWNER, owner)}
    found |= {(WORD, word) for word in words(name)}
    found |= {(OWNER, word) for word in words(owner)}
    found |= {(KEYWORD, word) for word in words(" ".join(keywords))[:MAX_WORDS]}
    found |= {(SUMMARY, word) for word in words(summary or "")[:MAX_WORDS]}
    return found


def add_release(
    connection: Connection, project_id: int, version: str, terms: Terms, *, is_first: bool
) -> None:
    """Make a project found by what a new release says, if that becomes its latest. Before its rows are added."""
    if not is_first and any(rank(version) < rank(other) for other in _offered(connection, project_id)):
        return
    _change(connection, project_id, set() if is_first else _known(connection, project_id), terms)


def refresh(session: Session, project: Project) -> None:
    """Set the words of a project anew, after a release was yanked, taken back or deleted."""
    session.flush()
    connection = session.connection()
    columns = (_RELEASES.c.given_version, _RELEASES.c.yanked_at, _RELEASES.c.summary, _RELEASES.c.facts)
    there = (_RELEASES.c.project_id == project.id) & _RELEASES.c.deleted_at.is_(None)
    rows = connection.execute(select(*columns).where(there)).all()
    terms: Terms = set()
    if rows:  # a project without a release is not found
        latest = max(rows, key=lambda row: (row.yanked_at is None, *rank(row.given_version)))
        terms = terms_of(project.owner.slug, project.name, latest.summary, latest.facts.get("keywords") or [])
    _change(connection, project.id, _known(connection, project.id), terms)


def _offered(connection: Connection, project_id: int) -> Sequence[str]:
    there = _RELEASES.c.deleted_at.is_(None) & _RELEASES.c.yanked_at.is_(None)
    query = select(_RELEASES.c.given_version).where(_RELEASES.c.project_id == project_id, there)
    return connection.scalars(query).all()


def _known(connection: Connection, project_id: int) -> Terms:
    query = select(_TERMS.c.place, _TERMS.c.term).where(_TERMS.c.project_id == project_id)
    return {(row.place, row.term) for row in connection.execute(query)}


def _change(connection: Connection, project_id: int, known: Terms, terms: Terms) -> None:
    new: list[dict[str, Any]] = [
        {"project_id": project_id, "place": place, "term": term} for place, term in sorted(terms - known)
    ]
    for place, term in sorted(known - terms):
        one = (_TERMS.c.project_id == project_id) & (_TERMS.c.place == place) & (_TERMS.c.term == term)
        connection.execute(delete(_TERMS).where(one))
    if new:
        connection.execute(insert(_TERMS), new)
