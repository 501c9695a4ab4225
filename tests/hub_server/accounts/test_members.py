"""Owners, organisations and their members over HTTP, on a live hub with either database."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from verifiers.errors import HubDeniedError, HubError, HubNotFoundError, HubRefusedError
from verifiers.hub.schema import (
    AuditPage,
    CreatedOwner,
    CreatedToken,
    MemberList,
    NewOwner,
    NewRole,
    NewToken,
    OwnerList,
    Whoami,
)


def organisation(hub, admin, name=None):
    """An organisation with a first admin, made by a site admin."""
    root = hub.root
    slug = name or f"{admin.slug}-org"
    with hub.client(root.token) as client:
        client.post("/api/v1/owners", NewOwner(owner=slug, kind="organisation", admin=admin.slug), CreatedOwner)
    return slug


def set_role(client, owner, user, role):
    answer = client.request("PUT", f"/api/v1/owners/{owner}/members/{user}", json={"role": role})
    return {member.user: member.role for member in MemberList.model_validate(answer.json()).members}


def code_of(action, error=HubDeniedError):
    with pytest.raises(error) as refused:
        action()
    return refused.value.code


def test_a_site_admin_makes_users_and_organisations(hub):
    """A user comes with a first token, which works; an organisation with its first admin, and no token."""
    root, alice = hub.root, hub.owner()
    with hub.client(root.token) as client:
        assert client.get("/api/v1/whoami", Whoami).site_admin
        made = client.post("/api/v1/owners", NewOwner(owner=f"{alice.slug}-new"), CreatedOwner)
        team = NewOwner(owner=f"{alice.slug}-team", kind="organisation", admin=alice.slug)
        assert client.post("/api/v1/owners", team, CreatedOwner).token is None
        for name in ("api", "tokens", "owners", "Alice", "a--b", "x", made.owner):
            with pytest.raises(HubRefusedError):
                client.post("/api/v1/owners", NewOwner(owner=name), CreatedOwner)
    with hub.client(made.token) as client:
        assert client.get("/api/v1/whoami", Whoami).owner == made.owner
        assert code_of(lambda: client.post("/api/v1/owners", NewOwner(owner="another"), CreatedOwner)) == "denied"
    with hub.client(alice.token) as client:
        roles = {one.owner: one.role for one in client.get("/api/v1/owners", OwnerList).owners}
    assert roles == {alice.slug: "admin", team.owner: "admin"}


def test_a_site_admins_narrow_token_does_not_run_the_hub(hub):
    """What the account may do is narrowed by the token's scopes and patterns."""
    root = hub.root
    with hub.client(root.token) as client:
        publisher = NewToken(name="a", scopes=["publish"])
        one_owner = NewToken(name="b", scopes=["admin"], patterns=["a/*"])
        narrow = [client.post("/api/v1/tokens", asked, CreatedToken).token for asked in (publisher, one_owner)]
    for token in narrow:
        with hub.client(token) as client:
            assert not client.get("/api/v1/whoami", Whoami).site_admin
            assert code_of(lambda: client.post("/api/v1/owners", NewOwner(owner="more"), CreatedOwner)) == "denied"


def test_members_are_added_changed_and_removed(hub):
    """An admin does it, a publisher and a stranger can not, and every change is in the audit log."""
    alice, bob, carol = hub.owner(), hub.owner(), hub.owner()
    team = organisation(hub, alice)
    with hub.client(alice.token) as admin, hub.client(bob.token) as client, hub.client(carol.token) as stranger:
        assert set_role(admin, team, bob.slug, "reader") == {alice.slug: "admin", bob.slug: "reader"}
        assert set_role(admin, team, bob.slug, "publisher")[bob.slug] == "publisher"
        assert code_of(lambda: set_role(client, team, carol.slug, "reader")) == "denied"
        members = f"/api/v1/owners/{team}/members"
        assert len(client.get(members, MemberList).members) == 2
        assert code_of(lambda: stranger.get(members, MemberList)) == "denied"
        admin.request("DELETE", f"{members}/{bob.slug}")
        assert code_of(lambda: client.get(members, MemberList)) == "denied"
        gone = lambda: admin.request("DELETE", f"{members}/{bob.slug}")  # noqa: E731
        assert code_of(gone, HubNotFoundError) == "not-found"
        told = admin.get("/api/v1/audit", AuditPage, owner=team).events
    assert [(event.action, event.data.get("role")) for event in told] == [
        ("owner.create", None), ("member.set", "admin"), ("member.set", "reader"), ("member.set", "publisher"),
        ("member.remove", "publisher"),
    ]  # fmt: skip


def test_a_member_may_leave_but_the_last_admin_may_not(hub):
    """An organisation always has someone to look after it."""
    alice, bob = hub.owner(), hub.owner()
    team = organisation(hub, alice)
    members = f"/api/v1/owners/{team}/members"
    with hub.client(alice.token) as admin, hub.client(bob.token) as client:
        set_role(admin, team, bob.slug, "reader")
        client.request("DELETE", f"{members}/{bob.slug}")
        leave = lambda: admin.request("DELETE", f"{members}/{alice.slug}")  # noqa: E731
        assert code_of(leave, HubRefusedError) == "last-admin"
        assert code_of(lambda: set_role(admin, team, alice.slug, "reader"), HubRefusedError) == "last-admin"
        set_role(admin, team, bob.slug, "admin")
        leave()
        assert set_role(client, team, bob.slug, "admin") == {bob.slug: "admin"}


def test_only_users_are_members_and_only_of_organisations(hub):
    """Neither a user nor an organisation of organisations has members."""
    alice, bob = hub.owner(), hub.owner()
    team = organisation(hub, alice)
    other = organisation(hub, alice, f"{alice.slug}-b")
    with hub.client(alice.token) as admin:
        for owner, user in ((alice.slug, bob.slug), (team, other)):
            refused = code_of(lambda owner=owner, user=user: set_role(admin, owner, user, "reader"), HubRefusedError)
            assert refused == "no-organisation"
        absent = code_of(lambda: set_role(admin, team, "nobody-here", "reader"), HubNotFoundError)
        assert absent == "not-found"


@pytest.mark.parametrize("times", range(3))
def test_two_admins_who_remove_each_other_at_once_leave_one(hub, times):
    """The row of the organisation is held: whoever comes second finds the last admin."""
    alice, bob = hub.owner(), hub.owner()
    team = organisation(hub, alice)
    with hub.client(alice.token) as one, hub.client(bob.token) as two:
        set_role(one, team, bob.slug, "admin")

        def remove(client, user):
            try:
                client.request("DELETE", f"/api/v1/owners/{team}/members/{user}")
            except HubError as error:
                return error.code
            return "done"

        with ThreadPoolExecutor(2) as pool:
            ended = list(pool.map(remove, (one, two), (bob.slug, alice.slug)))
    assert sorted(ended) in (["denied", "done"], ["done", "last-admin"])


def test_an_organisation_has_tokens_of_its_own(hub):
    """Its admins make them, for machines; they are no site admin's and no member's."""
    alice, bob = hub.owner(), hub.owner()
    team = organisation(hub, alice)
    asked = NewToken(name="robot", scopes=["publish"], owner=team)
    with hub.client(alice.token) as admin, hub.client(bob.token) as member:
        made = admin.post("/api/v1/tokens", asked, CreatedToken)
        set_role(admin, team, bob.slug, "publisher")
        assert code_of(lambda: member.post("/api/v1/tokens", asked, CreatedToken)) == "denied"
    with hub.client(made.token) as robot:
        assert robot.get("/api/v1/whoami", Whoami).owner == team


def test_the_audit_log_is_for_admins_and_comes_in_pages(hub):
    """An owner's admin reads its own part, a site admin all; serials rise, and pages join without a gap."""
    alice, bob, root = hub.owner(), hub.owner(), hub.root
    with hub.client(alice.token) as client:
        for number in range(5):
            client.post("/api/v1/tokens", NewToken(name=f"t{number}", scopes=["read"]), CreatedToken)
        pages, after = [], 0
        while after is not None:
            page = client.get("/api/v1/audit", AuditPage, owner=alice.slug, after=after, limit=2)
            pages.append(page)
            after = page.next
        events = [event for page in pages for event in page.events]
        assert [event.action for event in events] == ["owner.create"] + ["token.create"] * 6
        assert [event.serial for event in events] == sorted({event.serial for event in events})
        assert [len(page.events) for page in pages] == [2, 2, 2, 1]
        made = client.get("/api/v1/audit", AuditPage, owner=alice.slug, action="owner.create")
        assert len(made.events) == 1
        assert code_of(lambda: client.get("/api/v1/audit", AuditPage)) == "denied"
    with hub.client(bob.token) as client:
        assert code_of(lambda: client.get("/api/v1/audit", AuditPage, owner=alice.slug)) == "denied"
    with hub.client(root.token) as client:
        assert client.get("/api/v1/audit", AuditPage, after=events[0].serial - 1, limit=1).events == events[:1]


def test_only_a_site_admin_gives_rates(hub):
    """An account gets a rate of its own for some days, which the audit log tells."""
    alice, root = hub.owner(), hub.root
    rate = f"/api/v1/owners/{alice.slug}/rates/publish"
    asked = {"interval": 1, "burst": 100, "days": 3}
    with hub.client(alice.token) as client:
        assert code_of(lambda: client.request("PUT", rate, json=asked)) == "denied"
    with hub.client(root.token) as client:
        client.request("PUT", rate, json=asked)
        client.request("DELETE", rate)
        unknown = rate.replace("publish", "sleep")
        assert code_of(lambda: client.request("PUT", unknown, json=asked), HubNotFoundError) == "not-found"
        told = client.get("/api/v1/audit", AuditPage, owner=alice.slug, action="rate.set").events
    assert [event.data["rate"] for event in told] == [asked, None]


def test_a_role_is_one_of_three():
    """The wire record refuses another."""
    with pytest.raises(ValueError, match="reader"):
        NewRole(role="boss")
