"""What any route may answer instead of what was asked for, stated once for the OpenAPI description."""

from __future__ import annotations

from typing import Any

from verifiers.hub.schema import Problem

Answers = dict[int | str, dict[str, Any]]

_MEANINGS = {
    400: "The request is refused: a rule is broken, or a value is none.",
    401: "A token is needed.",
    403: "The token is not valid, or does not allow this.",
    404: "It is not there, or the caller may not know that it is.",
    409: "It contradicts what is there.",
    413: "It is too large.",
    415: "It is not text.",
    422: "The request has not the form that it must have.",
    429: "Too many in a short time; `Retry-After` says when to come again.",
    503: "The hub can not do it now; `Retry-After` says when to come again.",
}
_ANYWHERE = (400, 401, 403, 404, 409, 422, 429, 503)


def errors() -> Answers:
    """The errors of every route, each a record with code, message and hint."""
    return {status: {"model": Problem, "description": _MEANINGS[status]} for status in _ANYWHERE}


def errors_of_text(*more: int) -> Answers:
    """The same, and some more, for a route whose answer is text: FastAPI would say that these are text, too."""
    record = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"content": record, "description": _MEANINGS[status]} for status in (*_ANYWHERE, *more)}


def text_errors() -> Answers:
    """The same as one line of plain text, which is what uv and twine print."""
    text = {"text/plain": {"schema": {"type": "string"}}}
    return {status: {"content": text, "description": _MEANINGS[status]} for status in _ANYWHERE}
