"""What a request may be refused with, in one shape: `{"code", "message", "hint", "docs"}`.

A domain's `errors.py` subclasses `Problem`. The upload route sends the message as plain text instead: uv stops its
re-check of a raced upload at any error body it does not know (astral-sh/uv, `uv publish`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

DOCS = "docs/reference/hub-api.md#errors"


class Problem(Exception):
    """A refusal. Subclasses fix `status`, `code` and a `hint`; an instance may be given a better hint."""

    status: ClassVar[int] = 400
    code: str = "bad-request"
    hint: str = "See the message."

    def __init__(
        self, message: str, *, hint: str | None = None, code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.message = message
        self.hint = hint or type(self).hint
        self.code = code or type(self).code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON object."""
        return {"code": self.code, "message": self.message, "hint": self.hint, "docs": DOCS}


class NotFound(Problem):
    """It is not there, or the caller may not know that it is."""

    status = 404
    code = "not-found"
    hint = "Check the owner, the name and the version; a private project needs a token that may read it."


class NotLoggedIn(Problem):
    """No token, where one is needed."""

    status = 401
    code = "not-logged-in"
    hint = "Give a token: hub login, or user name __token__ with the token as the password."

    def __init__(self, message: str = "this needs a token", **more: Any) -> None:
        super().__init__(message, headers={"WWW-Authenticate": 'Basic realm="hub"'}, **more)


class Denied(Problem):
    """The token is wrong, or does not allow this."""

    status = 403
    code = "denied"
    hint = "hub whoami shows what the token may do; hub token create makes another."


class Conflict(Problem):
    """It contradicts what is there."""

    status = 409
    code = "conflict"


class Unavailable(Problem):
    """The hub can not do it now."""

    status = 503
    code = "unavailable"
    hint = "Try again later."
