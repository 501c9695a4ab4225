"""Upload sessions: the files of one version come in one by one, may resume, and become visible together.

The bytes lie in `incoming` of the machine that took them until the session is published: with several machines behind
one address, a session's requests go to one of them. Everyone who may publish the project may go on with a session.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import hmac
import secrets
from contextlib import AbstractContextManager
from io import BufferedRandom
from pathlib import Path
from typing import Any, BinaryIO

from sqlalchemy import delete, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from hub_server.accounts.models import Owner
from hub_server.accounts.service import Principal
from hub_server.context import Context
from hub_server.database import now
from hub_server.problems import Problem
from hub_server.publishing import service
from hub_server.publishing.errors import (
    Disagreement,
    NoSession,
    SessionIncomplete,
    SessionOpen,
    TooLarge,
    VisibilityDiffers,
    WrongDigest,
    WrongOffset,
)
from hub_server.publishing.models import SessionFile, UploadSession
from hub_server.publishing.pipeline import Publication, named_file, publish
from hub_server.publishing.receive import Upload
from verifiers.hub.package.names import canonical_version, check_project, has_local_part, normalise
from verifiers.hub.package.refusal import RefusedError, refuse
from verifiers.hub.schema import NewSession
from verifiers.locks import is_at, turn

LIFETIME = dt.timedelta(hours=24)


def create(context: Context, principal: Principal, slug: str, name: str, new: NewSession) -> UploadSession:
    """Open a session. Refused early where the release could not be published anyway; SessionOpen if there is one."""
    name = check_project(name)
    _check_promise(context, name, new)
    with context.database.read() as session:
        names = [file.name for file in new.files]
        place, known = service.find_place(session, principal, slug, name, names, new.visibility or "public")
        if new.visibility not in (None, place.visibility):
            raise VisibilityDiffers(f"{slug}/{name} is {place.visibility}")
        if place.visibility == "public" and has_local_part(new.version):
            refuse("local-version", f"{new.version!r} is a local version")
        held = {file.name: service.is_known(known.get(file.name), file.name, file.sha256) for file in new.files}
        if place.project_id is not None and not all(held.values()):
            service.open_release(session, place.project_id, name, named_file(names[0])[1], _kinds(names))
    at = now()
    made = UploadSession(
        id=secrets.token_hex(16), owner_id=place.owner.id, name=name, version=named_file(names[0])[1],
        visibility=place.visibility, state="open", open_key=f"{slug}/{name}@{canonical_version(new.version)}",
        created_at=at, expires_at=at + LIFETIME, created_by=principal.slug,
    )  # fmt: skip
    made.files = [
        SessionFile(filename=file.name, size=file.size, sha256=file.sha256, stored=held[file.name])
        for file in new.files
    ]
    _make_room(context, slug, made)
    try:
        with context.database.write() as session:
            session.add(made)
            session.flush()
            session.refresh(made)
    except IntegrityError:  # another one was opened in this moment
        _make_room(context, slug, made)
        raise SessionOpen(f"a session for {made.open_key} was open a moment ago", hint="Try again.") from None
    return made


def _check_promise(context: Context, name: str, new: NewSession) -> None:
    """The files are of this version, and of a size that the hub takes."""
    if len({file.name for file in new.files}) != len(new.files):
        raise Disagreement("a file is named twice")
    version = canonical_version(new.version)
    limit = context.settings.max_file_size
    for file in new.files:
        theirs, spelt = named_file(file.name)
        if (theirs, canonical_version(spelt)) != (name, version):
            raise Disagreement(f"{file.name} is {theirs} {spelt}, not {name} {new.version}")
        if file.size > limit:
            raise TooLarge(f"{file.name} has {file.size:,} bytes, more than {limit:,}")


def _kinds(filenames: list[str]) -> set[str]:
    return {"wheel" if filename.endswith(".whl") else "sdist" for filename in filenames}


def _make_room(context: Context, slug: str, new: UploadSession) -> None:
    """End an expired session of this version. SessionOpen if the one that is there has not expired."""
    with context.database.read() as session:
        old = session.scalar(select(UploadSession).where(UploadSession.open_key == new.open_key))
    if old is None:
        return
    if old.expires_at > now():
        place = f"/api/v1/{slug}/{old.name}/releases/{old.id}"
        raise SessionOpen(f"a session for {new.open_key} is open", headers={"Location": place})
    _end_expired(context, old.id)


def find(session: Session, principal: Principal, slug: str, name: str, session_id: str) -> UploadSession:
    """The session, for whoever may publish the project. NoSession if there is none, or it expired."""
    service.find_place(session, principal, slug, normalise(name), (), "public")
    query = select(UploadSession).join(Owner, UploadSession.owner_id == Owner.id)
    found = session.scalar(
        query.where(UploadSession.id == session_id, Owner.slug == slug, UploadSession.name == normalise(name))
    )
    if found is None or (found.state == "open" and found.expires_at <= now()):
        raise NoSession(f"there is no session {session_id[:64]!r} for {slug}/{name}")
    return found


def file_of(upload: UploadSession, filename: str) -> SessionFile:
    """A file that the open session was promised. NoSession if it is not open, or knows of no such file."""
    found = [file for file in upload.files if file.filename == filename]
    if upload.state != "open" or not found:
        raise NoSession(f"the session is {upload.state} and takes no file {filename[:200]!r}")
    return found[0]


def path_of(context: Context, file: SessionFile) -> Path:
    """Where the bytes of a file lie until they are published."""
    return context.storage.incoming / f"session-{file.session_id}-{file.id}"


def received(context: Context, file: SessionFile) -> int:
    """How many bytes of a file are here."""
    if file.stored:
        return file.size
    with contextlib.suppress(FileNotFoundError):
        return path_of(context, file).stat().st_size
    return 0


class FileWriter:
    """The bytes of one PUT. Its methods run in threads, one at a time.

    Each PUT writes a file of its own, which begins with the bytes that it goes on from and takes the place of the one
    before. A PUT that was thought broken and still writes can so change nothing that is compared or published.
    """

    def __init__(self, context: Context, file: SessionFile, offset: int) -> None:
        """Call it while the session is held (`begin`)."""
        self.context, self.file = context, file
        self.path = path_of(context, file)
        self.at = offset
        self._out: BufferedRandom | None = None
        if offset > (here := received(context, file)):
            raise self._wrong_offset(f"has {here:,} bytes here, not {offset:,}")
        if not file.stored:
            self._out = self._own_file(offset)

    def _own_file(self, offset: int) -> BufferedRandom:
        mine = self.path.with_name(f"{self.path.name}-{secrets.token_hex(8)}")
        out = mine.open("x+b")
        try:
            if offset:
                with self.path.open("rb") as before:
                    _copy(before, out, offset)
            mine.replace(self.path)
        except OSError:
            out.close()
            mine.unlink(missing_ok=True)
            raise
        return out

    def feed(self, data: bytes) -> None:
        """Take the next bytes. What is stored already is taken for what it is."""
        self.at += len(data)
        if self.at > self.file.size:
            raise TooLarge(f"{self.file.filename} was to have {self.file.size:,} bytes, and there are more")
        if self._out is not None:
            self._out.write(data)

    def close(self) -> None:
        """Keep what is here."""
        if self._out is not None:
            self._out.close()

    def finish(self) -> int:
        """Close; if the file is complete, compare it with the promised digest. Returns how many bytes are here."""
        if self._out is None:
            return received(self.context, self.file)
        self._out.flush()
        self._out.seek(0)
        whole = self.at == self.file.size
        digest = hashlib.file_digest(self._out, "sha256").hexdigest() if whole else ""
        with _one_at_a_time(self.context, self.file.session_id):
            if not self._is_current():
                raise self._wrong_offset("is sent by another request since, or not waited for any more")
            if whole and not hmac.compare_digest(digest, self.file.sha256):
                self.path.unlink()
                raise WrongDigest(f"{self.file.filename} was to have the sha256 {self.file.sha256}, and has {digest}")
            if whole:
                _set_stored(self.context, [self.file], True)
        self.close()
        return self.at

    def _is_current(self) -> bool:
        assert self._out is not None
        return is_at(self._out.fileno(), self.path)

    def _wrong_offset(self, what: str) -> WrongOffset:
        headers = {"Upload-Offset": str(received(self.context, self.file))}
        return WrongOffset(f"{self.file.filename} {what}", headers=headers)


def begin(
    context: Context, principal: Principal, slug: str, name: str, session_id: str, filename: str, offset: int
) -> FileWriter:
    """Take the bytes of a file from an offset on."""
    with context.database.read() as session:
        known = find(session, principal, slug, name, session_id).id
    with _one_at_a_time(context, known), context.database.read() as session:
        return FileWriter(context, file_of(find(session, principal, slug, name, known), filename), offset)


def _copy(source: BinaryIO, target: BinaryIO, size: int) -> None:
    while size and (chunk := source.read(min(size, 1 << 20))):
        target.write(chunk)
        size -= len(chunk)


def _set_stored(context: Context, files: list[SessionFile], stored: bool) -> None:
    with context.database.write() as session:
        ids = [file.id for file in files]
        session.execute(update(SessionFile).where(SessionFile.id.in_(ids)).values(stored=stored))


def publish_session(
    context: Context, principal: Principal, slug: str, name: str, session_id: str, report: dict[str, Any] | None
) -> tuple[UploadSession, bool]:
    """Check everything and make the release visible. Returns the session, and whether anything was new.

    A refusal of what was sent ends the session and removes its bytes: others need another session anyway.
    """
    with context.database.read() as session:
        known = find(session, principal, slug, name, session_id).id
    with _one_at_a_time(context, known):
        with context.database.read() as session:
            found = find(session, principal, slug, name, known)
        if found.state == "published":
            return found, False
        if found.state != "open":
            raise NoSession(f"the session {found.id} is {found.state}")
        _check_complete(context, found)
        uploads = [Upload(path_of(context, file), file.filename, file.size, file.sha256) for file in found.files]
        visibility: service.Visibility = "private" if found.visibility == "private" else "public"
        try:
            done = publish(
                Publication(
                    context, principal, slug, uploads, visibility, told_name=found.name, told_version=found.version,
                    report=report, also=lambda session: _set_published(session, found),
                )
            )  # fmt: skip
        except (Problem, RefusedError) as refused:
            if isinstance(refused, RefusedError) or refused.status == 400:
                _abort_open(context, principal, slug, name, session_id)
            raise
        if not done.created:  # all of it was there before
            with context.database.write() as session:
                _set_published(session, found)
        _remove_bytes(context, found)
        return found, done.created


def warnings_of(context: Context, upload: UploadSession) -> list[str]:
    """What the hub remarked on the release."""
    with context.database.read() as session:
        return service.warnings_of(session, upload.owner_id, upload.name, canonical_version(upload.version))


def _set_published(session: Session, upload: UploadSession) -> None:
    """Close a session with the transaction that publishes it. NoSession if somebody has aborted it meanwhile."""
    state = _held_state(session, upload.id)
    if state != "open":
        raise NoSession(f"the session {upload.id} is {state}")
    _close(session.get_one(UploadSession, upload.id), "published")


def _held_state(session: Session, session_id: str) -> str | None:
    """The state of a session, whose row is held until the commit: publishing and aborting it take turns."""
    return session.scalar(select(UploadSession.state).where(UploadSession.id == session_id).with_for_update())


def _check_complete(context: Context, upload: UploadSession) -> None:
    """Every promised byte is here, or is a blob since a server that was killed then."""
    lost = [
        file for file in upload.files
        if file.stored and not path_of(context, file).exists() and context.storage.size(file.sha256) is None
    ]  # fmt: skip
    if lost:
        _set_stored(context, lost, False)
    missing = [file.filename for file in upload.files if not file.stored or file in lost]
    if missing:
        raise SessionIncomplete(f"the session lacks {', '.join(missing)}")


def abort(context: Context, principal: Principal, slug: str, name: str, session_id: str) -> None:
    """End an open session, and forget its bytes. One that is being published may not be open afterwards."""
    with context.database.read() as session:
        known = find(session, principal, slug, name, session_id).id
    with _one_at_a_time(context, known):
        _abort_open(context, principal, slug, name, known)


def _abort_open(context: Context, principal: Principal, slug: str, name: str, session_id: str) -> None:
    with context.database.write() as session:
        _held_state(session, session_id)
        found = find(session, principal, slug, name, session_id)
        if found.state == "published":
            raise NoSession(f"the session {found.id} is published")
        _abort(context, found)


def abort_expired(context: Context) -> int:
    """End the sessions whose time is over. Returns how many there were."""
    expired = select(UploadSession.id).where(UploadSession.state == "open", UploadSession.expires_at <= now())
    with context.database.read() as session:
        ids = session.scalars(expired).all()
    return sum(_end_expired(context, session_id) for session_id in ids)


def _end_expired(context: Context, session_id: str) -> bool:
    """End a session, unless it ends otherwise first: who has begun to publish it, or to send a file, comes before."""
    with _one_at_a_time(context, session_id), context.database.write() as session:
        if _held_state(session, session_id) != "open":
            return False
        _abort(context, session.get_one(UploadSession, session_id))
        return True


def forget_ended(context: Context, before: float) -> None:
    """Delete the rows of sessions that are over since before a moment: nobody asks for their outcome any more."""
    moment = dt.datetime.fromtimestamp(before, dt.UTC)
    ended = select(UploadSession.id).where(UploadSession.state != "open", UploadSession.expires_at < moment)
    with context.database.write() as session:
        session.execute(delete(SessionFile).where(SessionFile.session_id.in_(ended)))
        session.execute(delete(UploadSession).where(UploadSession.id.in_(ended)))


def _abort(context: Context, upload: UploadSession) -> None:
    _close(upload, "aborted")
    _remove_bytes(context, upload)


def _close(upload: UploadSession, state: str) -> None:
    upload.state = state
    upload.open_key = None


def _remove_bytes(context: Context, upload: UploadSession) -> None:
    for file in upload.files:
        path_of(context, file).unlink(missing_ok=True)


def _one_at_a_time(context: Context, session_id: str) -> AbstractContextManager[None]:
    """Requests that publish or abort one session, and the beginning and the end of each PUT, take turns."""
    return turn(context.storage.incoming / f"session-{session_id}.lock")
