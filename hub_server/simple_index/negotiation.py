"""Which form of a page a client gets (PEP 691): JSON or HTML, compressed or not.

    negotiate("application/vnd.pypi.simple.v1+json, text/html;q=0.1", b"")    Form.JSON
    negotiate("image/png", b"")                                               None: answer 406

The highest quality wins; among equals JSON, then the versioned HTML. Nothing said means HTML.
"""

from __future__ import annotations

import enum
from functools import lru_cache
from urllib.parse import parse_qs


class Form(enum.Enum):
    """A form of a page; the value is its content type."""

    JSON = "application/vnd.pypi.simple.v1+json"
    HTML = "application/vnd.pypi.simple.v1+html"
    PLAIN_HTML = "text/html"


_NAMES: dict[str, Form] = {
    **{form.value: form for form in Form},
    "application/vnd.pypi.simple.latest+json": Form.JSON,  # answered with the concrete type
    "application/vnd.pypi.simple.latest+html": Form.HTML,
}


@lru_cache(maxsize=1024)
def negotiate(accept: str | None, query: bytes) -> Form | None:
    """The form for an Accept header and a query string, whose `format=` wins. None if none is acceptable."""
    if query and (asked := parse_qs(query.decode("latin-1")).get("format")):
        return _NAMES.get(asked[-1].strip().lower().replace(" ", "+"))  # an unescaped + reads as a space
    if accept is None or not accept.strip():
        return Form.PLAIN_HTML
    qualities = _qualities(accept)
    best = max(Form, key=lambda form: _quality_of(form, qualities))  # the first of equals
    return best if _quality_of(best, qualities) > 0 else None


@lru_cache(maxsize=1024)
def accepts_gzip(accept_encoding: str | None) -> bool:
    """Whether a client takes gzip."""
    qualities = _qualities(accept_encoding or "")
    return qualities.get("gzip", qualities.get("*", 0.0)) > 0


def _qualities(header: str) -> dict[str, float]:
    """What a header of weighted items says; of an item that is named twice the higher weight."""
    found: dict[str, float] = {}
    for item in header.split(","):
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        if name:
            found[name] = max(found.get(name, 0.0), _weight(parameters))
    return found


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            try:
                weight = float(value)
            except ValueError:
                return 0.0
            return weight if 0.0 <= weight <= 1.0 else 0.0  # also for nan
    return 1.0


def _quality_of(form: Form, qualities: dict[str, float]) -> float:
    """The weight of the most specific item that covers a form (RFC 9110, 12.5.1)."""
    named = [qualities[name] for name, of in _NAMES.items() if of is form and name in qualities]
    if named:
        return max(named)
    kind = form.value.partition("/")[0]
    return qualities.get(f"{kind}/*", qualities.get("*/*", 0.0))
