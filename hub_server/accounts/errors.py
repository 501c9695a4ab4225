"""What accounts refuse."""

from hub_server.problems import Conflict, Denied, Problem


class BadToken(Denied):
    """The token is unknown, expired or revoked."""

    code = "bad-token"
    hint = "Log in again with a valid token: hub login."


class TokenTooWide(Denied):
    """A token would be made that allows more than the one that makes it."""

    code = "token-too-wide"
    hint = "hub whoami shows what your token allows: ask for no more, or use a token that allows it."


class BadPattern(Problem):
    """A pattern of projects that is none."""

    code = "bad-pattern"
    hint = "A pattern is owner/name in lower case, with * for any characters: alice/* or alice/my-*."


class OwnerTaken(Conflict):
    """There is an owner of that name."""

    code = "owner-taken"
    hint = "Choose another name."


class NoOrganisation(Problem):
    """Only organisations have members, and only users are members."""

    code = "no-organisation"
    hint = "Members are users, and those of an organisation; an organisation is made by an admin of the hub."


class LastAdmin(Conflict):
    """The change would leave an organisation without an admin."""

    code = "last-admin"
    hint = "Make another member an admin first: hub owner add ORGANISATION USER --role admin."
