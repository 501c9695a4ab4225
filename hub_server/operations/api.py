"""Health and numbers, for whoever restarts the hub, sends it requests, or watches it."""

from __future__ import annotations

import shutil

from fastapi import APIRouter, Response
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from hub_server.accounts.auth import HubContext
from hub_server.context import Context
from hub_server.operations import metrics
from hub_server.problems import NotFound, Unavailable
from hub_server.storage import StorageError

router = APIRouter()


class NotReady(Unavailable):
    """The hub can not serve now."""

    code = "not-ready"
    hint = "Mend what the message names; the hub needs no restart."


@router.get("/healthz", include_in_schema=False)
def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz", include_in_schema=False)
def readyz(context: HubContext) -> dict[str, str]:
    """The database and the storage answer, and there is room on the disk. 503 with the reasons otherwise."""
    if reasons := [reason for check in (_database, _storage, _space) if (reason := check(context))]:
        raise NotReady("; ".join(reasons))
    return {"status": "ready"}


@router.get("/metrics", include_in_schema=False)
def numbers(context: HubContext) -> Response:
    """For Prometheus."""
    if not context.settings.metrics:
        raise NotFound("this hub shows no metrics", hint="HUB_METRICS=true switches them on.")
    return Response(metrics.page(context), media_type="text/plain; version=0.0.4; charset=utf-8")


def _database(context: Context) -> str | None:
    try:
        with context.database.read() as session:
            session.execute(text("SELECT serial FROM hub_state"))
    except SQLAlchemyError as error:
        return f"the database does not answer ({type(error).__name__})"
    return None


def _storage(context: Context) -> str | None:
    try:
        context.storage.check()
    except StorageError as error:
        return str(error)
    return None


def _space(context: Context) -> str | None:
    free = shutil.disk_usage(context.settings.data).free
    if free < context.settings.min_free_space:
        return f"only {free >> 20} MiB are free on the volume of the data folder"
    return None
