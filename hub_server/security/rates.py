"""Rate limits: one bucket in the database for each action and account or address.

    spend(context.database, context.settings, "publish", principal.slug)      # raises TooMany, or returns

A bucket is one number, the moment at which it is full again: the virtual scheduling form of the token bucket (ITU-T
I.371, "generic cell rate algorithm"). Taking from it is one UPSERT, so that callers at the same time take turns at its
row. A bucket that is full says nothing, so its row may go at any time (`forget_full`).
"""

from __future__ import annotations

import ipaddress
import math
import time
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Double, case, delete, or_, select
from sqlalchemy.dialects.postgresql import insert as insert_postgresql
from sqlalchemy.dialects.sqlite import insert as insert_sqlite
from sqlalchemy.orm import Mapped, Session, mapped_column

from hub_server.database import Base, Database
from hub_server.problems import Problem
from hub_server.settings import Settings


class Rate(NamedTuple):
    """One each `interval` seconds in the long run, `burst` at once."""

    interval: float
    burst: int


RATES = {
    "new-project": Rate(600, 5),
    "publish": Rate(60, 30),
    "yank": Rate(60, 100),
    "search": Rate(0.5, 60),
    "login": Rate(6, 10),
}
"""By action. The first three count for each account; searches and logins that failed for each address."""


class RateBucket(Base):
    """A bucket that is not full, or one with a rate of its own. Times are in seconds since 1970."""

    __tablename__ = "rate_buckets"

    action: Mapped[str] = mapped_column(primary_key=True)
    subject: Mapped[str] = mapped_column(primary_key=True)
    full_at: Mapped[float] = mapped_column(Double)
    own_interval: Mapped[float | None] = mapped_column(Double)
    own_burst: Mapped[int | None]
    own_until: Mapped[float | None] = mapped_column(Double)


_KEY = (RateBucket.action, RateBucket.subject)


def _insert(session: Session) -> Any:
    on_postgresql = session.get_bind().dialect.name == "postgresql"
    return (insert_postgresql if on_postgresql else insert_sqlite)(RateBucket)


class TooMany(Problem):
    """A rate limit is reached. `Retry-After` is in seconds."""

    status = 429
    code = "rate-limited"

    def __init__(self, action: str, wait: float) -> None:
        seconds = max(1, math.ceil(wait))
        until = time.strftime("%H:%M:%S", time.gmtime(time.time() + seconds))
        super().__init__(
            f"too many requests ({action}): the next is possible in {seconds} s, at {until} UTC",
            hint="Wait until then; an admin of the hub can raise the limit for an account.",
            headers={"Retry-After": str(seconds)},
        )


def spend(database: Database, settings: Settings, action: str, subject: str) -> None:
    """Take one from a bucket, in a transaction of its own. TooMany if there is none. Nothing where limits are off.

    subject: the account's slug, or `address(host)`.
    """
    if not settings.rate_limits:
        return
    with database.write() as session:
        wait = take(session, action, subject, time.time())
    if wait is not None:
        raise TooMany(action, wait)


def take(session: Session, action: str, subject: str, at: float) -> float | None:
    """Take one from a bucket at a moment. None if there was one, else the seconds until there is."""
    rate = RATES[action]
    held = case((RateBucket.own_until > at, RateBucket.own_interval), else_=rate.interval)
    burst = case((RateBucket.own_until > at, RateBucket.own_burst), else_=rate.burst)
    full_at = _later(RateBucket.full_at, at) + held
    statement = _insert(session).values(action=action, subject=subject, full_at=at + rate.interval)
    statement = statement.on_conflict_do_update(
        index_elements=_KEY,
        set_={"full_at": full_at},
        where=full_at <= at + held * burst + 1e-6,  # a microsecond for what binary fractions lose
    )
    if session.execute(statement.returning(RateBucket.full_at)).scalar() is not None:
        return None
    missing = select(full_at - held * burst - at)
    missing = missing.where(RateBucket.action == action, RateBucket.subject == subject)
    return max(0.0, session.execute(missing).scalar() or 0.0)


def _later(column: Any, at: float) -> ColumnElement[float]:
    return case((column > at, column), else_=at)


def address(host: str | None) -> str:
    """What stands for a client's address: for IPv6 the network of 64 bits, which is one customer's."""
    try:
        found = ipaddress.ip_address(host or "")
    except ValueError:
        return host or "unknown"
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))


def allow(session: Session, action: str, subject: str, own: Rate | None, until: float) -> None:
    """Give an account a rate of its own until a moment; None takes it away. What it has spent stays spent."""
    interval, burst = own or (None, None)
    values = {"own_interval": interval, "own_burst": burst, "own_until": until if own else None}
    statement = _insert(session).values(action=action, subject=subject, full_at=0.0, **values)
    session.execute(statement.on_conflict_do_update(index_elements=_KEY, set_=values))


def forget_full(session: Session) -> int:
    """Delete the buckets that are full and have no rate of their own. Returns how many."""
    at = time.time()
    idle = or_(RateBucket.own_until.is_(None), RateBucket.own_until <= at)
    done = session.execute(delete(RateBucket).where(RateBucket.full_at <= at, idle).returning(RateBucket.action))
    return len(done.all())
