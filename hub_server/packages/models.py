"""Projects, their releases, and the files of these. Nothing here is ever deleted: a tombstone keeps its name taken."""

from __future__ import annotations

import datetime as dt
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, SmallInteger, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from hub_server.accounts.models import Owner
from hub_server.database import Base
from hub_server.journal import Serial

STATUSES = ("active", "archived", "deprecated", "quarantined")
"""Markers of a project (PEP 792). Archived and quarantined take no uploads; quarantined offers no files."""

YANK_CLASSES = ("broken-reward", "leak", "unsafe", "dataset-gone", "other")


class Project(Base):
    """`owner/name`. `name` is the normal form (PEP 503), `plain_name` the same if the whole-hub index has it here."""

    __tablename__ = "projects"
    __table_args__ = (
        UniqueConstraint("owner_id", "name"),
        CheckConstraint("visibility IN ('public', 'private')", name="visibility"),
        CheckConstraint(f"status IN {STATUSES}", name="status"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    owner_id: Mapped[int] = mapped_column(ForeignKey("owners.id"))
    name: Mapped[str] = mapped_column(index=True)
    display_name: Mapped[str]
    plain_name: Mapped[str | None] = mapped_column(unique=True)
    visibility: Mapped[str] = mapped_column(default="public")
    status: Mapped[str] = mapped_column(default="active")
    status_reason: Mapped[str | None]
    created_at: Mapped[dt.datetime]
    serial: Mapped[int] = mapped_column(Serial, default=0)

    owner: Mapped[Owner] = relationship(lazy="joined")
    releases: Mapped[list[Release]] = relationship(back_populates="project")


class Release(Base):
    """One version of a project. `version` is the key, one text for equal versions; `given_version` is what is shown.

    `facts` is what the wheel says (FileFacts); it does not change once there is a wheel.
    """

    __tablename__ = "releases"
    __table_args__ = (UniqueConstraint("project_id", "version"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"))
    version: Mapped[str]
    given_version: Mapped[str]
    summary: Mapped[str | None]
    readme: Mapped[str | None]
    readme_type: Mapped[str | None]
    requires_python: Mapped[str | None]
    facts: Mapped[dict[str, Any]]
    warnings: Mapped[list[str]] = mapped_column(default=list)
    check_report: Mapped[dict[str, Any] | None]  # the author's, about the wheel whose sha256 it names
    created_at: Mapped[dt.datetime]
    serial: Mapped[int] = mapped_column(Serial)
    yanked_at: Mapped[dt.datetime | None]
    yank_reason: Mapped[str | None]
    yank_class: Mapped[str | None]
    deleted_at: Mapped[dt.datetime | None]

    project: Mapped[Project] = relationship(back_populates="releases", lazy="joined")
    files: Mapped[list[File]] = relationship(back_populates="release")

    @property
    def shown(self) -> str:
        """The version as it is shown and stands in ids and file names."""
        return self.given_version


class File(Base):
    """One file of a release. Its name in the project is taken for ever, its bytes never change."""

    __tablename__ = "files"
    __table_args__ = (UniqueConstraint("project_id", "filename"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"))
    release_id: Mapped[int] = mapped_column(ForeignKey("releases.id"), index=True)
    filename: Mapped[str]
    kind: Mapped[str]  # wheel or sdist
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(index=True)
    blake2b_256: Mapped[str]
    requires_python: Mapped[str | None]
    metadata_sha256: Mapped[str | None]  # of METADATA, a blob of its own; wheels only
    uploaded_at: Mapped[dt.datetime]
    uploaded_by: Mapped[str | None]
    downloaded_at: Mapped[dt.datetime | None]  # first time, noted only while its release might still be deleted
    serial: Mapped[int] = mapped_column(Serial)
    deleted_at: Mapped[dt.datetime | None]

    release: Mapped[Release] = relationship(back_populates="files")


class SearchTerm(Base):
    """A word by which a project is found, and where it stands (terms.py). Compared by code points on any database."""

    __tablename__ = "search_terms"
    __table_args__ = (Index(None, "place", "term", "project_id"),)

    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    place: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    term: Mapped[str] = mapped_column(
        String().with_variant(String(collation="C"), "postgresql"), primary_key=True
    )
