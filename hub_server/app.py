"""The application: every part put together. `hub serve` runs it, after it has upgraded the database.

    uvicorn.run(create_app(load_settings(data=Path("hub"))))
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DataError, OperationalError, TimeoutError as NoConnectionError
from starlette.exceptions import HTTPException

from hub_server.accounts import api as accounts
from hub_server.answers import errors
from hub_server.context import open_context
from hub_server.operations import api as operations
from hub_server.operations.metrics import watch
from hub_server.operations.middleware import Watch, note
from hub_server.packages import api as packages, manage_api as projects
from hub_server.pages import pages
from hub_server.problems import Problem, Unavailable
from hub_server.publishing import api as publishing, legacy
from hub_server.publishing.errors import NoSpace
from hub_server.resolution import api as resolution
from hub_server.search import api as search
from hub_server.settings import Settings
from hub_server.simple_index.api import IndexRoute
from hub_server.storage import StorageError
from verifiers.hub.package.refusal import RefusedError


def create_app(settings: Settings) -> FastAPI:
    """A hub, on a database whose schema is that of this version."""
    context = open_context(settings)
    watch(context)

    index = IndexRoute(context)

    @asynccontextmanager
    async def life(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await index.indexes.watch.close()
        context.inspector.close()
        context.database.close()

    app = FastAPI(title="hub", version="1", lifespan=life, redirect_slashes=False, responses=errors())
    app.state.context = context
    app.add_middleware(Watch, settings=settings)
    for kind in (OperationalError, NoConnectionError, StorageError):
        app.add_exception_handler(kind, _answer_unavailable)
    for value_error in (DataError, UnicodeEncodeError, OverflowError):
        app.add_exception_handler(value_error, _answer_unstorable)
    app.add_exception_handler(OSError, _answer_no_room)
    app.add_exception_handler(Problem, _answer_problem)
    app.add_exception_handler(RefusedError, _answer_refused)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.router.routes.insert(0, index)
    # Order matters: what is named comes before `/{owner}/…`.
    routers = (operations, accounts, projects, legacy, publishing, resolution, search, packages)
    for router in (one.router for one in (*routers, pages)):
        app.include_router(router)
    return app


def _answer_problem(request: Request, problem: Exception) -> Response:
    """In the one shape; at the upload route as the line that its clients print."""
    assert isinstance(problem, Problem)
    if request.method == "POST" and request.url.path.rstrip("/").endswith("/legacy"):
        return legacy.answer(request, problem)
    note(request.scope, code=problem.code)
    return JSONResponse(problem.body(), problem.status, problem.headers)


def _answer_unavailable(request: Request, error: Exception) -> Response:
    """What the hub stands on does not answer: the client may come again, the log has the cause."""
    what = "storage" if isinstance(error, StorageError) else "database"
    structlog.get_logger().error(f"the {what} does not answer", exc_info=error)
    return _answer_problem(request, Unavailable(f"the hub's {what} does not answer", headers={"Retry-After": "10"}))


_NO_ROOM = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE,
)  # fmt: skip
"""The disk or the quota is full, what is there may not be written, or the process has no descriptor left."""


def _answer_no_room(request: Request, error: Exception) -> Response:
    """A disk that is full, or takes nothing, is no fault of the request; any other error of the system is ours."""
    assert isinstance(error, OSError)
    if error.errno not in _NO_ROOM:
        raise error
    structlog.get_logger().error("the disk takes nothing", exc_info=error)
    return _answer_problem(request, NoSpace("the hub has no room for it now", headers={"Retry-After": "60"}))


def _answer_refused(request: Request, refused: Exception) -> JSONResponse:
    """A rule for names and files is broken."""
    assert isinstance(refused, RefusedError)
    note(request.scope, code=refused.code)
    return JSONResponse({**refused.to_dict(), "docs": refused.docs}, 400)


def _answer_unstorable(request: Request, _error: Exception) -> Response:
    """Valid JSON can say what no database takes: half of a surrogate pair, a NUL on PostgreSQL, a moment before the
    first year, an integer of more than 64 bits."""
    problem = Problem("a value of the request is none that the hub can store", code="invalid", hint="Correct it.")
    return _answer_problem(request, problem)


def _answer_http_error(request: Request, error: Exception) -> JSONResponse:
    """What the framework itself refuses, such as a route that is not there, in the one shape."""
    assert isinstance(error, HTTPException)
    said = str(error.detail)
    sentences = {404: f"a hub has nothing at {request.url.path[:200]}", 405: f"no {request.method} is answered here"}
    message = sentences.get(error.status_code, said) if said == HTTPStatus(error.status_code).phrase else said
    hint = "Check the hub's URL; its addresses are in docs/reference/hub-api.md."
    problem = Problem(message, code=f"http-{error.status_code}", hint=hint)
    return JSONResponse(problem.body(), error.status_code, error.headers)


def _answer_invalid(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    found = [f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors()]
    problem = Problem("; ".join(found), code="invalid", hint="Correct the fields named in the message.")
    return JSONResponse(problem.body(), 422)
