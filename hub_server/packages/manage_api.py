"""Routes of looking after projects: yank, delete, visibility, status, the plain name.

They answer what is so afterwards; with `dry_run`, what is so now and whether it would change.
"""

from __future__ import annotations

from fastapi import APIRouter

from hub_server.accounts.auth import HubContext, RequiredPrincipal
from hub_server.packages import manage
from hub_server.security.rates import spend
from verifiers.hub.schema import NameTransfer, ProjectChange, ProjectSettings, ReleaseChange, Yank

router = APIRouter(prefix="/api/v1", tags=["projects"])


@router.post("/{owner}/{name}/{version}/yank")
def yank(
    owner: str, name: str, version: str, why: Yank, principal: RequiredPrincipal, context: HubContext,
    dry_run: bool = False,
) -> ReleaseChange:  # fmt: skip
    """Withdraw a release: installers pass it over unless it is pinned."""
    spend(context.database, context.settings, "yank", principal.slug)
    with context.database.write() as session:
        return manage.yank(session, principal, owner, name, version, why, dry_run)


@router.delete("/{owner}/{name}/{version}/yank")
def unyank(
    owner: str, name: str, version: str, principal: RequiredPrincipal, context: HubContext, dry_run: bool = False
) -> ReleaseChange:
    """Offer a yanked release again."""
    spend(context.database, context.settings, "yank", principal.slug)
    with context.database.write() as session:
        return manage.unyank(session, principal, owner, name, version, dry_run)


@router.delete("/{owner}/{name}/{version}")
def delete_release(
    owner: str, name: str, version: str, principal: RequiredPrincipal, context: HubContext, dry_run: bool = False
) -> ReleaseChange:
    """Take a release away, minutes after its upload and before anybody has it; the hub's admins may at any time. Its
    number and its file names stay taken."""
    with context.database.write() as session:
        return manage.delete_release(session, principal, owner, name, version, dry_run)


@router.patch("/{owner}/{name}")
def change_project(
    owner: str, name: str, asked: ProjectSettings, principal: RequiredPrincipal, context: HubContext,
    dry_run: bool = False,
) -> ProjectChange:  # fmt: skip
    """Set a project's visibility, its status, or both: what is null stays."""
    with context.database.write() as session:
        return manage.change_project(session, principal, owner, name, asked, dry_run)


@router.post("/{owner}/{name}/transfer-name")
def transfer_name(
    owner: str, name: str, asked: NameTransfer, principal: RequiredPrincipal, context: HubContext,
    dry_run: bool = False,
) -> ProjectChange:  # fmt: skip
    """Give the plain name of the whole-hub index to another owner's public project of the same name."""
    with context.database.write() as session:
        return manage.transfer_name(session, principal, owner, name, asked.to, dry_run)
