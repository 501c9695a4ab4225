"""What accounts refuse."""

from hub_server.problems import Conflict, Denied


class BadToken(Denied):
    """The token is unknown, expired or revoked."""

    code = "bad-token"
    hint = "Log in again with a valid token: hub login."


class OwnerTaken(Conflict):
    """There is an owner of that name."""

    code = "owner-taken"
    hint = "Choose another name."
