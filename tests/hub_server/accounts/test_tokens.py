"""Tokens over HTTP, on a live hub with either database."""

import datetime as dt
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from sqlalchemy import select, update

from hub_server.accounts.models import Token
from hub_server.accounts.service import authenticate, create_owner, create_token
from hub_server.accounts.tokens import USE_IS_NOTED, note_use
from hub_server.database import Database
from hub_server.migrations.upgrade import upgrade
from tests.support.hub import running_hub
from tests.support.publish import index_page, publish
from verifiers.errors import HubDeniedError, HubNotFoundError, HubRefusedError
from verifiers.hub.schema import CreatedToken, LeakedTokens, NewToken, Received, TokenList, Whoami


def make(client, name="ci", scopes=("read", "publish"), **more):
    return client.post("/api/v1/tokens", NewToken(name=name, scopes=list(scopes), **more), CreatedToken)


def listed(client, **params):
    return {token.id: token for token in client.get("/api/v1/tokens", TokenList, **params).tokens}


def code_of(error, action):
    with pytest.raises(error) as refused:
        action()
    return refused.value.code


def test_a_token_is_made_used_and_revoked(hub):
    """Its text is shown once; it works until it is revoked, and then names itself as the reason."""
    owner = hub.owner()
    with hub.client(owner.token) as admin:
        made = make(admin, patterns=[f"{owner.slug}/my-*"])
        with hub.client(made.token) as client:
            told = client.get("/api/v1/whoami", Whoami)
            assert (told.owner, told.scopes, told.patterns) == (owner.slug, ["publish", "read"], made.patterns)
            assert 89 <= (told.expires_at - made.created_at).days <= 90
            assert listed(admin)[made.id].last_used_at is not None
            admin.request("DELETE", f"/api/v1/tokens/{made.id}")
            with pytest.raises(HubDeniedError, match=f"{made.id} was revoked"):
                client.get("/api/v1/whoami", Whoami)
        assert listed(admin)[made.id].revoked_at is not None
        again = TokenList.model_validate(admin.request("DELETE", f"/api/v1/tokens/{made.id}").json())
        assert again.tokens == []


def test_no_list_holds_a_token(hub):
    """Neither the list nor the audit log has the text of a token or its digest."""
    owner = hub.owner()
    with hub.client(owner.token) as admin:
        made = make(admin)
        answers = [admin.request("GET", path).text for path in ("/api/v1/tokens", f"/api/v1/audit?owner={owner.slug}")]
    for answer in answers:
        assert made.id in answer
        assert "envhub_" not in answer and "sha256" not in answer


def test_a_token_makes_none_that_allows_more(hub):
    """Scopes, patterns and expiry of the new token stay within those of its maker; the refusal says what does not."""
    owner = hub.owner()
    with hub.client(owner.token) as admin:
        narrow = make(admin, scopes=["admin"], patterns=[f"{owner.slug}/*"], days=10)
        reader = make(admin, scopes=["read"])
    with hub.client(narrow.token) as client:
        inside = make(client, scopes=["publish"], patterns=[f"{owner.slug}/a-*"], days=5)
        assert inside.parent_id == narrow.id
        like_it = make(client)
        assert (like_it.patterns, like_it.expires_at) == (narrow.patterns, narrow.expires_at)
        assert code_of(HubDeniedError, lambda: make(client, patterns=["*/*"], days=5)) == "token-too-wide"
        assert code_of(HubDeniedError, lambda: make(client, days=11)) == "token-too-wide"
        assert code_of(HubDeniedError, lambda: make(client, forever=True)) == "token-too-wide"
        assert code_of(HubRefusedError, lambda: make(client, patterns=["Not/[a-z]"], days=5)) == "bad-pattern"
    with hub.client(reader.token) as client:
        assert code_of(HubDeniedError, lambda: make(client, scopes=["read"], days=5)) == "denied"
        assert code_of(HubDeniedError, lambda: listed(client)) == "denied"


def test_tokens_of_others_are_out_of_reach(hub):
    """One owner neither lists, makes nor revokes the tokens of another."""
    owner, other = hub.owner(), hub.owner()
    with hub.client(owner.token) as client, hub.client(other.token) as stranger:
        made = make(client)
        assert code_of(HubDeniedError, lambda: listed(stranger, owner=owner.slug)) == "denied"
        assert code_of(HubDeniedError, lambda: make(stranger, owner=owner.slug)) == "denied"
        revoke = f"/api/v1/tokens/{made.id}"
        assert code_of(HubDeniedError, lambda: stranger.request("DELETE", revoke)) == "denied"
        assert code_of(HubNotFoundError, lambda: stranger.request("DELETE", "/api/v1/tokens/0")) == "not-found"


def test_a_token_may_revoke_itself(hub):
    """Logging out for good needs no admin."""
    owner = hub.owner()
    with hub.client(owner.token) as admin:
        made = make(admin, scopes=["read"])
    with hub.client(made.token) as client:
        client.request("DELETE", f"/api/v1/tokens/{made.id}")
        assert code_of(HubDeniedError, lambda: client.get("/api/v1/whoami", Whoami)) == "bad-token"


def test_revoking_takes_derived_tokens_along_if_asked(hub):
    """Plain revocation leaves what was made with a token, as a rotation needs; `derived` takes all of it."""
    owner = hub.owner()
    with hub.client(owner.token) as admin:
        first, second = (make(admin, scopes=["admin"], days=80) for _ in range(2))
        with hub.client(first.token) as client:
            kept = make(client, days=70)
        with hub.client(second.token) as client:
            child = make(client, scopes=["admin"], days=70)
        with hub.client(child.token) as client:
            grandchild = make(client, days=60)
        admin.request("DELETE", f"/api/v1/tokens/{first.id}")
        admin.request("DELETE", f"/api/v1/tokens/{second.id}?derived=true")
        after = listed(admin)
    assert after[kept.id].revoked_at is None
    assert all(after[one.id].revoked_at for one in (first, second, child, grandchild))


def test_a_leaked_token_is_revoked_with_what_it_made(hub):
    """Anyone may report one; an unknown text gets the same answer, byte for byte."""
    owner = hub.owner()
    with hub.client(owner.token) as admin:
        leaked = make(admin, scopes=["admin"], days=80)
        with hub.client(leaked.token) as thief:
            more = make(thief, days=70)
        with hub.client() as anyone:
            report = LeakedTokens(tokens=[leaked.token])
            known = anyone.post("/api/v1/tokens/leaked", report, Received)
            for text in ("envhub_" + "x" * 38, leaked.token, "no token"):
                assert anyone.post("/api/v1/tokens/leaked", LeakedTokens(tokens=[text]), Received) == known
        after = listed(admin)
    assert after[leaked.id].revoked_at and after[more.id].revoked_at


def test_logs_and_errors_hold_no_token(tmp_path):
    """Neither what the server writes nor what it keeps nor what it answers holds the text of a token."""
    with running_hub(tmp_path / "hub", rate_limits="true") as hub:
        owner = hub.owner()
        with hub.client(owner.token) as admin:
            made = make(admin)
        with hub.client(made.token + "x") as client:
            wrong = client.http.get("/api/v1/whoami").text
        with hub.client(made.token) as client:
            denied = client.http.get("/api/v1/tokens").text
            invalid = client.http.post("/api/v1/tokens", json={"name": made.token, "scopes": [made.token]}).text
        hub.stop()
        kept = b"".join(path.read_bytes() for path in (tmp_path / "hub").rglob("*") if path.is_file())
    secret = made.token.removeprefix("envhub_")
    for text in (wrong, denied, invalid, "".join(hub.log), kept.decode("latin-1")):
        assert secret not in text
    with closing(sqlite3.connect(tmp_path / "hub" / "hub.sqlite3")) as database:
        assert database.execute("SELECT count(*) FROM tokens").fetchone() == (3,)


def test_an_installers_token_is_noted_as_used(hub):
    """Indexes answer from caches, and note it all the same."""
    owner = hub.owner()
    with hub.client(owner.token) as admin:
        publish(admin, owner.slug, visibility="private")
        made = make(admin, scopes=["read"])
        with hub.client(made.token) as installer:
            for _ in range(3):
                assert index_page(installer, f"/{owner.slug}/demo-env/simple/demo-env/")["files"]
        assert listed(admin)[made.id].last_used_at is not None


def test_a_use_is_written_down_once_a_minute(database_url):
    """Eight requests at once, and those within the next minute, write nothing more."""
    database = Database(database_url)
    upgrade(database)
    with database.write() as session:
        _, text = create_token(session, create_owner(session, "alice"), "ci", ["read"])

    def use():
        with database.read() as session:
            principal = authenticate(session, text)
        note_use(database, principal)

    def noted():
        with database.read() as session:
            return session.scalars(select(Token.last_used_at)).one()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: use(), range(16)))
    first = noted()
    use()
    assert first is not None and noted() == first
    with database.write() as session:
        session.execute(update(Token).values(last_used_at=first - USE_IS_NOTED - dt.timedelta(seconds=1)))
    use()
    assert noted() >= first
    database.close()


def test_addresses_that_no_text_can_be_are_no_fault_of_the_hub(hub):
    """A NUL in an address or a record is refused on either database, like any other wrong name."""
    with hub.client(hub.owner().token) as client:
        assert client.http.get("/api/v1/owners/a%00b/members").status_code in (400, 404)
        assert client.http.delete("/api/v1/tokens/a%00b").status_code in (400, 404)
        assert client.http.get("/api/v1/audit?owner=a%00b").status_code in (400, 404)
        wrong = {"name": "x", "scopes": ["read"], "owner": "a\x00b"}
        assert client.http.post("/api/v1/tokens", json=wrong).status_code in (400, 404)


def test_wrong_tokens_and_searches_are_limited_by_address(tmp_path):
    """After ten wrong tokens the address is told to wait; a right one still works. Searches are limited apart."""
    with running_hub(tmp_path / "hub", rate_limits="true") as hub:
        owner = hub.owner()
        with hub.client("envhub_wrong") as client:
            answers = [client.http.get("/api/v1/whoami") for _ in range(12)]
        assert [answer.status_code for answer in answers] == [403] * 10 + [429] * 2
        assert 1 <= int(answers[-1].headers["Retry-After"]) <= 6
        assert answers[-1].json()["code"] == "rate-limited"
        with hub.client(owner.token) as client:
            assert client.get("/api/v1/whoami", Whoami).owner == owner.slug
        with hub.client() as anybody:
            assert {anybody.http.get("/api/v1/search").status_code for _ in range(400)} == {200, 429}
