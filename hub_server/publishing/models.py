"""Upload sessions: a release that is being put together."""

from __future__ import annotations

import datetime as dt

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from hub_server.accounts.models import Owner
from hub_server.database import Base


class UploadSession(Base):
    """The files of one version on their way in. At most one is open for a version (the service sees to it)."""

    __tablename__ = "upload_sessions"
    __table_args__ = (CheckConstraint("state IN ('open', 'published', 'aborted')", name="state"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    owner_id: Mapped[int] = mapped_column(ForeignKey("owners.id"))
    name: Mapped[str]
    version: Mapped[str]
    visibility: Mapped[str]
    state: Mapped[str] = mapped_column(default="open")
    open_key: Mapped[str | None] = mapped_column(unique=True)  # `owner/name@version` while it is open
    created_at: Mapped[dt.datetime]
    expires_at: Mapped[dt.datetime]
    created_by: Mapped[str | None]

    owner: Mapped[Owner] = relationship(lazy="joined")
    files: Mapped[list[SessionFile]] = relationship(back_populates="session", lazy="selectin")


class SessionFile(Base):
    """A file that a session was promised; `stored` once all its bytes are here, or were published before."""

    __tablename__ = "session_files"
    __table_args__ = (UniqueConstraint("session_id", "filename"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    session_id: Mapped[str] = mapped_column(ForeignKey("upload_sessions.id"))
    filename: Mapped[str]
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str]
    stored: Mapped[bool] = mapped_column(default=False)

    session: Mapped[UploadSession] = relationship(back_populates="files")
