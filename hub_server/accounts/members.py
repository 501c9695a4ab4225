"""Owners and the members of organisations, as the caller may see and change them."""

from __future__ import annotations

from sqlalchemy import Select, delete, func, or_, select
from sqlalchemy.orm import Session

from hub_server.accounts.errors import LastAdmin, NoOrganisation
from hub_server.accounts.models import Membership, Owner
from hub_server.accounts.service import (
    SCOPES,
    Principal,
    check_still_valid,
    create_owner,
    create_token,
    find_owner,
    require,
)
from hub_server.database import now
from hub_server.journal import record
from hub_server.problems import Denied, NotFound


def require_site_admin(principal: Principal) -> None:
    """Denied unless the caller runs the hub."""
    if not principal.runs_the_hub():
        raise Denied(
            f"{principal.slug}'s token {principal.token_id} is not that of an admin of the hub",
            hint="On the hub's machine: hub admin create-owner NAME --site-admin.",
        )


def add_owner(
    session: Session, principal: Principal, slug: str, kind: str, admin: str | None
) -> tuple[Owner, str | None]:
    """A new owner: a user with a first token (its text), or an organisation with its first admin."""
    require_site_admin(principal)
    check_still_valid(session, principal, hold=True)  # as for any token that is made with another
    first_admin = find_owner(session, admin or principal.slug) if kind == "organisation" else None
    owner = create_owner(session, slug, kind, principal.slug, token_id=principal.token_id)
    if first_admin is not None:
        _set(session, principal, owner, first_admin, "admin")
        return owner, None
    first = create_token(session, owner, "first", SCOPES, actor=principal.slug, parent_id=principal.token_id)
    return owner, first[1]


def owners_of(session: Session, principal: Principal) -> list[tuple[Owner, str]]:
    """The caller's own account, and the organisations it is in, with its role; for a site admin every owner."""
    query = select(Owner, Membership.role).outerjoin(
        Membership, (Membership.organisation_id == Owner.id) & (Membership.user_id == principal.owner_id)
    )
    if not principal.site_admin:
        query = query.where(or_(Owner.id == principal.owner_id, Membership.role.is_not(None)))
    full = principal.site_admin
    rows = session.execute(query.order_by(Owner.slug)).all()
    return [(owner, "admin" if full or owner.id == principal.owner_id else role) for owner, role in rows]


def members_of(session: Session, principal: Principal, owner: Owner) -> list[tuple[Owner, Membership]]:
    """The members of an organisation, for its members."""
    require(session, principal, "read", owner, role="reader")
    query = select(Owner, Membership).join(Membership, Membership.user_id == Owner.id)
    rows = session.execute(query.where(Membership.organisation_id == owner.id).order_by(Owner.slug)).all()
    return [(user, membership) for user, membership in rows]


def set_member(session: Session, principal: Principal, organisation: str, user: str, role: str) -> None:
    """Add a member, or change its role. LastAdmin if nobody would be left to look after the organisation."""
    owner = _locked(session, principal, organisation)
    member = find_owner(session, user)
    if member.kind != "user":
        raise NoOrganisation(f"{user} is an organisation, and can not be a member")
    _set(session, principal, owner, member, role)


def remove_member(session: Session, principal: Principal, organisation: str, user: str) -> None:
    """Remove a member; everybody may leave. NotFound if it is none, LastAdmin as above."""
    leaves = user == principal.slug and principal.allows("admin", organisation)
    owner = _locked(session, principal, organisation, anybody=leaves)
    member = find_owner(session, user)
    gone = session.scalar(_membership(owner, member))
    if gone is None:
        raise NotFound(f"{user} is no member of {organisation}", hint=f"hub owner members {organisation}")
    if gone.role == "admin":
        _keep_an_admin(session, owner, member)
    session.execute(delete(Membership).where(Membership.id == gone.id))
    data = {"user": user, "role": gone.role}
    record(
        session, "member.remove", actor=principal.slug, token_id=principal.token_id, owner=owner.slug, data=data
    )


def _locked(session: Session, principal: Principal, slug: str, anybody: bool = False) -> Owner:
    """The organisation, its row held until the commit: changes of its members take turns."""
    owner = find_owner(session, slug, lock=True)
    if not anybody:
        require(session, principal, "admin", owner, role="admin")
    if owner.kind != "organisation":
        raise NoOrganisation(f"{slug} is a user, and has no members")
    return owner


def _set(session: Session, principal: Principal, owner: Owner, user: Owner, role: str) -> None:
    held = session.scalar(_membership(owner, user))
    if held is not None and held.role == role:
        return
    before = held.role if held else None
    if held is None:
        session.add(Membership(organisation_id=owner.id, user_id=user.id, role=role, created_at=now()))
    else:
        if held.role == "admin":
            _keep_an_admin(session, owner, user)
        held.role = role
    data = {"user": user.slug, "role": role, "before": before}
    record(session, "member.set", actor=principal.slug, token_id=principal.token_id, owner=owner.slug, data=data)


def _membership(owner: Owner, user: Owner) -> Select[Membership]:
    return select(Membership).where(Membership.organisation_id == owner.id, Membership.user_id == user.id)


def _keep_an_admin(session: Session, owner: Owner, leaving: Owner) -> None:
    others = select(func.count()).where(
        Membership.organisation_id == owner.id, Membership.role == "admin", Membership.user_id != leaving.id
    )
    if not session.scalar(others):
        raise LastAdmin(f"{leaving.slug} is the last admin of {owner.slug}")
