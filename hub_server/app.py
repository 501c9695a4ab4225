"""The application: every part put together.

    uvicorn.run(create_app(load_settings(data=Path("hub"))))
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from hub_server.accounts import api as accounts
from hub_server.context import Context
from hub_server.database import Database
from hub_server.inspector import Inspector
from hub_server.migrations.upgrade import upgrade
from hub_server.operations import api as operations
from hub_server.problems import Problem
from hub_server.publishing import legacy
from hub_server.settings import Settings
from hub_server.simple_index.api import IndexRoute
from hub_server.storage import FolderStorage


def create_app(settings: Settings) -> FastAPI:
    """A hub. The schema is brought up to date first; what lives elsewhere is reached on the first request."""
    database = Database(settings.database, settings.database_connections)
    context = Context(settings, database, FolderStorage(settings.data), Inspector(settings.inspectors))
    upgrade(context.database)

    index = IndexRoute(context)

    @asynccontextmanager
    async def life(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await index.indexes.watch.close()
        context.inspector.close()
        context.database.close()

    app = FastAPI(title="hub", version="1", lifespan=life, redirect_slashes=False)
    app.state.context = context
    app.add_exception_handler(Problem, _answer_problem)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.router.routes.insert(0, index)
    # Order matters: what is named comes before `/{owner}/…`.
    for router in (operations.router, accounts.router, legacy.router):
        app.include_router(router)
    return app


def _answer_problem(_request: Request, problem: Exception) -> JSONResponse:
    assert isinstance(problem, Problem)
    return JSONResponse(problem.body(), problem.status, problem.headers)


def _answer_http_error(_request: Request, error: Exception) -> JSONResponse:
    """What the framework itself refuses, such as a route that is not there, in the one shape."""
    assert isinstance(error, HTTPException)
    problem = Problem(str(error.detail), code=f"http-{error.status_code}", hint="See docs/reference/hub-api.md.")
    return JSONResponse(problem.body(), error.status_code, error.headers)


def _answer_invalid(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    found = [f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors()]
    problem = Problem("; ".join(found), code="invalid", hint="Correct the fields named in the message.")
    return JSONResponse(problem.body(), 422)
