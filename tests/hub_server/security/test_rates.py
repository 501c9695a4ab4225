"""Rate limits: what a bucket gives, on both databases, also to many at once."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, strategies as st
from sqlalchemy import select

from hub_server.database import Database
from hub_server.migrations.upgrade import upgrade
from hub_server.security.rates import (
    RATES,
    Rate,
    RateBucket,
    TooMany,
    address,
    allow,
    forget_full,
    spend,
    take,
)
from hub_server.settings import Settings


@pytest.fixture
def database(database_url):
    database = Database(database_url)
    upgrade(database)
    yield database
    database.close()


def took(database, at, action="publish", subject="alice"):
    with database.write() as session:
        return take(session, action, subject, at)


def test_a_burst_then_one_an_interval(database):
    """The burst is there at once; afterwards the wait is told, and after it there is exactly one more."""
    rate = RATES["publish"]
    start = 1_800_000_000.0
    assert [took(database, start) for _ in range(rate.burst)] == [None] * rate.burst
    assert took(database, start) == pytest.approx(rate.interval)
    assert took(database, start + 20) == pytest.approx(rate.interval - 20)
    assert took(database, start + rate.interval) is None
    assert took(database, start + rate.interval) == pytest.approx(rate.interval)


def test_a_refusal_takes_nothing(database):
    """Asking again and again while the bucket is empty puts nothing off."""
    start = 1_800_000_000.0
    for _ in range(RATES["publish"].burst + 50):
        took(database, start)
    assert took(database, start + RATES["publish"].interval) is None


def test_buckets_are_apart(database):
    """Another account and another action have buckets of their own."""
    start = 1_800_000_000.0
    while took(database, start, "new-project") is None:
        pass
    assert took(database, start, "new-project", "bob") is None
    assert took(database, start, "yank") is None


def test_callers_at_the_same_time_get_the_burst_and_no_more(database):
    """Eight threads take as much as they can: together exactly the burst."""
    start = 1_800_000_000.0
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: took(database, start), range(80)))
    assert answers.count(None) == RATES["publish"].burst


def test_a_rate_of_its_own_holds_until_it_ends(database):
    """An admin's override raises the burst of one account and is over by itself."""
    start = 1_800_000_000.0
    with database.write() as session:
        allow(session, "publish", "alice", Rate(1, 100), until=start + 3600)
    assert [took(database, start) for _ in range(100)] == [None] * 100
    assert took(database, start) == pytest.approx(1)
    assert took(database, start, subject="bob") is None
    assert [took(database, start + 3600) for _ in range(31)].count(None) == 30
    with database.write() as session:
        allow(session, "publish", "alice", None, until=0)
    assert took(database, start + 3600) is not None


def test_spend_tells_when(database):
    """429 with the seconds to wait; nothing at all where limits are off."""
    on, off = Settings(rate_limits=True), Settings(rate_limits=False)
    for _ in range(RATES["login"].burst):
        spend(database, on, "login", "192.0.2.1")
    with pytest.raises(TooMany) as refused:
        spend(database, on, "login", "192.0.2.1")
    assert (refused.value.status, refused.value.code) == (429, "rate-limited")
    assert 1 <= int(refused.value.headers["Retry-After"]) <= RATES["login"].interval
    spend(database, off, "login", "192.0.2.1")


def test_full_buckets_are_forgotten(database):
    """What is full again leaves no row; what is not, or has a rate of its own, stays."""
    took(database, 1_000.0)
    took(database, 9e9, subject="bob")
    with database.write() as session:
        allow(session, "yank", "carol", Rate(1, 1), until=9e9)
        assert forget_full(session) == 1
        assert forget_full(session) == 0


@pytest.fixture(scope="module")
def one_database(tmp_path_factory):
    database = Database(f"sqlite:///{tmp_path_factory.mktemp('rates') / 'hub.sqlite3'}")
    upgrade(database)
    yield database
    database.close()


@given(st.lists(st.floats(0, 5000), min_size=1, max_size=120), st.uuids())
def test_no_window_gives_more_than_burst_and_rate(one_database, moments, subject):
    """In any window of w seconds a bucket gives at most burst + w / interval."""
    with one_database.write() as session:
        given_at = [at for at in sorted(moments) if take(session, "publish", str(subject), at) is None]
    rate = RATES["publish"]
    for first, start in enumerate(given_at):
        for last in range(first, len(given_at)):
            assert last - first + 1 <= rate.burst + (given_at[last] - start) / rate.interval + 1e-3


@pytest.mark.parametrize(
    ("host", "subject"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8::1:2:3:4", "2001:db8::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        (None, "unknown"),
        ("testclient", "testclient"),
    ],
)
def test_an_address_stands_for_one_customer(host, subject):
    """IPv4 as it is, IPv6 by its network."""
    assert address(host) == subject


def test_an_own_rate_that_is_given_with_the_first_request(database):
    """Both want to make the bucket's row: neither fails, and what was spent and given is kept."""

    def give(subject):
        with database.write() as session:
            allow(session, "publish", subject, Rate(1, 2), until=9e9)

    start = 1_800_000_000.0
    with ThreadPoolExecutor(2) as pool:
        for number in range(60):
            given, taken = pool.submit(give, f"s{number}"), pool.submit(took, database, start, "publish", f"s{number}")
            assert (given.result(), taken.result()) == (None, None)
    with database.read() as session:
        assert {(one.own_burst, one.full_at > start) for one in session.scalars(select(RateBucket))} == {(2, True)}
