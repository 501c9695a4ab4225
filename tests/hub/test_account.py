"""`hub login`, `logout`, `whoami`, `token` and `owner`, as real processes against a live hub."""

import stat
import tomllib
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.hub_command import Person
from verifiers.hub.credentials import forget_token, keep_token, kept_token


@pytest.fixture
def owner(hub):
    return hub.owner()


@pytest.fixture
def person(hub, owner, tmp_path):
    """Somebody who is logged in by a variable."""
    return Person(tmp_path / "person", hub.url, owner.token)


@pytest.fixture
def newcomer(hub, tmp_path):
    """Somebody who is not logged in."""
    return Person(tmp_path / "newcomer", hub.url)


def test_login_keeps_a_token_that_the_hub_knows(hub, owner, newcomer):
    """It is validated at once and kept in a file that only its owner can read; logout forgets it."""
    done = newcomer.hub("login", "--token", "-", "--json", stdin=owner.token + "\n")
    assert (done.code, done.data["owner"], done.data["hub"]) == (0, owner.slug, hub.url)
    assert owner.token not in done.out + done.err
    assert stat.S_IMODE(newcomer.credentials.stat().st_mode) == 0o600
    assert stat.S_IMODE(newcomer.credentials.parent.stat().st_mode) == 0o700
    assert tomllib.loads(newcomer.credentials.read_text())["hubs"] == {hub.url: {"token": owner.token}}
    told = newcomer.hub("whoami")
    assert told.code == 0
    assert f"{owner.slug} at {hub.url}" in told.out and "publish:new" in told.out and "until 20" in told.out
    assert newcomer.hub("logout", "--json").data == {"hub": hub.url, "forgotten": True, "revoked": False}
    assert newcomer.hub("whoami").code == 3
    assert "not kept here" in newcomer.hub("logout").out


def test_logins_at_once_keep_every_token(tmp_path, monkeypatch):
    """Each reads the file and writes it anew; none writes without what another one has just kept."""
    monkeypatch.setenv("VF_CREDENTIALS", str(tmp_path / "new" / "credentials.toml"))
    hubs = [f"https://hub{number}.example" for number in range(8)]
    with ThreadPoolExecutor(len(hubs)) as pool:
        for _ in range(20):
            assert len(list(pool.map(lambda url: keep_token(url, f"for {url}"), hubs))) == len(hubs)
            assert [kept_token(url) for url in hubs] == [f"for {url}" for url in hubs]
            assert all(pool.map(forget_token, hubs))
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["credentials.toml"]


def test_a_wrong_token_is_not_kept(newcomer):
    """A token that the hub does not know ends with 3, one that is none with 2, and neither is written or shown."""
    wrong = "envhub_" + "x" * 38
    for text, code in ((wrong, 3), ("two words", 2), ("", 2), ("umlaut-ä", 2)):
        done = newcomer.hub("login", stdin=text + "\n")
        assert done.code == code, done.err
        assert "hint:" in done.err and (not text or text not in done.out + done.err)
        assert text or "no token was given" in done.err
    assert not newcomer.credentials.exists()


def test_a_token_is_never_taken_from_the_command_line(newcomer, owner):
    """The refusal says why, and does not repeat it."""
    done = newcomer.hub("login", "--token", owner.token)
    assert done.code == 2
    assert "never given on the command line" in done.err and owner.token not in done.err


def test_a_typed_token_is_not_shown(newcomer, owner):
    """At a terminal it is asked for, and what is typed does not appear."""
    done = newcomer.hub_at_a_terminal("login", typed=owner.token)
    assert done.code == 0, done.err
    assert "not shown" in done.err and owner.token not in done.err + done.out
    assert owner.token in newcomer.credentials.read_text()


def test_logout_can_revoke(hub, owner, newcomer):
    """--revoke ends the token at the hub, so that no copy of it works any more."""
    newcomer.hub("login", stdin=owner.token)
    assert newcomer.hub("logout", "--revoke", "--json").data["revoked"]
    with hub.client(owner.token) as client:
        assert client.http.get("/api/v1/whoami").status_code == 403


def test_tokens_are_made_listed_and_revoked(hub, owner, person):
    """create prints the token alone on stdout; list never shows one; revoke wants the name typed, or --yes."""
    made = person.hub(
        "token", "create", "ci", "--scope", "publish", "--scope", "read", "--project", f"{owner.slug}/my-*", "--days", 7
    )
    text = made.out.strip()
    assert made.code == 0 and text.startswith("envhub_") and len(text.split()) == 1
    listed = person.hub("token", "list", "--json").data["tokens"]
    (ci,) = [token for token in listed if token["name"] == "ci"]
    assert (ci["scopes"], ci["patterns"]) == (["read", "publish"], [f"{owner.slug}/my-*"])
    table = person.hub("token", "list").out
    assert ci["id"] in table and "envhub_" not in table
    refused = person.hub("token", "revoke", ci["id"])
    assert (refused.code, "nothing was revoked" in refused.err) == (2, True)
    wrong = person.hub_at_a_terminal("token", "revoke", ci["id"], typed="other")
    assert wrong.code == 2
    planned = person.hub("token", "revoke", ci["id"], "--dry-run", "--json").data
    assert [token["id"] for token in planned["tokens"]] == [ci["id"]]
    done = person.hub_at_a_terminal("token", "revoke", ci["id"], typed="ci")
    assert (done.code, done.out.strip()) == (0, f"revoked: ci ({ci['id']})")
    with hub.client(text) as client:
        assert client.http.get("/api/v1/whoami").status_code == 403
    assert ci["id"] not in person.hub("token", "list").out
    assert "revoked on" in person.hub("token", "list", "--all").out


def test_a_refused_token_names_what_is_too_wide(owner, person, hub, tmp_path):
    """The hub's own sentence, hint and code; exit 3."""
    asked = ("--name", "narrow", "--scope", "admin", "--project", f"{owner.slug}/*")
    made = person.hub("token", "create", *asked).out.strip()
    narrow = Person(tmp_path / "narrow", hub.url, made)
    done = narrow.hub("token", "create", "wide", "--scope", "read", "--project", "*/*", "--json")
    assert done.code == 3
    assert done.data["error"]["code"] == "token-too-wide"
    assert f"*/* is not within {owner.slug}/*" in done.err
    assert narrow.hub("token", "create", "x", "--scope", "everything").code == 2
    assert person.hub("token", "create", "x", "--scope", "read", "--days", "0").code == 1


def test_a_leaked_token_is_reported_from_stdin(hub, owner, newcomer):
    """Whatever text surrounds it, by anyone; the token itself is refused as an argument."""
    leak = f"curl -u __token__:{owner.token} http://example.org\n"
    assert newcomer.hub("token", "leaked", "--json", stdin=leak).data == {"reported": 1}
    with hub.client(owner.token) as client:
        assert client.http.get("/api/v1/whoami").status_code == 403
    refused = newcomer.hub("token", "revoke", owner.token, "--yes")
    assert (refused.code, owner.token in refused.err) == (2, False)


def test_an_organisation_is_made_and_has_members(hub, owner, person, tmp_path):
    """A site admin makes it; its admin adds, changes and removes; the audit log tells."""
    root = Person(tmp_path / "root", hub.url, hub.root.token)
    team = f"{owner.slug}-team"
    assert root.hub("owner", "create", team, "--kind", "organisation", "--admin", owner.slug).code == 0
    new = root.hub("owner", "create", f"{owner.slug}-bob", "--json").data
    assert new["token"].startswith("envhub_")
    assert person.hub("owner", "create", "somebody").code == 3
    assert person.hub("owner", "add", team, new["owner"], "--role", "publisher").code == 0
    members = person.hub("owner", "members", team, "--json").data["members"]
    assert {one["user"]: one["role"] for one in members} == {owner.slug: "admin", new["owner"]: "publisher"}
    assert person.hub("owner", "remove", team, owner.slug).code == 1
    bob = Person(tmp_path / "bob", hub.url, new["token"])
    refused = bob.hub("owner", "add", team, owner.slug, "--role", "reader")
    assert refused.code == 3
    assert f"{new['owner']} is publisher of {team}, and this takes the role admin" in refused.err
    assert f"hub owner add {team} {new['owner']} --role admin" in refused.err
    assert f"only {owner.slug} may do this" in bob.hub("audit", "--owner", owner.slug).err
    assert person.hub("owner", "remove", team, new["owner"], "--json").data["removed"] == new["owner"]
    assert team in person.hub("owner", "list").out
    told = person.hub("audit", "--owner", team, "--json").data["events"]
    assert [event["action"] for event in told] == ["owner.create", "member.set", "member.set", "member.remove"]
    assert "member.remove" in person.hub("audit", "--owner", team).out


# --- the keyring ------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "credentials.toml"
    monkeypatch.setenv("VF_CREDENTIALS", str(path))
    return path


@pytest.fixture
def keyring(monkeypatch):
    """A keyring of this test's own, in memory."""
    keyring = pytest.importorskip("keyring")
    from keyring.backend import KeyringBackend
    from keyring.errors import PasswordDeleteError

    class Memory(KeyringBackend):
        priority = 1

        def __init__(self):
            self.kept = {}

        def get_password(self, service, username):
            return self.kept.get((service, username))

        def set_password(self, service, username, password):
            self.kept[service, username] = password

        def delete_password(self, service, username):
            if self.kept.pop((service, username), None) is None:
                raise PasswordDeleteError("not there")

    before = keyring.get_keyring()
    memory = Memory()
    keyring.set_keyring(memory)
    yield memory
    keyring.set_keyring(before)


def test_a_token_in_the_keyring_is_in_no_file(files, keyring):
    """The file says only that it is there; keeping it in the file, or forgetting it, takes it out of the keyring."""
    url = "http://hub.example"
    assert keep_token(url + "/", "envhub_secret", in_keyring=True) == "the keyring"
    assert "envhub_secret" not in files.read_text()
    assert kept_token(url) == "envhub_secret"
    assert keep_token(url, "envhub_other") == str(files)
    assert (keyring.kept, kept_token(url)) == ({}, "envhub_other")
    keep_token(url, "envhub_third", in_keyring=True)
    assert "envhub_other" not in files.read_text()
    assert forget_token(url) and not forget_token(url)
    assert (keyring.kept, kept_token(url)) == ({}, None)


def test_one_hub_does_not_touch_the_others(files, keyring):
    """Each has its token, wherever it is kept."""
    keep_token("http://a.example", "one")
    keep_token("http://b.example", "two", in_keyring=True)
    keep_token("http://c.example", 'th"ree')
    forget_token("http://a.example")
    assert [kept_token(f"http://{host}.example") for host in "abc"] == [None, "two", 'th"ree']


def test_a_keyring_that_can_not_be_used_is_one_clear_error(owner, newcomer):
    """Nothing is kept, and the way out is named; logging in without it works."""
    variables = {"PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}
    done = newcomer.hub("login", "--keyring", stdin=owner.token, **variables)
    assert (done.code, "without --keyring" in done.err) == (2, True)
    assert not newcomer.credentials.exists()
    assert newcomer.hub("login", stdin=owner.token, **variables).code == 0


def test_a_user_has_no_members_and_a_slip_names_the_help(person, owner):
    """An empty list is explained, and a flag that is missing or mistyped leads to the help of that command."""
    assert "only organisations have members" in person.hub("owner", "members", owner.slug).err
    assert "hub yank --help" in person.hub("yank", "alice/my-env").err
