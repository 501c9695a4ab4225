"""What one process of a hub writes, the next answer of another shows; and what the caches rest on."""

import asyncio
import contextlib

import httpx
import pytest

from hub_server.database import Database
from hub_server.journal import record
from hub_server.migrations.upgrade import upgrade
from hub_server.simple_index.cache import Cache
from hub_server.simple_index.plain_names import PlainNames
from hub_server.simple_index.watch import ACCOUNTS, JournalWatch
from tests.support.hub import running_hub
from tests.support.hub_rows import HubRows

JSON = "application/vnd.pypi.simple.v1+json"


@pytest.fixture
def two_processes(tmp_path, database_url):
    """Clients of two servers that share a database and a folder, and the rows of both."""
    with contextlib.ExitStack() as stack:
        hubs = [
            stack.enter_context(running_hub(tmp_path / "data", database_url=database_url)) for _ in range(2)
        ]
        clients = [
            stack.enter_context(httpx.Client(base_url=hub.url, headers={"Accept": JSON}, trust_env=False))
            for hub in hubs
        ]
        yield clients, stack.enter_context(contextlib.closing(HubRows(hubs[0])))


@pytest.mark.slow
def test_another_process_sees_every_change_at_once(two_processes):
    """Releases, yanks, names and rights, in both directions, though each process has the older page in its cache."""
    clients, rows = two_processes
    owner = rows.owner()
    for number in range(10):
        rows.release(owner.slug, "shared-env", f"1.{number}")
        rows.release(owner.slug, f"other-{number}")
        for client in clients:
            assert len(client.get("/simple/shared-env/").json()["versions"]) == number + 1
            assert len(client.get("/simple/").json()["projects"]) == number + 2
            assert len(client.get(f"/{owner.slug}/simple/").json()["projects"]) == number + 2
    with rows.change(owner.slug, "shared-env") as project:
        project.visibility = "private"
    for client in clients:
        url = f"/{owner.slug}/simple/shared-env/"
        assert client.get(url).status_code == client.get("/simple/shared-env/").status_code == 404
        assert client.get(url, auth=("__token__", owner.token)).status_code == 200
        assert "shared-env" not in client.get("/simple/").text
    rows.revoke(owner.token)
    for client in clients:
        assert client.get(url, auth=("__token__", owner.token)).status_code == 404


# --- the journal as a process reads it ----------------------------------------------------------------------------


@pytest.fixture
async def watched(database_url):
    """A migrated database and a watch on it."""
    database = Database(database_url)
    await asyncio.to_thread(upgrade, database)
    watch = JournalWatch(database)
    yield database, watch
    await watch.close()
    database.close()


def write(database, times=1):
    """A change of an account."""
    for _ in range(times):
        with database.write() as session:
            serial = record(session, "test")
    return serial


async def test_what_was_kept_holds_until_its_tag_changes(watched):
    """A change of accounts drops what hangs on accounts, and nothing else."""
    database, watch = watched
    write(database)
    await watch.catch_up()
    cache = Cache(watch, 10)
    cache.keep("page", "text", ("my-env",), watch.serial)
    cache.keep("right", True, (ACCOUNTS,), watch.serial)
    serial = write(database)
    await watch.catch_up()
    assert watch.serial == serial
    assert cache.find("page").value == "text"
    assert cache.find("right") is None


async def test_an_empty_journal_is_nothing_to_learn(watched):
    """Before the first change everything that was read holds."""
    database, watch = watched
    await watch.catch_up()
    cache = Cache(watch, 10)
    cache.keep("page", "text", ("my-env",), watch.serial)
    await watch.catch_up()
    assert cache.find("page") is not None
    write(database)
    await watch.catch_up()
    assert cache.find("page") is None  # what is before the first serial that was seen is not trusted


async def test_more_changes_than_are_read_at_once_drop_everything(watched):
    """A process that has slept goes on from the present."""
    database, watch = watched
    write(database)
    await watch.catch_up()
    cache = Cache(watch, 10)
    cache.keep("page", "text", ("my-env",), watch.serial)
    with database.write() as session:
        for _ in range(1100):
            serial = record(session, "test")
    await watch.catch_up()
    assert (watch.serial, cache.find("page")) == (serial, None)


async def test_many_who_ask_at_once_all_know_what_was_before(watched):
    """However questions are shared: no one is answered with a state from before it asked."""
    database, watch = watched
    write(database)

    async def ask():
        serial = await asyncio.to_thread(write, database)
        await watch.catch_up()
        assert watch.serial >= serial

    for _ in range(5):
        await asyncio.gather(*(ask() for _ in range(12)))


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_a_broken_connection_is_made_anew(watched):
    """The database may drop the watch's connection at any time."""
    database, watch = watched
    write(database)
    await watch.catch_up()
    with database.engine.connect() as connection:
        connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    database.engine.dispose()
    serial = write(database)
    await watch.catch_up()
    assert watch.serial == serial


async def test_the_least_used_goes_first(watched):
    """The cache stays below its limit of weight, and holds what was asked for last."""
    database, watch = watched
    write(database)
    await watch.catch_up()
    cache = Cache(watch, 10)
    for key in "abc":
        cache.keep(key, key, (), watch.serial, weight=4)
        cache.find("a")
    assert [key for key in "abc" if cache.find(key)] == ["a", "c"]
    cache.keep("large", "", (), watch.serial, weight=100)
    assert cache.find("large") is not None
    assert cache.find("a") is None


class Known:
    """What PlainNames needs of a watch."""

    def __init__(self):
        self.serial = 1
        self.changed = set()

    def changed_since(self, as_of):
        return self.changed


async def test_only_changed_names_are_asked_for():
    """The first time all names, then only those that changed; the version counts what differs."""
    watch, listed, asked = Known(), {"a", "b"}, []

    async def ask(among):
        asked.append(among)
        return listed if among is None else listed & among

    names = PlainNames(watch)
    await names.refresh(ask)
    assert (names.names, names.version) == ({"a", "b"}, 1)
    watch.serial, watch.changed = 2, {"a"}  # a release of a project that is listed
    await names.refresh(ask)
    assert (names.names, names.version) == ({"a", "b"}, 1)
    watch.serial, watch.changed, listed = 3, {"a", "c", "d"}, {"b", "c"}
    await names.refresh(ask)
    assert (names.names, names.version) == ({"b", "c"}, 2)
    await names.refresh(ask)
    assert asked == [None, {"a"}, {"a", "c", "d"}]
