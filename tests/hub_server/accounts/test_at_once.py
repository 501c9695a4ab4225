"""Changes of accounts at the same moment, on both databases: one wins, and what was taken back stays so."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from sqlalchemy import select

from hub_server.accounts.errors import BadToken, OwnerTaken
from hub_server.accounts.models import Owner, Token
from hub_server.accounts.service import authenticate, create_owner, create_token
from hub_server.accounts.tokens import derive_token, revoke_leaked
from hub_server.database import Database
from hub_server.maintenance.first_token import create_first_token
from hub_server.migrations.upgrade import upgrade
from verifiers.hub.schema import NewToken

CALLERS, ROUNDS = 8, 20


@pytest.fixture
def database(database_url):
    database = Database(database_url)
    upgrade(database)
    yield database
    database.close()


def at_once(*calls):
    """What they return, or their refusals; all begin at the same moment."""
    start = Barrier(len(calls))

    def run(call):
        start.wait()
        try:
            return call()
        except (OwnerTaken, BadToken) as refused:
            return refused

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def test_an_owner_is_made_once(database):
    """Of all who make it at once one does; the others hear that it is there. No error of the database comes out."""

    def make(slug):
        with database.write() as session:
            return create_owner(session, slug).slug

    for number in range(ROUNDS):
        made = at_once(*[lambda slug=f"owner-{number}": make(slug)] * CALLERS)
        assert sum(isinstance(one, OwnerTaken) for one in made) == CALLERS - 1
        tokens = at_once(*[lambda slug=f"first-{number}": create_first_token(database, slug)] * CALLERS)
        assert tokens.count(None) == CALLERS - 1


def test_no_token_outlives_the_one_that_it_was_made_with(database):
    """A leaked token is revoked with all that were made with it, also those that are being made."""
    with database.write() as session:
        owner = create_owner(session, "alice")

    def derive(principal):
        asked = NewToken(name="more", scopes=["read"])
        with database.write() as session:
            return derive_token(session, principal, session.get_one(Owner, owner.id), asked)

    def revoke(text):
        with database.write() as session:
            return revoke_leaked(session, [text])

    for _ in range(ROUNDS):
        with database.write() as session:
            text = create_token(session, session.get_one(Owner, owner.id), "leaks", ["admin"])[1]
        with database.read() as session:
            principal = authenticate(session, text)
        *made, revoked = at_once(*[lambda who=principal: derive(who)] * 4, lambda leaked=text: revoke(leaked))
        assert revoked == 1 + sum(not isinstance(one, BadToken) for one in made)
        with database.read() as session:
            assert session.scalars(select(Token).where(Token.revoked_at.is_(None))).all() == []
