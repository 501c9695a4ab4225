"""Owners, their members, and tokens."""

from __future__ import annotations

import datetime as dt

from sqlalchemy import CheckConstraint, ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from hub_server.database import Base

ROLES = ("reader", "publisher", "admin")
"""What a member may do, each including those before it: see private projects; publish and yank; manage the rest."""


class Owner(Base):
    """A user or an organisation: the first part of an id. Neither is ever renamed or given to another."""

    __tablename__ = "owners"
    __table_args__ = (CheckConstraint("kind IN ('user', 'organisation')", name="kind"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    slug: Mapped[str] = mapped_column(unique=True)
    kind: Mapped[str] = mapped_column(default="user")
    site_admin: Mapped[bool] = mapped_column(default=False)  # admin of every owner, and of the hub itself
    created_at: Mapped[dt.datetime]


class Membership(Base):
    """A user's role in an organisation."""

    __tablename__ = "memberships"
    __table_args__ = (UniqueConstraint("organisation_id", "user_id"), CheckConstraint(f"role IN {ROLES}", name="role"))

    id: Mapped[int] = mapped_column(primary_key=True)
    organisation_id: Mapped[int] = mapped_column(ForeignKey("owners.id"))
    user_id: Mapped[int] = mapped_column(ForeignKey("owners.id"), index=True)
    role: Mapped[str]
    created_at: Mapped[dt.datetime]


class Token(Base):
    """A token, of which the hub keeps only the SHA-256. It acts as its owner, within its scopes and patterns.

    `parent_id` is the token that made it: a leaked token takes those made with it along.
    """

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(primary_key=True)
    owner_id: Mapped[int] = mapped_column(ForeignKey("owners.id"), index=True)
    parent_id: Mapped[str | None] = mapped_column(ForeignKey("tokens.id"), index=True)
    name: Mapped[str]
    sha256: Mapped[str] = mapped_column(unique=True)
    scopes: Mapped[list[str]]
    patterns: Mapped[list[str]] = mapped_column(default=list)  # `owner/name` globs; empty is every project
    created_at: Mapped[dt.datetime]
    expires_at: Mapped[dt.datetime | None]
    last_used_at: Mapped[dt.datetime | None]
    revoked_at: Mapped[dt.datetime | None]

    owner: Mapped[Owner] = relationship(lazy="joined")
