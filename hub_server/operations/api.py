"""Health, for whoever restarts the hub or sends it requests."""

from __future__ import annotations

from fastapi import APIRouter
from sqlalchemy import text

from hub_server.accounts.auth import HubContext

router = APIRouter()


@router.get("/healthz", include_in_schema=False)
def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz", include_in_schema=False)
def readyz(context: HubContext) -> dict[str, str]:
    """The database and the storage answer, too."""
    with context.database.read() as session:
        session.execute(text("SELECT 1"))
    return {"status": "ready"}
