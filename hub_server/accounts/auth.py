"""Who a request comes from: FastAPI dependencies.

A token comes as `Authorization: Bearer TOKEN`, or as the password of user `__token__`, which is what installers and
twine send.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

from fastapi import Depends, Request

from hub_server.accounts.errors import BadToken
from hub_server.accounts.service import Principal, authenticate
from hub_server.accounts.tokens import note_use
from hub_server.context import Context, get_context
from hub_server.problems import NotLoggedIn
from hub_server.security.rates import address, spend


def token_of(authorization: str | None) -> str | None:
    """The token in an Authorization header; None without a header. BadToken if it holds none."""
    if not authorization:
        return None
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    if scheme.lower() == "basic":
        try:
            user, _, password = base64.b64decode(rest, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise BadToken("the Authorization header is not readable") from None
        if user == "__token__":
            return password.strip()
        raise BadToken("the user name is __token__, the password a token", hint="twine: -u __token__ -p TOKEN")
    raise BadToken("the Authorization header is neither Basic nor Bearer")


def optional_principal(request: Request, context: Annotated[Context, Depends(get_context)]) -> Principal | None:
    """Who asks; None if nobody says. A token that is not valid is refused even where none is needed."""
    try:
        text = token_of(request.headers.get("authorization"))
        if text is None:
            return None
        with context.database.read() as session:
            principal = authenticate(session, text)
    except BadToken:
        spend(context.database, context.settings, "login", client_of(request))
        raise
    request.state.principal = principal  # for the log
    note_use(context.database, principal)
    return principal


def client_of(request: Request) -> str:
    """The address that a request counts for in rate limits."""
    return address(request.client.host if request.client else None)


def required_principal(principal: Annotated[Principal | None, Depends(optional_principal)]) -> Principal:
    """Who asks, where somebody must."""
    if principal is None:
        raise NotLoggedIn()
    return principal


OptionalPrincipal = Annotated[Principal | None, Depends(optional_principal)]
RequiredPrincipal = Annotated[Principal, Depends(required_principal)]
HubContext = Annotated[Context, Depends(get_context)]
