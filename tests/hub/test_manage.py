"""`hub yank`, `unyank`, `delete`, `status`, `visibility`, `transfer-name`, as real processes against a live hub."""

import pytest

from tests.support.archives import sdist_name, wheel_name
from tests.support.hub_command import Person
from tests.support.publish import index_page, publish

FILES = sorted([wheel_name(), sdist_name()])


@pytest.fixture
def owner(hub):
    return hub.owner()


@pytest.fixture
def person(hub, owner, tmp_path):
    with hub.client(owner.token) as client:
        publish(client, owner.slug, sdist=True)
    return Person(tmp_path / "person", hub.url, owner.token)


@pytest.fixture
def id(owner):
    return f"{owner.slug}/demo-env@0.1.0"


def page(hub, owner):
    with hub.client(owner.token) as client:
        return index_page(client, f"/{owner.slug}/demo-env/simple/demo-env/")


def test_a_release_is_yanked_and_offered_again(hub, owner, person, id):
    """--dry-run lists the files and changes nothing; the reason is needed; a repetition is no failure."""
    planned = person.hub("yank", id, "--reason", "pays twice", "--dry-run")
    assert (planned.code, planned.out.split()[1:]) == (0, ["would", "be", "yanked", *FILES])
    assert page(hub, owner)["files"][0]["yanked"] is False
    done = person.hub("yank", id, "--reason", "pays twice", "--class", "broken-reward", "--json").data
    assert (done["id"], done["changed"], done["yanked"]["cause"]) == (id, True, "broken-reward")
    assert {file["yanked"] for file in page(hub, owner)["files"]} == {"pays twice"}
    again = person.hub("yank", id, "--reason", "pays twice", "--class", "broken-reward")
    assert (again.code, again.out.strip()) == (0, f"{id} was yanked already")
    assert person.hub("unyank", id, "--json").data["changed"]
    assert page(hub, owner)["files"][0]["yanked"] is False


def test_what_can_not_be_yanked_says_so(person, owner, id):
    """No reason, no version, an unknown class: 2. No such release: 1. No token: 3."""
    project = f"{owner.slug}/demo-env"
    for arguments, code in (
        (["yank", id], 2),
        (["yank", project, "--reason", "x"], 2),
        (["yank", id, "--reason", "x", "--class", "mood"], 2),
        (["yank", "nonsense", "--reason", "x"], 2),
        (["yank", f"{project}@9", "--reason", "x"], 1),
    ):
        done = person.hub(*arguments)
        assert (done.code, "hint:" in done.err) == (code, True), done.err
    assert person.hub("yank", id, "--reason", "x", VF_HUB_TOKEN="").code == 3


def test_a_deletion_wants_the_id_typed(hub, owner, person, id):
    """Without a terminal nothing is done; typed, it is gone for good."""
    refused = person.hub("delete", id)
    assert (refused.code, "nothing was deleted" in refused.err) == (2, True)
    assert person.hub("delete", id, "--dry-run", "--json").data["files"] == FILES
    assert person.hub_at_a_terminal("delete", id, typed="yes").code == 2
    assert len(page(hub, owner)["files"]) == 2
    done = person.hub_at_a_terminal("delete", id, typed=id)
    assert done.code == 0, done.err
    assert page(hub, owner)["files"] == []
    gone = person.hub("delete", id, "--yes")
    assert gone.code == 1


def test_a_project_is_marked_and_hidden(hub, owner, person):
    """status and visibility change it, and say what it was when there is nothing to change."""
    project = f"{owner.slug}/demo-env"
    assert person.hub("status", project, "archived").code == 1
    done = person.hub("status", project, "archived", "--reason", "use other-env")
    assert (done.code, done.out.strip()) == (0, f"{project} is archived: use other-env")
    assert page(hub, owner)["project-status"]["status"] == "archived"
    assert person.hub("visibility", project, "private").code == 2
    assert "would be private" in person.hub("visibility", project, "private", "--dry-run").out
    told = person.hub("visibility", project, "private", "--yes", "--json").data
    assert (told["visibility"], told["changed"]) == ("private", True)
    with hub.client() as anybody:
        assert index_page(anybody, f"/{owner.slug}/demo-env/simple/demo-env/") is None
    assert "already" in person.hub("visibility", project, "private").out


def test_a_name_is_given_away(hub, owner, person, tmp_path):
    """Only to a public project of the same name, and only when the id is typed or --yes is given."""
    other = hub.owner()
    name = f"env-of-{owner.slug}"
    project = f"{owner.slug}/{name}"
    with hub.client(owner.token) as client:
        publish(client, owner.slug, name)
    assert person.hub("transfer-name", project, "--to", other.slug, "--yes").code == 1
    with hub.client(other.token) as client:
        publish(client, other.slug, name)
        assert person.hub("transfer-name", project, "--to", other.slug).code == 2
        assert person.hub("transfer-name", project, "--to", other.slug, "--yes", "--json").data["plain_name"] is False
        assert other.slug in index_page(client, f"/simple/{name}/")["files"][0]["url"]
