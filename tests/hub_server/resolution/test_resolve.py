"""Resolution over a hub's database: as of a serial, for a caller, with the rules for what may be taken."""

import contextlib
import datetime as dt

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from sqlalchemy.exc import IntegrityError, NoResultFound

from hub_server.database import Database, now
from hub_server.journal import current_serial
from hub_server.migrations.upgrade import upgrade
from hub_server.problems import NotFound, Problem
from hub_server.resolution.errors import (
    BadMoment,
    BadRequirement,
    NameClash,
    NoAnswer,
    Quarantined,
    Withdrawn,
)
from hub_server.resolution.service import canonical, resolve
from tests.support.stored import Store, principal
from verifiers.hub.schema import ResolveRequest

BASE = "http://hub.test"


@pytest.fixture
def store(database_url):
    database = Database(database_url)
    upgrade(database)
    yield Store(database)
    database.close()


def ask(store, *requirements, who=None, **more):
    """The answer."""
    with store.database.read() as session:
        return resolve(session, ResolveRequest(requirements=list(requirements), **more), who, BASE)


def ids(answer):
    return [release.id for release in answer.releases]


def test_an_answer_pins_what_is_asked_for_and_what_that_needs(store):
    """The highest releases that fit together, each with its file, and who needs it."""
    store.release("bob/base", "1.0")
    store.release("bob/base", "1.5")
    store.release("bob/base", "2.0")
    serial = store.release("alice/my-env", "0.1.0", needs=["bob/base>=1.2,<2"], requires_dist=["base>=1.2,<2"])
    answer = ask(store, "alice/my-env")
    assert ids(answer) == ["alice/my-env@0.1.0", "bob/base@1.5"]
    assert answer.serial == serial
    mine, base = answer.releases
    assert (mine.required_by, base.required_by) == ([], ["alice/my-env@0.1.0"])
    assert mine.requires_dist == ["base>=1.2,<2"]
    (file,) = mine.files
    assert file.url == f"{BASE}/files/alice/my-env/{file.sha256}/my_env-0.1.0-py3-none-any.whl"
    assert mine.index_url == f"{BASE}/alice/my-env/simple/"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("alice/e", "2.0"), ("alice/e@latest", "2.0"), ("alice/e@1", "1.0"), ("alice/E == 1.0.0", "1.0"),
        ("alice/e<2", "1.0"), ("alice/e>=2.1a1", "2.1a1"), ("alice/e@2.1a1", "2.1a1"),
        ("alice/e@v1.0+mine", "1.0+mine"),
    ],
)  # fmt: skip
def test_every_form_of_a_requirement(store, text, version):
    """An id, a pin in any spelling, a specifier; pre-releases for who names one, a pin is exactly its version."""
    for one in ("1.0", "2.0", "2.1a1", "1.0+mine"):
        store.release("alice/e", one)
    if text == "alice/e<2" or "==" in text:  # PEP 440: a local version counts as higher and equal
        version = "1.0+mine"
    assert ids(ask(store, text)) == [f"alice/e@{version}"]


@pytest.mark.parametrize("text", ["e", "alice", "alice/e 1", "alice/e@@1", "alice/e>", "a b/e", "alice/e@x", "/e"])
def test_what_is_no_requirement_is_refused(store, text):
    """The message repeats it."""
    with pytest.raises(BadRequirement, match=r"is not owner/name|no version|Invalid"):
        ask(store, text)


def test_pre_releases_are_for_who_asks_or_where_there_is_nothing_else(store):
    """PEP 440: neither 2.0rc1 beside 1.0, but the only release of a project, or by `prereleases`."""
    store.release("alice/e", "1.0")
    store.release("alice/e", "2.0rc1")
    store.release("alice/f", "0.1.dev1")
    assert ids(ask(store, "alice/e", "alice/f")) == ["alice/e@1.0", "alice/f@0.1.dev1"]
    assert ids(ask(store, "alice/e", prereleases=True)) == ["alice/e@2.0rc1"]
    assert ids(ask(store, "alice/e>1.0")) == ["alice/e@2.0rc1"]


def test_a_yanked_release_is_for_who_pins_it_and_is_marked(store):
    """Others get the next one, and a refusal says how to have it."""
    store.release("alice/e", "1.0")
    store.release("alice/e", "2.0")
    store.yank("alice/e", "2.0", "reward counts twice", "broken-reward")
    assert ids(ask(store, "alice/e")) == ["alice/e@1.0"]
    (pinned,) = ask(store, "alice/e==2.0").releases
    assert (pinned.yanked.reason, pinned.yanked.cause) == ("reward counts twice", "broken-reward")
    with pytest.raises(NoAnswer, match=r"2\.0 is yanked \(reward counts twice\): only a request for exactly"):
        ask(store, "alice/e>1")


def test_releases_for_another_python_or_without_a_wheel_are_passed_over(store):
    """With `python`, `requires-python` counts; a source archive alone is nothing to install."""
    store.release("alice/e", "1.0", requires_python=">=3.9")
    store.release("alice/e", "2.0", requires_python=">=3.12")
    store.release("alice/e", "3.0", kind="sdist")
    assert ids(ask(store, "alice/e", python="3.11")) == ["alice/e@1.0"]
    assert ids(ask(store, "alice/e")) == ["alice/e@2.0"]
    with pytest.raises(NoAnswer, match=r"2\.0 needs Python >=3\.12"):
        ask(store, "alice/e>=2", python="3.11")
    with pytest.raises(Problem, match="no version of Python"):
        ask(store, "alice/e", python="three")


def test_direct_urls_are_listed_apart(store):
    """What names an address is no requirement that an index can answer."""
    url = f"lib @ git+https://example.org/lib@{'a' * 40}"
    store.release("alice/e", requires_dist=["numpy>=2", url], direct_urls=[url])
    (mine,) = ask(store, "alice/e").releases
    assert (mine.requires_dist, mine.direct_urls) == (["numpy>=2"], [url])


def test_two_packages_of_one_name_are_refused(store):
    """One distribution name, or one top-level import name, in one answer."""
    store.release("alice/e")
    store.release("bob/e")
    store.release("bob/f", import_names=["f", "e"])
    with pytest.raises(NameClash, match=r"alice/e@1\.0 and bob/e@1\.0 have the same distribution name: e"):
        ask(store, "alice/e", "bob/e")
    with pytest.raises(NameClash, match=r"alice/e@1\.0 and bob/f@1\.0 have the same import name: e"):
        ask(store, "alice/e", "bob/f")


def test_an_older_serial_and_a_moment_show_the_hub_as_it_was(store):
    """Publishes and yanks after it do not count, and a yank that was taken back since still does."""
    store.release("alice/e", "1.0")
    second = store.release("alice/e", "2.0")
    yanked = store.yank("alice/e", "2.0")
    moment = now()
    store.unyank("alice/e", "2.0")
    store.release("alice/e", "3.0")
    assert ids(ask(store, "alice/e")) == ["alice/e@3.0"]
    assert ids(ask(store, "alice/e", serial=second)) == ["alice/e@2.0"]
    assert ids(ask(store, "alice/e", serial=yanked)) == ["alice/e@1.0"]
    assert ids(ask(store, "alice/e", before=moment)) == ["alice/e@1.0"]
    assert ask(store, "alice/e", before=moment).serial == yanked
    east, west = (dt.timezone(dt.timedelta(hours=hours)) for hours in (14, -14))
    assert ids(ask(store, "alice/e", before=dt.datetime.max.replace(tzinfo=west))) == ["alice/e@3.0"]
    with pytest.raises(NotFound):
        ask(store, "alice/e", before=dt.datetime.min.replace(tzinfo=east))
    with pytest.raises(NotFound):
        ask(store, "alice/e", before=moment - dt.timedelta(days=1))


def test_a_serial_of_the_future_is_refused(store):
    """It could not be kept; nor can two points in time."""
    with pytest.raises(BadMoment, match="has reached serial"):
        ask(store, "alice/e", serial=10**6)
    with pytest.raises(BadMoment, match="not both"):
        ask(store, "alice/e", serial=0, before=now())


def test_a_deleted_release_is_gone_and_an_older_answer_says_so(store):
    """Today the next one is taken; as of a serial before, the refusal says what was deleted, and when."""
    store.release("alice/e", "1.0")
    before = store.release("alice/e", "2.0")
    deleted = store.delete("alice/e", "2.0")
    assert ids(ask(store, "alice/e")) == ["alice/e@1.0"]
    with pytest.raises(NoAnswer, match=r"2\.0 was deleted on"):
        ask(store, "alice/e==2.0")
    with pytest.raises(Withdrawn, match=rf"alice/e@2\.0, which was deleted on .* \(serial {deleted}\)"):
        ask(store, "alice/e", serial=before)


def test_quarantine_withholds_the_answer(store):
    """A project in quarantine offers no files, so nothing that needs it can be installed."""
    store.release("bob/base")
    serial = store.release("alice/e", needs=["bob/base"])
    store.change("bob/base", status="quarantined", status_reason="it mines coins")
    with pytest.raises(Quarantined, match="it mines coins"):
        ask(store, "alice/e", serial=serial)


def test_a_private_project_is_absent_for_others(store):
    """Asked for or needed, hidden and absent have the same message; members with a token for it see it."""
    store.release("team/secret", visibility="private")
    store.release("alice/e", needs=["team/secret"])
    store.member("team", "bob")
    bob, eve = principal(store.owner("bob")), principal(store.owner("eve"))
    elsewhere = principal(store.owner("bob"), patterns=("bob/*",))
    assert ids(ask(store, "alice/e", who=bob)) == ["alice/e@1.0", "team/secret@1.0"]
    for who in (None, eve, elsewhere):
        with pytest.raises(NotFound) as hidden:
            ask(store, "team/secret", who=who)
        with pytest.raises(NotFound) as absent:
            ask(store, "team/absent", who=who)
        assert hidden.value.message.replace("secret", "absent") == absent.value.message
        assert hidden.value.hint == absent.value.hint
        with pytest.raises(NotFound, match=r"alice/e@1\.0 needs team/secret, and there is no project team/secret"):
            ask(store, "alice/e", who=who)


def test_near_misses_are_named_and_hidden_ones_are_not(store):
    """The same name of another owner, and similar names of the same."""
    store.release("alice/word-ladder")
    store.release("bob/wordladder")
    store.release("alice/word-laddel", visibility="private")
    with pytest.raises(NotFound) as refused:
        ask(store, "alice/word-lader")
    assert refused.value.hint == "Did you mean alice/word-ladder?"
    with pytest.raises(NotFound) as refused:
        ask(store, "alice/wordladder")
    assert "bob/wordladder" in refused.value.hint


# --- laws -------------------------------------------------------------------------------------------------------

NAMES = ["alice/a", "alice/b", "bob/c"]
steps = st.one_of(
    st.tuples(
        st.just("release"), st.sampled_from(NAMES), st.sampled_from(["1.0", "1.1", "2.0a1", "2.0"]),
        st.lists(st.sampled_from(["alice/a>=1.1", "alice/b<2", "bob/c", "bob/c!=1.1"]), max_size=2, unique=True),
    ),
    st.tuples(st.sampled_from(["yank", "unyank"]), st.sampled_from(NAMES), st.sampled_from(["1.0", "1.1", "2.0"])),
    st.tuples(st.just("hide"), st.sampled_from(NAMES), st.sampled_from(["private", "public"])),
)  # fmt: skip
requests = st.fixed_dictionaries(
    {
        "requirements": st.lists(st.sampled_from([*NAMES, "alice/a<2", "bob/c==1.1"]), min_size=1, unique=True),
        "prereleases": st.booleans(),
    }
)


def apply(store, step):
    """One change; what can not be done, such as a version that is there, is passed over."""
    action, id, *rest = step
    with contextlib.suppress(IntegrityError, NoResultFound, AssertionError):
        if action == "release":
            needs = {need.rstrip("<>=!.0123456789"): need for need in rest[1]}
            store.release(id, rest[0], needs=sorted(needs.values()))
        elif action == "hide":
            store.change(id, visibility=rest[0])
        else:
            getattr(store, action)(id, rest[0])


def outcome(store, who, request):
    """The bytes of an answer, or the code of a refusal."""
    with store.database.read() as session:
        try:
            return canonical(resolve(session, ResolveRequest(**request), who, BASE))
        except Problem as problem:
            return problem.code, problem.message


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(steps, max_size=8), st.lists(steps, max_size=8), requests, st.randoms())
def test_an_answer_as_of_a_serial_never_changes(empty_database, before, after, request, random):
    """Not by order or repetition, nor by what is published, yanked or hidden later: byte for byte the same."""
    database = empty_database()
    try:
        store = Store(database)
        who = principal(store.owner("root"), site_admin=True)
        for step in before:
            apply(store, step)
        with database.read() as session:
            request = {**request, "serial": current_serial(session)}
        first = outcome(store, who, request)
        for step in after:
            apply(store, step)
        texts = request["requirements"]
        assert outcome(store, who, {**request, "requirements": random.sample(texts, len(texts))}) == first
        assert outcome(store, who, {**request, "requirements": texts * 2}) == first
        # Rights withhold an answer, and never make another of it.
        anonymous = outcome(store, None, request)
        assert anonymous == first or anonymous[0] == "not-found"
    finally:
        database.close()
