"""Yank, deletion, visibility, status and the plain name, on a live hub with either database."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import update

from hub_server.database import now
from hub_server.packages.manage import GRACE
from hub_server.packages.models import Release
from tests.support.archives import make_sdist, make_wheel, sdist_name, wheel_name
from tests.support.publish import index_page, publish, upload
from tests.support.stored import stored
from verifiers.errors import HubDeniedError, HubError, HubNotFoundError, HubRefusedError
from verifiers.hub.schema import (
    AuditPage,
    CreatedToken,
    NewToken,
    ProjectChange,
    ReleaseChange,
    Yank,
)

WHEEL = wheel_name()


@pytest.fixture
def alice(hub):
    """A publisher: the client, with the owner's slug as `owner`."""
    owner = hub.owner()
    with hub.client(owner.token) as client:
        client.owner = owner.slug
        yield client


@pytest.fixture
def bob(hub):
    owner = hub.owner()
    with hub.client(owner.token) as client:
        client.owner = owner.slug
        yield client


def yank(client, owner, version="0.1.0", name="demo-env", reason="pays twice", cause="broken-reward", query=""):
    body = {"reason": reason, "cause": cause}
    answer = client.request("POST", f"/api/v1/{owner}/{name}/{version}/yank{query}", json=body)
    return ReleaseChange.model_validate(answer.json())


def unyank(client, owner, version="0.1.0"):
    answer = client.request("DELETE", f"/api/v1/{owner}/demo-env/{version}/yank")
    return ReleaseChange.model_validate(answer.json())


def delete(client, owner, version="0.1.0", query=""):
    answer = client.request("DELETE", f"/api/v1/{owner}/demo-env/{version}{query}")
    return ReleaseChange.model_validate(answer.json())


def change(client, owner, name="demo-env", query="", **what):
    return ProjectChange.model_validate(
        client.request("PATCH", f"/api/v1/{owner}/{name}{query}", json=what).json()
    )


def events(client, owner):
    found = client.get("/api/v1/audit", AuditPage, owner=owner, project="demo-env").events
    return [(event.action, event.version, event.data) for event in found if event.action != "release.publish"]


def scoped(client, owner, name="demo-env"):
    return index_page(client, f"/{owner}/{name}/simple/{name}/")


def code_of(action, error=HubRefusedError):
    with pytest.raises(error) as refused:
        action()
    return refused.value.code


# --- yank -------------------------------------------------------------------------------------------------------


def test_a_yank_shows_at_once_and_can_be_taken_back(alice):
    """The index tells the reason from the next request on; each real change is one event, a repetition is none."""
    publish(alice, alice.owner, sdist=True)
    done = yank(alice, alice.owner)
    assert (done.changed, done.yanked.cause) == (True, "broken-reward")
    assert done.files == sorted([WHEEL, sdist_name()])
    assert {file["yanked"] for file in scoped(alice, alice.owner)["files"]} == {"pays twice"}
    assert not yank(alice, alice.owner, version="v0.1").changed
    assert yank(alice, alice.owner, reason="leaks", cause="leak").changed
    assert unyank(alice, alice.owner).changed
    assert not unyank(alice, alice.owner).changed
    page = scoped(alice, alice.owner)
    assert [file["yanked"] for file in page["files"]] == [False, False]
    told = events(alice, alice.owner)
    assert told == [
        ("release.yank", "0.1.0", {"reason": "pays twice", "class": "broken-reward"}),
        ("release.yank", "0.1.0", {"reason": "leaks", "class": "leak"}),
        ("release.unyank", "0.1.0", {}),
    ]


def test_a_dry_run_makes_the_checks_and_no_change(alice, bob):
    """It lists the files and whether anything would change; it is refused like the real thing."""
    publish(alice, alice.owner)
    told = yank(alice, alice.owner, query="?dry_run=true")
    assert (told.changed, told.files, told.yanked) == (True, [WHEEL], None)
    assert delete(alice, alice.owner, query="?dry_run=true").files == [WHEEL]
    assert change(alice, alice.owner, query="?dry_run=true", visibility="private").visibility == "public"
    assert code_of(lambda: yank(bob, alice.owner, query="?dry_run=true"), HubDeniedError) == "denied"
    assert events(alice, alice.owner) == []
    assert scoped(alice, alice.owner)["files"][0]["yanked"] is False


def test_a_yank_needs_a_reason_and_a_known_cause(alice):
    """Blank reasons, control characters and other causes are refused before anything happens."""
    publish(alice, alice.owner)
    for more in ({"reason": " "}, {"reason": "a\x00b"}, {"cause": "mood"}):
        assert code_of(lambda more=more: yank(alice, alice.owner, **more)) == "invalid"
    with pytest.raises(ValueError, match="reason"):
        Yank(reason="")


def test_what_is_not_there_can_not_be_yanked(alice, bob):
    """No release, no project, no version: 404."""
    publish(alice, alice.owner)
    for version, name in (("9", "demo-env"), ("no version", "demo-env"), ("0.1.0", "other"), ("0.1.0", "no name!")):
        gone = lambda version=version, name=name: yank(alice, alice.owner, version=version, name=name)  # noqa: E731
        assert code_of(gone, HubNotFoundError) == "not-found"


def test_each_scope_does_what_it_says(hub, alice):
    """A token for publishing does not yank, one for yanking does not delete, and a pattern holds here, too."""
    publish(alice, alice.owner)
    with_scopes = {
        "publish": {}, "yank": {}, "read": {}, "admin": {"patterns": [f"{alice.owner}/other-*"]},
    }  # fmt: skip
    clients = {
        scope: hub.client(
            alice.post("/api/v1/tokens", NewToken(name=scope, scopes=[scope], **more), CreatedToken).token
        )
        for scope, more in with_scopes.items()
    }
    for scope in ("publish", "read", "admin"):
        assert code_of(lambda scope=scope: yank(clients[scope], alice.owner), HubDeniedError) == "denied"
    assert yank(clients["yank"], alice.owner).changed
    for client in clients.values():
        assert code_of(lambda client=client: delete(client, alice.owner), HubDeniedError) == "denied"
        settings = lambda client=client: change(client, alice.owner, visibility="private")  # noqa: E731
        assert code_of(settings, HubDeniedError) == "denied"
        client.close()


def test_roles_decide_in_an_organisation(hub, alice, bob):
    """A reader sees, a publisher yanks, an admin deletes."""
    team = hub.owner("organisation")
    with hub.client(team.token) as robot:
        publish(robot, team.slug)
        member = f"/api/v1/owners/{team.slug}/members/{bob.owner}"
        robot.request("PUT", member, json={"role": "reader"})
        assert code_of(lambda: yank(bob, team.slug), HubDeniedError) == "denied"
        robot.request("PUT", member, json={"role": "publisher"})
        assert yank(bob, team.slug).changed
        assert code_of(lambda: delete(bob, team.slug), HubDeniedError) == "denied"
        robot.request("PUT", member, json={"role": "admin"})
        assert delete(bob, team.slug).changed


# --- deletion ---------------------------------------------------------------------------------------------------


def test_a_deleted_version_is_gone_for_good(alice):
    """Test case 13: neither the version nor the file name is ever taken again, whatever the bytes; yank is named."""
    files = publish(alice, alice.owner, sdist=True)
    where = scoped(alice, alice.owner)["files"][0]["url"]
    assert delete(alice, alice.owner).changed
    assert scoped(alice, alice.owner)["files"] == []
    assert alice.http.get(where).status_code == 404
    again = upload(alice, WHEEL, files[WHEEL])
    other = upload(alice, WHEEL, make_wheel(description="# Other\n"))
    another_name = upload(alice, wheel_name(tag="py311-none-any"), make_wheel(tags=["py311-none-any"]))
    for answer in (again, other, another_name):
        assert answer.status_code == 400
        assert "deleted" in answer.text and "hub yank" in answer.text and "[deleted-version]" in answer.text
    assert code_of(lambda: publish(alice, alice.owner)) == "deleted-version"
    assert code_of(lambda: delete(alice, alice.owner), HubNotFoundError) == "not-found"
    assert events(alice, alice.owner) == [("release.delete", "0.1.0", {"files": sorted(files)})]
    publish(alice, alice.owner, version="0.1.1")
    assert [file["filename"] for file in scoped(alice, alice.owner)["files"]] == [wheel_name(version="0.1.1")]


def test_a_release_that_somebody_has_is_not_deleted(hub, alice):
    """A download decides, a look at its METADATA or its headers does not; the hub's admins may all the same."""
    publish(alice, alice.owner)
    url = scoped(alice, alice.owner)["files"][0]["url"]
    with hub.client() as anybody:
        assert anybody.http.head(url).status_code == 200
        assert anybody.http.get(url + ".metadata").status_code == 200
        assert delete(alice, alice.owner, query="?dry_run=true").changed
        assert anybody.http.get(url).status_code == 200
    assert code_of(lambda: delete(alice, alice.owner)) == "too-late-to-delete"
    with hub.client(hub.root.token) as root:
        assert delete(root, alice.owner).changed


def test_an_old_release_is_not_deleted(hub, alice):
    """After the first minutes it is yanked instead."""
    publish(alice, alice.owner)
    publish(alice, alice.owner, version="0.2.0")
    with stored(hub) as store, store.database.write() as session:
        old = update(Release).where(Release.given_version == "0.1.0", Release.project.has(name="demo-env"))
        session.execute(old.values(created_at=now() - GRACE).execution_options(synchronize_session=False))
    assert code_of(lambda: delete(alice, alice.owner)) == "too-late-to-delete"
    assert delete(alice, alice.owner, "0.2.0").changed


def test_a_download_and_a_deletion_at_once(alice):
    """Whoever is first decides: either the bytes were sent and the release stays, or it is gone and nothing was."""
    for number in range(8):
        version = f"0.{number}.0"
        publish(alice, alice.owner, version=version)
        url = next(f["url"] for f in scoped(alice, alice.owner)["files"] if f"-{version}-" in f["filename"])
        with ThreadPoolExecutor(2) as pool:
            got = pool.submit(alice.http.get, url)
            ended = pool.submit(outcome, lambda version=version: delete(alice, alice.owner, version))
        pair = (got.result().status_code, ended.result())
        assert pair in {(200, "too-late-to-delete"), (404, "done")}


def outcome(action):
    try:
        action()
    except HubError as error:
        return error.code
    return "done"


# --- races ------------------------------------------------------------------------------------------------------


def test_yanks_at_once_leave_one_state_and_its_history(alice):
    """Eight callers with different reasons: the last event of the journal is what the release says."""
    publish(alice, alice.owner)
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda number: yank(alice, alice.owner, reason=f"reason {number}"), range(8)))
    told = events(alice, alice.owner)
    assert len({one.serial for one in done}) == len(told) == 8
    assert scoped(alice, alice.owner)["files"][0]["yanked"] == told[-1][2]["reason"]


def test_a_yank_while_files_are_published(alice):
    """Other versions and the same version come in while it is yanked: each change is whole, and none is lost."""
    publish(alice, alice.owner)

    def push(number):
        version = f"1.{number}.0"
        return upload(alice, wheel_name(version=version), make_wheel(version=version)).status_code

    with ThreadPoolExecutor(8) as pool:
        pushed = [pool.submit(push, number) for number in range(5)]
        source = pool.submit(upload, alice, sdist_name(), make_sdist())
        yanked = pool.submit(yank, alice, alice.owner)
    assert [one.result() for one in pushed] == [200] * 5
    assert yanked.result().changed
    late = source.result()
    assert late.status_code == 200 or "[closed]" in late.text
    files = {file["filename"]: file["yanked"] for file in scoped(alice, alice.owner)["files"]}
    assert len(files) == 6 + (late.status_code == 200)
    assert {name for name, reason in files.items() if reason} == {name for name in files if "-0.1.0" in name}


# --- visibility and the plain name ------------------------------------------------------------------------------


def test_a_private_project_is_as_if_it_were_not_there(hub, alice, bob):
    """Every route of a project answers a stranger as it does for one that does not exist."""
    publish(alice, alice.owner, visibility="private")
    for name in ("demo-env", "absent"):
        actions = [
            lambda name=name: yank(bob, alice.owner, name=name),
            lambda name=name: change(bob, alice.owner, name=name, visibility="public"),
            lambda name=name: bob.request("DELETE", f"/api/v1/{alice.owner}/{name}/0.1.0"),
            lambda name=name: bob.request("DELETE", f"/api/v1/{alice.owner}/{name}/0.1.0/yank"),
            lambda name=name: bob.request("GET", f"/api/v1/{alice.owner}/{name}"),
            lambda name=name: bob.request(
                "POST", f"/api/v1/{alice.owner}/{name}/transfer-name", json={"to": bob.owner}
            ),
        ]
        for action in actions:
            assert code_of(action, HubNotFoundError) == "not-found"
    assert index_page(bob, "/simple/demo-env/") is None or alice.owner not in str(index_page(bob, "/simple/demo-env/"))


def named(owner):
    """A project name of its own: the whole-hub index is shared by all tests of a session."""
    return f"env-of-{owner}"


def test_the_plain_name_stays_reserved_while_a_project_is_private(alice, bob):
    """Going private gives the name to nobody else: who installs by it gets the owner's code, or none."""
    name = named(alice.owner)
    publish(alice, alice.owner, name)
    assert change(alice, alice.owner, name, visibility="private").plain_name
    assert index_page(alice, f"/simple/{name}/") is None
    publish(bob, bob.owner, name)
    assert index_page(bob, f"/simple/{name}/") is None
    assert change(alice, alice.owner, name, visibility="public").plain_name
    assert alice.owner in index_page(bob, f"/simple/{name}/")["files"][0]["url"]
    assert not change(bob, bob.owner, name, visibility="public").changed


def test_a_private_project_takes_the_plain_name_when_it_becomes_public(alice, bob):
    """Never before, and only if no other project has it."""
    name = named(alice.owner)
    publish(alice, alice.owner, name, visibility="private")
    publish(bob, bob.owner, name, visibility="private")
    assert change(bob, bob.owner, name, visibility="public").plain_name
    assert not change(alice, alice.owner, name, visibility="public").plain_name
    assert bob.owner in index_page(alice, f"/simple/{name}/")["files"][0]["url"]


def test_of_two_that_become_public_at_once_one_has_the_plain_name(alice, bob):
    """The database decides."""
    name = named(alice.owner)
    for client in (alice, bob):
        publish(client, client.owner, name, visibility="private")
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda client: change(client, client.owner, name, visibility="public"), (alice, bob)))
    assert sorted(one.plain_name for one in done) == [False, True]
    assert {one.visibility for one in done} == {"public"}


def test_local_versions_keep_a_project_private(alice):
    """They are for private projects; the refusal names them."""
    name = named(alice.owner)
    publish(alice, alice.owner, name, "1.0+mine", visibility="private")
    with pytest.raises(HubRefusedError, match=r"1\.0\+mine") as refused:
        change(alice, alice.owner, name, visibility="public")
    assert refused.value.code == "local-version"


def test_the_plain_name_moves_by_an_explicit_transfer_only(hub, alice, bob):
    """Its holder gives it to a public project of the same name; both get an event, and the index follows."""
    name = named(alice.owner)
    publish(alice, alice.owner, name)

    def give(client, owner, to):
        answer = client.request("POST", f"/api/v1/{owner}/{name}/transfer-name", json={"to": to})
        return ProjectChange.model_validate(answer.json())

    assert code_of(lambda: give(alice, alice.owner, bob.owner)) == "plain-name"
    publish(bob, bob.owner, name)
    assert code_of(lambda: give(bob, alice.owner, bob.owner), HubDeniedError) == "denied"
    assert code_of(lambda: give(bob, bob.owner, alice.owner)) == "plain-name"
    assert not give(alice, alice.owner, bob.owner).plain_name
    assert bob.owner in index_page(alice, f"/simple/{name}/")["files"][0]["url"]
    for client in (alice, bob):
        told = client.get("/api/v1/audit", AuditPage, owner=client.owner, action="project.transfer-name").events
        assert [event.data for event in told] == [{"from": f"{alice.owner}/{name}", "to": f"{bob.owner}/{name}"}]


# --- status -----------------------------------------------------------------------------------------------------


def test_a_status_is_shown_with_its_reason(alice):
    """Archived takes no uploads, active has no reason, and what is set aside must say why."""
    publish(alice, alice.owner)
    assert code_of(lambda: change(alice, alice.owner, status="archived")) == "no-reason"
    assert change(alice, alice.owner, status="archived", status_reason="use other-env").changed
    assert not change(alice, alice.owner, status="archived", status_reason="use other-env").changed
    assert scoped(alice, alice.owner)["project-status"] == {"status": "archived", "reason": "use other-env"}
    refused = upload(alice, wheel_name(version="2.0.0"), make_wheel(version="2.0.0"))
    assert (refused.status_code, "[project-closed]" in refused.text) == (400, True)
    assert change(alice, alice.owner, status="active", status_reason="ignored").status_reason is None
    assert upload(alice, wheel_name(version="2.0.0"), make_wheel(version="2.0.0")).status_code == 200
    assert [event[2] for event in events(alice, alice.owner)] == [
        {"status": "archived", "reason": "use other-env"}, {"status": "active", "reason": None},
    ]  # fmt: skip


def test_quarantine_is_the_hubs(hub, alice):
    """Only an admin of the hub sets or lifts it; meanwhile no file is offered."""
    publish(alice, alice.owner)
    ask = {"status": "quarantined", "status_reason": "steals keys"}
    assert code_of(lambda: change(alice, alice.owner, **ask), HubDeniedError) == "quarantine"
    with hub.client(hub.root.token) as root:
        assert change(root, alice.owner, **ask).status == "quarantined"
        assert scoped(alice, alice.owner)["files"] == []
        assert code_of(lambda: change(alice, alice.owner, status="active"), HubDeniedError) == "quarantine"
        assert change(root, alice.owner, status="active").changed
    assert len(scoped(alice, alice.owner)["files"]) == 1


def test_a_change_of_both_is_one_transaction(alice):
    """If the status is refused, the visibility stays as it was."""
    publish(alice, alice.owner)
    both = {"visibility": "private", "status": "archived"}
    assert code_of(lambda: change(alice, alice.owner, **both)) == "no-reason"
    assert not change(alice, alice.owner, visibility="public").changed
    assert change(alice, alice.owner, **both, status_reason="done").changed
    assert not change(alice, alice.owner).changed
