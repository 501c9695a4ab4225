"""Finding projects: by which words, in which order, a page at a time, and only what the caller may see."""

import base64
import json

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from hub_server.database import Database
from hub_server.migrations.upgrade import upgrade
from hub_server.search.errors import BadCursor
from hub_server.search.service import search
from tests.support.stored import Store, principal, stored
from verifiers.errors import HubRefusedError
from verifiers.hub.schema import SearchAnswer


@pytest.fixture
def store(database_url):
    database = Database(database_url)
    upgrade(database)
    yield Store(database)
    database.close()


def find(store, text="", who=None, limit=20, after=None):
    with store.database.read() as session:
        return search(session, text, who, limit, after)


def ids(store, text="", who=None):
    return [hit.id for hit in find(store, text, who).hits]


def test_names_come_before_owners_keywords_and_summaries(store):
    """The exact name first, then names that begin with it, then words of names, owners, keywords, summaries."""
    store.release("bob/a-sum", summary="Plain")
    store.release("alice/quiz", summary="Adds maths to quizzes")
    store.release("bob/cards", keywords=["Math", "cards"])
    store.release("mathew/hangman")
    store.release("alice/word-math")
    store.release("alice/math-word")
    store.release("bob/math")
    assert ids(store, "math") == [
        "bob/math", "alice/math-word", "alice/word-math", "mathew/hangman", "bob/cards", "alice/quiz",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("word ladder", True), ("LADDER word", True), ("word-lad", True), ("alice/word-ladder", True),
        ("alice hops", True), ("Straße", True), ("strasse", True),
        ("wordy", False), ("word bob", False), ("adder", False),
    ],
)  # fmt: skip
def test_every_word_must_begin_one_of_the_project(store, text, found):
    """In any order, from any place, without case; not in the middle of a word."""
    store.release("alice/word-ladder", summary="Hops along the STRASSE")
    assert ids(store, text) == (["alice/word-ladder"] if found else [])


def test_the_whole_name_wins_over_its_words(store):
    """What is called as the question comes first, though another has the longest word earlier."""
    store.release("alice/ladder", summary="word by word")
    store.release("alice/word-ladder")
    assert ids(store, "word-ladder")[0] == "alice/word-ladder"


def test_a_hit_shows_the_latest_release(store):
    """Its version and summary; words of an older one no longer find it, nor do those of a backport."""
    store.release("alice/e", "1.0", summary="Counting apples")
    store.release("alice/e", "2.0", summary="Counting pears")
    store.release("alice/e", "1.1", summary="Counting plums")
    (hit,) = find(store, "pears").hits
    assert (hit.latest, hit.summary, hit.status) == ("2.0", "Counting pears", "active")
    assert ids(store, "apples") == ids(store, "plums") == []
    store.yank("alice/e", "2.0")
    assert ids(store, "pears") == []
    assert ids(store, "plums") == ["alice/e"]
    store.unyank("alice/e", "2.0")
    assert ids(store, "pears") == ["alice/e"]


def test_a_project_whose_releases_are_all_deleted_is_not_found(store):
    """One whose releases are all yanked is."""
    store.release("alice/e", "1.0")
    store.yank("alice/e", "1.0")
    assert ids(store) == ["alice/e"]
    store.delete("alice/e", "1.0")
    assert ids(store) == []


def test_private_projects_are_found_by_who_may_read_them(store):
    """Their owner, members of the organisation, tokens whose patterns name them, admins of the hub."""
    store.release("team/open")
    store.release("team/secret", visibility="private")
    store.release("bob/diary", visibility="private")
    store.member("team", "bob")
    bob, eve = store.owner("bob"), store.owner("eve")
    everything = ["bob/diary", "team/open", "team/secret"]
    assert ids(store) == ids(store, who=principal(eve)) == ["team/open"]
    assert ids(store, who=principal(bob)) == everything
    assert ids(store, who=principal(bob, patterns=("team/s*",))) == ["team/open", "team/secret"]
    assert ids(store, who=principal(bob, patterns=("eve/*",))) == ["team/open"]
    assert ids(store, who=principal(eve, site_admin=True)) == everything


def cursor(*parts):
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()


CURSORS = [
    "x", "=", "\0", "e30", cursor("math"), cursor("math", [0, 1, 1]), cursor("math", [99, "a", 1]),
    cursor("math", [-1, "a", 1]), cursor("maths", [0, "a", 1]), cursor("math", [0, "a\0", 1]), cursor(1, [0, "a", 1]),
    cursor("math", [0, "a", 2**31]), cursor("math", [0, "a", True, 1]), cursor("math", [0.5, "a", 1]),
]  # fmt: skip


@pytest.mark.parametrize("after", CURSORS)
def test_a_made_up_cursor_is_refused(store, after):
    """It is no cursor of the hub: not base64, not JSON, not a place in the result."""
    with pytest.raises(BadCursor):
        find(store, "math", after=after)


NAMES = st.from_regex(r"[ab]{1,3}(-[ab]{1,2})?", fullmatch=True)
TEXTS = st.text("ab -", max_size=6)


@settings(
    max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.dictionaries(NAMES, TEXTS, max_size=6), st.text("ab -", max_size=4), st.integers(1, 4))
def test_pages_together_are_what_has_all_the_words_once(empty_database, projects, text, limit):
    """Against the plain definition; following `next` gives each project once, in the order of one large page."""
    store = Store(empty_database())
    try:
        for name, summary in projects.items():
            store.release(f"aba/{name}", summary=summary)
        wanted = text.replace("-", " ").split()
        right = {
            f"aba/{name}"
            for name, summary in projects.items()
            if all(
                any(one.startswith(word) for one in ["aba", *name.split("-"), *summary.replace("-", " ").split()])
                for word in wanted
            )
        }
        whole = [hit.id for hit in find(store, text, limit=100).hits]
        assert sorted(whole) == sorted(right)
        paged, after = [], None
        while True:
            page = find(store, text, limit=limit, after=after)
            paged += [hit.id for hit in page.hits]
            after = page.next
            if after is None:
                break
        assert paged == whole
    finally:
        store.database.close()


def test_search_over_http(hub):
    """Pages by `next`, and limits that are checked."""
    me = hub.owner().slug
    with stored(hub) as store:
        for name in ("zebra-one", "zebra-two", "zebra-three"):
            store.release(f"{me}/{name}")
    with hub.client() as client:
        first = client.get("/api/v1/search", SearchAnswer, q=f"{me} zebra", limit=2)
        rest = client.get("/api/v1/search", SearchAnswer, q=f"{me} zebra", limit=2, after=first.next)
        assert len(first.hits) == 2
        assert len(rest.hits) == 1
        assert rest.next is None
        with pytest.raises(HubRefusedError):
            client.get("/api/v1/search", SearchAnswer, limit=101)
