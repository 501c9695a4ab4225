"""Who may do what: every route that is about a project or an owner, for every kind of caller, as one table.

Beside the statuses, whoever may not know of a private project gets the same answer for it as for one that is not there:
status, body and headers.
"""

from __future__ import annotations

import datetime as dt
import itertools
from dataclasses import dataclass

import httpx
import pytest
from sqlalchemy import update

from hub_server.accounts.models import Token
from hub_server.accounts.service import SCOPES, create_token
from hub_server.database import now
from tests.support.archives import make_wheel, wheel_name
from tests.support.hub_rows import steady
from tests.support.stored import stored
from tests.support.uploads import post_upload

HIDDEN, ABSENT, SHOWN = "hidden", "absent", "public"
RANKS = (None, "reader", "publisher", "admin")


@dataclass(frozen=True)
class Caller:
    """Who asks: the role with the organisation that has the projects, and what the token is for."""

    role: str | None = None
    scopes: tuple[str, ...] = SCOPES
    pattern: str | None = None
    token: str = "valid"
    site_admin: bool = False

    def may(self, scope: str, role: str, name: str | None) -> bool:
        """The rule, written down once more: role, scope, pattern."""
        if self.token != "valid":
            return False
        scoped = "admin" in self.scopes or scope in self.scopes or scope == "read"
        scoped = scoped or (scope == "publish" and "publish:new" in self.scopes)
        within = self.pattern is None or (name is not None and name.startswith(self.pattern))
        held = "admin" if self.site_admin else self.role
        return scoped and within and RANKS.index(held) >= RANKS.index(role)


CALLERS = {
    "anonymous": Caller(token="none"),
    "wrong": Caller(token="wrong"),
    "expired": Caller("admin", token="expired"),
    "revoked": Caller("admin", token="revoked"),
    "stranger": Caller(),
    "reader": Caller("reader"),
    "publisher": Caller("publisher"),
    "admin": Caller("admin"),
    "admin, read only": Caller("admin", ("read",)),
    "admin, publish": Caller("admin", ("publish",)),
    "admin, yank": Caller("admin", ("yank",)),
    "admin, publish:new elsewhere": Caller("admin", ("publish:new",), "other"),
    "admin, publish:new here": Caller("admin", ("publish:new",), "a"),
    "admin, all of one project": Caller("admin", SCOPES, "hidden"),
    "site admin": Caller(site_admin=True),
    "site admin, read only": Caller(scopes=("read",), site_admin=True),
}
SESSION = {
    "files": [{"name": "{name}-9.0-py3-none-any.whl", "size": 10, "sha256": "0" * 64}],
    "version": "9.0",
}
WHY = {"reason": "it is wrong"}
ONE = "/api/v1/{owner}/{name}"

ROUTES = [  # method, address, body, what the token must be for, the least role
    ("GET", ONE, None, "see", ""),
    ("GET", f"{ONE}/1.0", None, "see", ""),
    ("GET", f"{ONE}/1.0/files/", None, "see", ""),
    ("GET", f"{ONE}/1.0/files/{{name}}/__init__.py", None, "see", ""),
    ("GET", f"{ONE}/diff?a=1.0&b=1.0", None, "see", ""),
    ("GET", "/{owner}/{name}", None, "see", ""),
    ("GET", "/{owner}/{name}/1.0", None, "see", ""),
    ("GET", "/{owner}/{name}/1.0/contents", None, "see", ""),
    ("GET", "/{owner}/{name}/diff", None, "see", ""),
    ("POST", "/api/v1/resolve", {"requirements": ["{owner}/{name}"]}, "see", ""),
    ("GET", "/{owner}/simple/{name}/", None, "index", ""),
    ("GET", "/{owner}/{name}/simple/", None, "own", ""),
    ("GET", "/{owner}/{name}/simple/{name}/", None, "own", ""),
    ("GET", "/files/{owner}/{name}/{sha256}/{name}-1.0-py3-none-any.whl", None, "own", ""),
    ("HEAD", "/files/{owner}/{name}/{sha256}/{name}-1.0-py3-none-any.whl", None, "own", ""),
    ("GET", "/files/{owner}/{name}/{sha256}/{name}-1.0-py3-none-any.whl.metadata", None, "own", ""),
    ("POST", f"{ONE}/1.0/yank?dry_run=true", WHY, "yank", "publisher"),
    ("DELETE", f"{ONE}/1.0/yank?dry_run=true", None, "yank", "publisher"),
    ("DELETE", f"{ONE}/1.0?dry_run=true", None, "admin", "admin"),
    ("PATCH", f"{ONE}?dry_run=true", {"status": "deprecated", "status_reason": "old"}, "admin", "admin"),
    ("POST", f"{ONE}/transfer-name?dry_run=true", {"to": "nobody"}, "admin", "admin"),
    ("POST", f"{ONE}/releases", SESSION, "publish", "publisher"),
    ("GET", f"{ONE}/releases/{'0' * 32}", None, "publish", "publisher"),
    ("DELETE", f"{ONE}/releases/{'0' * 32}", None, "publish", "publisher"),
    ("PUT", f"{ONE}/releases/{'0' * 32}/x.whl", {}, "publish", "publisher"),
    ("POST", f"{ONE}/releases/{'0' * 32}/publish", None, "publish", "publisher"),
]
OWNERS = [
    ("GET", "/api/v1/audit?owner={owner}", None, "admin", "admin"),
    ("GET", "/api/v1/tokens?owner={owner}", None, "admin", "admin"),
    (
        "POST",
        "/api/v1/tokens",
        {"name": "n", "scopes": ["read"], "owner": "{owner}", "days": 1},
        "admin",
        "admin",
    ),
    ("GET", "/api/v1/owners/{owner}/members", None, "read", "reader"),
    ("PUT", "/api/v1/owners/{owner}/members/nobody-there", {"role": "admin"}, "admin", "admin"),
    ("DELETE", "/api/v1/owners/{owner}/members/nobody-there", None, "admin", "admin"),
    ("GET", "/api/v1/audit", None, "hub", ""),
    ("POST", "/api/v1/owners", {"owner": "api"}, "hub", ""),
    ("PUT", "/api/v1/owners/{owner}/rates/publish", {"interval": 60, "burst": 30}, "hub", ""),
    ("DELETE", "/api/v1/owners/{owner}/rates/publish", None, "hub", ""),
    ("POST", "/{owner}/legacy/", None, "upload", ""),
]


class World:
    """An organisation with a public and a private project, and the callers' tokens."""

    numbers = itertools.count()

    def __init__(self, hub):
        self.hub, self.owner = hub, f"team-{next(self.numbers)}"
        self.sha256 = "0" * 64
        with stored(hub) as store:
            for name, visibility in ((HIDDEN, "private"), (SHOWN, "public")):
                store.release(f"{self.owner}/{name}", visibility=visibility)
            team = store.owner(self.owner)
            with store.database.write() as session:
                session.merge(team).kind = "organisation"
            self.tokens = {label: self._token(store, caller) for label, caller in CALLERS.items()}
        self.http = httpx.Client(base_url=hub.url, timeout=60)

    def _token(self, store, caller: Caller) -> str | None:
        slug = f"user-{next(self.numbers)}-{self.owner}"
        user = store.owner(slug)
        if caller.role is not None:
            store.member(self.owner, slug, caller.role)
        patterns = [f"{self.owner}/{caller.pattern}*"] if caller.pattern else []
        with store.database.write() as session:
            user = session.merge(user)
            user.site_admin = caller.site_admin
            token, text = create_token(session, user, "one", caller.scopes, patterns)
        past = now() - dt.timedelta(seconds=1)
        ends = {"expired": {"expires_at": past}, "revoked": {"revoked_at": past}}.get(caller.token)
        if ends:
            with store.database.write() as session:
                session.execute(update(Token).where(Token.id == token.id).values(**ends))
        return {"none": None, "wrong": "envhub_" + "0" * 38}.get(caller.token, text)

    def ask(self, label: str, method: str, path: str, body, name: str = "") -> httpx.Response:
        """One request of a caller."""
        told = {"owner": self.owner, "name": name, "sha256": self.sha256}
        token = self.tokens[label]
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        if path.endswith("/legacy/"):
            wheel = wheel_name("other-env", "1.0")
            return post_upload(
                self.hub, token, wheel, make_wheel("demo-env", "1.0"), path=path.format(**told)
            )
        return self.http.request(method, path.format(**told), headers=headers, json=_filled(body, told))


def _filled(value, told):
    if isinstance(value, dict):
        return {key: _filled(one, told) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, told) for one in value]
    return value.format(**told) if isinstance(value, str) else value


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def world(request):
    made = World(request.getfixturevalue(f"{request.param}_hub"))
    yield made
    made.http.close()


def expected(caller: Caller, need: str, role: str, name: str) -> set[int]:
    """What a caller may be answered; the empty set is anything but a refusal of rights."""
    is_bad, index = caller.token in ("wrong", "expired", "revoked"), need in ("index", "own")
    if is_bad and not index:
        return {403}  # a token that is none is told so wherever it is not passed over
    sees = name == SHOWN or (name == HIDDEN and caller.may("read", "reader", name))
    if need in ("see", "index", "own"):
        asks = need == "own" and (caller.token == "none" or is_bad)
        return set() if sees else {401} if asks else {404}
    if caller.token == "none":
        return {401}
    if need == "publish":
        allowed = caller.may("publish:new" if name == ABSENT else "publish", role, name)
        return set() if allowed else {403}
    if not sees:
        return {404}
    return set() if caller.may(need, role, name) else {403}


@pytest.mark.parametrize(("method", "path", "body", "need", "role"), ROUTES)
def test_every_caller_is_answered_by_the_rule(world, method, path, body, need, role):
    """On a public, a private and an absent project; the last two are alike to who may not know of the first."""
    for label, caller in CALLERS.items():
        answers = {name: world.ask(label, method, path, body, name) for name in (SHOWN, HIDDEN, ABSENT)}
        sees = caller.may("read", "reader", HIDDEN)
        for name, answer in answers.items():
            right = expected(caller, need, role, name)
            if name == SHOWN and "files/{owner}" in path:
                right = {404}  # there is no file of this digest
            if name == HIDDEN and "files/{owner}" in path and not right:
                right = {404}
            told = (label, name, answer.status_code, answer.text[:200])
            if right:
                assert answer.status_code in right, told
            else:
                assert answer.status_code < 500 and answer.status_code not in (401, 403), told
        if not sees and not (caller.pattern and ABSENT.startswith(caller.pattern)):
            assert _shape(answers[HIDDEN], HIDDEN) == _shape(answers[ABSENT], ABSENT), label


def _shape(answer: httpx.Response, name: str):
    """All that can be compared, the project's name apart (all names have the same length)."""
    return answer.status_code, answer.text.replace(name, "NAME"), steady(answer)


@pytest.mark.parametrize(("method", "path", "body", "need", "role"), OWNERS)
def test_what_concerns_an_owner_is_for_its_admins(world, method, path, body, need, role):
    """Members, tokens and the audit log of an organisation; what concerns the hub is for its own admins."""
    for label, caller in CALLERS.items():
        answer = world.ask(label, method, path, body)
        if need == "hub":
            allowed = caller.site_admin and "admin" in caller.scopes
        elif need == "upload":  # whoever may publish there is told what is wrong with the file
            allowed = caller.may("publish:new", "publisher", "other-env")
        else:
            allowed = caller.may(need, role, None)
        told = (label, answer.status_code, answer.text[:200])
        if allowed:
            assert answer.status_code < 500 and answer.status_code not in (401, 403), told
        else:
            assert answer.status_code == (401 if caller.token == "none" else 403), told


def test_nobody_finds_what_is_hidden_by_looking_around(world):
    """Search, the owner's page and list, the whole-hub index and the start page, for who may not know of it."""
    looks = (
        "/api/v1/search?q=hidden",
        "/search?q=hidden",
        "/{owner}",
        "/api/v1/owners/{owner}/projects",
        "/{owner}/simple/",
    )
    for label, caller in CALLERS.items():
        sees = caller.may("read", "reader", HIDDEN)
        for path in (*looks, "/api/v1/search", "/", "/simple/", "/metrics"):
            answer = world.ask(label, "GET", path, None)
            if sees and path in looks:
                assert f"{world.owner}/{HIDDEN}" in answer.text or HIDDEN in answer.text, (label, path)
            if not sees:
                assert f"{world.owner}/{HIDDEN}" not in answer.text, (label, path)
                if path == "/{owner}/simple/":
                    assert HIDDEN not in answer.text, label
