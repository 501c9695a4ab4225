"""Private projects: who sees them, and that nobody else can tell them from what is not there."""

import datetime as dt
import itertools

import httpx
import pytest
from sqlalchemy import event, select

from hub_server.accounts.models import Membership, Owner, Token
from hub_server.accounts.service import create_owner, create_token
from hub_server.app import create_app
from hub_server.database import Database, now
from hub_server.journal import record
from hub_server.migrations.upgrade import upgrade
from hub_server.packages.models import Project
from hub_server.security.tokens import digest
from hub_server.settings import load_settings
from tests.support.hub_rows import steady


@pytest.fixture
def private(rows):
    """A private project: its owner, its name and the address of its wheel."""
    owner, name = rows.owner(), rows.name("secret")
    return owner, name, rows.release(owner.slug, name, "1.0", visibility="private")


def basic(token):
    return {"auth": ("__token__", token)}


def shape(answer):
    """All that a stranger could compare."""
    return answer.status_code, answer.text, steady(answer)


def test_a_stranger_can_not_tell_hidden_from_absent(http, rows, private):
    """Without a token, with another owner's and with a wrong one: the same status, body and headers everywhere."""
    owner, name, address = private
    stranger = rows.owner().token
    absent = rows.name("secret")
    places = [
        ("/simple/{name}/", 404, 404),
        (f"/{owner.slug}/simple/{{name}}/", 404, 404),
        (f"/{owner.slug}/{{name}}/simple/{{name}}/", 401, 404),
        (f"/{owner.slug}/{{name}}/simple/", 401, 404),
        (f"/{owner.slug}/{{name}}/simple/numpy/", 404, 404),
        (address.replace(name, "{name}", 1), 401, 404),
        (address.replace(name, "{name}", 1) + ".metadata", 401, 404),
    ]
    for place, anonymous, signed_in in places:
        for caller, status in (({}, anonymous), (basic("envhub_wrong"), anonymous), (basic(stranger), signed_in)):
            hidden = http.get(place.format(name=name), **caller)
            assert hidden.status_code == status, place
            assert shape(hidden) == shape(http.get(place.format(name=absent), **caller)), place
            assert ("www-authenticate" in hidden.headers) is (status == 401)


def test_its_owner_installs_like_everybody(http, private):
    """The page, the lists, the file and its METADATA, for the token; caches keep them apart."""
    owner, name, address = private
    for start in (f"/{owner.slug}/simple/", f"/{owner.slug}/{name}/simple/"):
        listed = http.get(start, **basic(owner.token)).json()["projects"]
        assert [one["name"] for one in listed if one["name"] != "verifiers"] == [name]
        page = http.get(f"{start}{name}/", **basic(owner.token))
        assert page.json()["files"][0]["url"] == address
        assert page.headers["cache-control"] == "private, max-age=0, must-revalidate"
        assert "Authorization" in page.headers["vary"]
    for url in (address, address + ".metadata"):
        file = http.get(url, **basic(owner.token))
        assert file.status_code == 200
        assert file.headers["cache-control"] == "private, max-age=365000000, immutable"
    bearer = http.get(address, headers={"Authorization": f"Bearer {owner.token}"})
    assert bearer.status_code == 200


def test_it_is_on_no_list_of_others(http, private):
    """The owner's list does not show it without the right, the whole hub's to nobody."""
    owner, name, _ = private
    assert http.get(f"/{owner.slug}/simple/").json()["projects"] == []
    names = [one["name"] for one in http.get("/simple/", **basic(owner.token)).json()["projects"]]
    assert name not in names
    assert http.get(f"/simple/{name}/", **basic(owner.token)).status_code == 404


def test_a_revoked_token_ends_at_once(http, rows, private):
    """The answer after a revocation by another process is the anonymous one, though the token was known before."""
    owner, name, address = private
    urls = [f"/{owner.slug}/{name}/simple/{name}/", address]
    assert [http.get(url, **basic(owner.token)).status_code for url in urls] == [200, 200]
    rows.revoke(owner.token)
    assert [http.get(url, **basic(owner.token)).status_code for url in urls] == [401, 401]


def test_an_expired_token_is_none(http, rows, private):
    """A token whose time is over is answered like anybody."""
    owner, name, _ = private
    token = rows.token(owner.slug, days=-1)
    assert http.get(f"/{owner.slug}/{name}/simple/{name}/", **basic(token)).status_code == 401


def test_a_token_for_one_project_shows_that_one(http, rows, private):
    """Patterns of a token hold for lists, pages and files."""
    owner, name, _ = private
    other = rows.name("secret")
    rows.release(owner.slug, other, "1.0", visibility="private")
    narrow = basic(rows.token(owner.slug, patterns=[f"{owner.slug}/{name}"]))
    assert [one["name"] for one in http.get(f"/{owner.slug}/simple/", **narrow).json()["projects"]] == [name]
    found = [http.get(f"/{owner.slug}/simple/{one}/", **narrow).status_code for one in (name, other)]
    assert found == [200, 404]


def test_a_member_sees_it_from_the_moment_of_joining(http, rows):
    """Membership counts at once, in both directions."""
    team, person, name = rows.owner(kind="organisation").slug, rows.owner(), rows.name("secret")
    rows.release(team, name, "1.0", visibility="private")
    url = f"/{team}/simple/{name}/"
    assert http.get(url, **basic(person.token)).status_code == 404
    with rows.database.write() as session:
        ids = {owner.slug: owner.id for owner in session.query(Owner).where(Owner.slug.in_([team, person.slug]))}
        member = Membership(organisation_id=ids[team], user_id=ids[person.slug], role="reader", created_at=now())
        session.add(member)
        record(session, "member.add")
    assert http.get(url, **basic(person.token)).status_code == 200
    with rows.database.write() as session:
        session.delete(session.get(Membership, member.id))
        record(session, "member.remove")
    assert http.get(url, **basic(person.token)).status_code == 404


def test_visibility_counts_at_once(http, rows, private):
    """Made public, it is there for everybody, at the same addresses; made private again, for nobody else."""
    owner, name, address = private
    urls = [f"/{owner.slug}/simple/{name}/", f"/{owner.slug}/{name}/simple/{name}/", address]
    assert [http.get(url).status_code for url in urls] == [404, 401, 401]
    for visibility, statuses in (("public", [200, 200, 200]), ("private", [404, 401, 401])):
        with rows.change(owner.slug, name) as project:
            project.visibility = visibility
        assert [http.get(url).status_code for url in urls] == statuses


def test_an_install_counts_as_use_of_the_token(http, rows, private):
    """What `hub token list` shows as last use includes what installers read."""
    owner, name, _ = private
    assert http.get(f"/{owner.slug}/simple/{name}/", **basic(owner.token)).status_code == 200
    with rows.database.read() as session:
        token = session.scalars(select(Token).where(Token.sha256 == digest(owner.token))).one()
    assert token.last_used_at is not None


@pytest.fixture
async def application(database_url, tmp_path, monkeypatch):
    """The database of an application in this process, and a function that counts the statements of a request."""
    # A minute that begins between two requests would have the token looked up again.
    monkeypatch.setattr("hub_server.simple_index.indexes.USE_IS_NOTED", dt.timedelta(days=100_000))
    database = Database(database_url)
    upgrade(database)
    app = create_app(load_settings(data=tmp_path, database_url=database_url))
    statements = []
    engine = app.state.context.database.engine
    event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://hub")

    async def counted(url, caller):
        statements.clear()
        answer = await client.get(url, **caller)
        return answer.status_code, len([text for text in statements if text.startswith("SELECT")])

    async with app.router.lifespan_context(app), client:
        yield database, counted
    database.close()


PLACES = ["/simple/{}/", "/alice/simple/{}/", "/alice/{}/simple/{}/", "/alice/{}/simple/", "/alice/{}/simple/numpy/",
          "/files/alice/{}/0123/x.whl"]  # fmt: skip


async def test_hidden_and_absent_cost_the_same(application):
    """The same number of statements the first time, and none the second: time does not tell them apart either."""
    database, counted = application
    with database.write() as session:
        owner, stranger = create_owner(session, "alice"), create_owner(session, "bob")
        token = create_token(session, stranger, "test", ["read"])[1]
        for number in range(2 * len(PLACES)):
            facts = {"display_name": "hidden", "visibility": "private", "created_at": now()}
            session.add(Project(owner_id=owner.id, name=f"hidden-{number}", **facts))
    await counted("/alice/absent/simple/", basic(token))  # the token itself is looked up
    for number, (place, caller) in enumerate(itertools.product(PLACES, ({}, basic(token)))):
        hidden = [await counted(place.replace("{}", f"hidden-{number}"), caller) for _ in range(2)]
        absent = [await counted(place.replace("{}", f"absent-{number}"), caller) for _ in range(2)]
        assert hidden == absent, place
        assert hidden[0][1] > 0
        assert hidden[1][1] == 0
