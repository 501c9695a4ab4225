"""Templates to responses: the environment of Jinja, the headers of every page, and pages for what went wrong."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined

from hub_server.context import Context
from hub_server.operations.middleware import note
from hub_server.packages.urls import base_url
from hub_server.pages.shown import diff_lines, size_text, value_text
from hub_server.problems import NotFound, Problem

STYLE = (files("hub_server.pages") / "static" / "hub.css").read_bytes()
STYLE_VERSION = hashlib.sha256(STYLE).hexdigest()[:12]

# Nothing runs, nothing is loaded from elsewhere, no style stands in the page, nobody frames it.
POLICY = "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "private, no-cache",
    "Vary": "Authorization",
}

API = "The addresses are in docs/reference/hub-api.md."

_TEMPLATES = Environment(
    loader=PackageLoader("hub_server.pages"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
    lstrip_blocks=True, auto_reload=False,
)  # fmt: skip
_TEMPLATES.filters.update(size=size_text, diff_lines=diff_lines, value=value_text)


def page(request: Request, template: str, *, twin: str | None, status: int = 200, **values: Any) -> HTMLResponse:
    """A page. `twin` is the path of its JSON twin, below the hub's own URL."""
    context: Context = request.app.state.context
    base = base_url(request, context.settings)
    shared = {"base": base, "root": urlsplit(base).path, "style": STYLE_VERSION, "twin": twin, "query": ""}
    return HTMLResponse(_TEMPLATES.get_template(template).render({**shared, **values}), status, HEADERS)


class PageRoute(APIRoute):
    """A route whose refusals are pages too."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, with pages for problems."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except Problem as problem:
                if request.url.path.startswith("/api/"):  # an address of the API that is not there, not a page
                    raise NotFound(f"a hub has nothing at {request.url.path[:200]}", hint=API) from problem
                return _problem_page(request, problem)
            except RequestValidationError as error:
                told = "; ".join(f"{one['loc'][-1]}: {one['msg']}" for one in error.errors())
                return _problem_page(request, Problem(told, hint="Correct what the message names."))

        return handle


def _problem_page(request: Request, problem: Problem) -> Response:
    note(request.scope, code=problem.code)
    answer = page(request, "problem.html", twin=None, status=problem.status, problem=problem)
    answer.headers.update(problem.headers)
    return answer
