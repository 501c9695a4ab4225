"""The index of one package: what it has, and that nothing else is found through it."""

import pytest

pytestmark = pytest.mark.usefixtures("sdk")



def needs(*ids):
    """The facts of a release that declares hub packages."""
    return {"hub_dependencies": list(ids)}


def names(http, owner, name):
    return [one["name"] for one in http.get(f"/{owner}/{name}/simple/").json()["projects"]]


def test_it_has_the_package_and_the_sdk_only(http, rows):
    """Also where the owner has more, the names of others are a plain 404."""
    owner, name, other = rows.owner().slug, rows.name(), rows.name()
    rows.release(owner, name)
    rows.release(owner, other)
    assert names(http, owner, name) == sorted([name, "verifiers"])
    found = {one: http.get(f"/{owner}/{name}/simple/{one}/") for one in (name, "verifiers", other, "numpy", "pip")}
    assert {one: answer.status_code for one, answer in found.items()} == {
        name: 200, "verifiers": 200, other: 404, "numpy": 404, "pip": 404,
    }  # fmt: skip
    assert found["verifiers"].json()["_env"] == "sdk/verifiers"


def test_declared_packages_are_there_with_theirs(http, rows):
    """With the owner that was declared, through every level and release; cycles end."""
    alice, bob, carol = (rows.owner().slug for _ in range(3))
    top, base, deep = rows.name("top"), rows.name("base"), rows.name("deep")
    rows.release(bob, base, facts=needs(f"{carol}/{deep}>=1"))
    rows.release(alice, base)
    rows.release(carol, deep, facts=needs(f"{alice}/{top}"))
    rows.release(alice, top, "1.0", facts=needs(f"{bob}/{base}>=0.1,<2"))
    rows.release(alice, top, "2.0")
    assert names(http, alice, top) == sorted([top, base, deep, "verifiers"])
    pages = {one: http.get(f"/{alice}/{top}/simple/{one}/").json()["_env"] for one in (base, deep)}
    assert pages == {base: f"{bob}/{base}", deep: f"{carol}/{deep}"}
    assert names(http, alice, base) == sorted([base, "verifiers"])


def test_what_a_new_release_declares_is_there_at_once(http, rows):
    """Also a package that was declared before it existed."""
    owner, top, base = rows.owner().slug, rows.name("top"), rows.name("base")
    rows.release(owner, top, "1.0")
    url = f"/{owner}/{top}/simple/{base}/"
    assert http.get(url).status_code == 404
    rows.release(owner, top, "1.1", facts=needs(f"{owner}/{base}"))
    assert http.get(url).status_code == 404
    rows.release(owner, base)
    assert http.get(url).status_code == 200


def test_a_private_dependency_shows_to_those_who_may_read_it(http, rows):
    """To others it is a name that this index does not have."""
    owner, top, base = rows.owner(), rows.name("top"), rows.name("base")
    rows.release(owner.slug, top, facts=needs(f"{owner.slug}/{base}"))
    rows.release(owner.slug, base, visibility="private")
    url = f"/{owner.slug}/{top}/simple/{base}/"
    assert http.get(url).status_code == 404
    assert http.get(url, auth=("__token__", owner.token)).status_code == 200
    assert base not in names(http, owner.slug, top)
