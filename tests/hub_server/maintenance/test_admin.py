"""`hub admin`: owners, tokens and the SDK's wheel, on the machine of the hub."""

import json

import httpx
import pytest

from tests.support.archives import write_wheel
from tests.support.hub import run_server, running_hub
from tests.support.uploads import post_file


@pytest.fixture
def admin(tmp_path):
    """`hub admin …` on a hub of its own."""

    def run(*arguments):
        return run_server("admin", *arguments, settings={"HUB_DATA": str(tmp_path / "hub")})

    return run


@pytest.fixture
def sdk_wheel(tmp_path):
    """A wheel that is called as the SDK's is; it has no load_environment of its own."""
    return write_wheel(tmp_path, name="verifiers", version="1.0.0", module="VERSION = '1.0.0'\n")


def test_owners_are_listed(admin):
    """With their kind and what they have, as text and as JSON."""
    assert admin("create-owner", "alice").returncode == 0
    assert admin("create-owner", "acme", "--kind", "organisation").returncode == 0
    assert admin("list-owners").stdout.splitlines() == [
        "acme  organisation, 0 projects, 1 tokens", "alice  user, 0 projects, 1 tokens",
    ]  # fmt: skip
    found = json.loads(admin("list-owners", "--json").stdout)["owners"]
    assert [(one["owner"], one["kind"], one["tokens"]) for one in found] == [
        ("acme", "organisation", 1), ("alice", "user", 1),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["simple", "Upper", "-x", "a/b", "ünï"])
def test_an_owner_that_can_not_be_called_so(admin, name):
    """Route words and what is no slug are refused, with the reason, and no token is printed."""
    done = admin("create-owner", "--", name)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")


def test_tokens_are_made_listed_and_revoked(admin):
    """A new token is printed alone; the list shows no secret; a revoked one is said to be."""
    admin("create-owner", "alice")
    made = admin("token", "create", "alice", "--scope", "read", "--days", "1", "--name", "ci")
    token = made.stdout.strip()
    assert token.startswith("envhub_")
    told = json.loads(admin("token", "list", "alice", "--json").stdout)
    (mine,) = [one for one in told["tokens"] if one["name"] == "ci"]
    assert (mine["state"], mine["scopes"], mine["expires_at"] is None) == ("works", ["read"], False)
    listed = admin("token", "list", "alice").stdout
    assert mine["id"] in listed
    assert token not in listed
    assert f"revoked {mine['id']}" in admin("token", "revoke", mine["id"]).stderr
    assert f"{mine['id']}  revoked" in admin("token", "list", "alice").stdout


def test_what_there_is_not(admin):
    """An unknown owner, token or scope is named."""
    admin("create-owner", "alice")
    assert "no owner bob" in admin("token", "create", "bob").stderr
    assert "no token xyz" in admin("token", "revoke", "xyz").stderr
    wrong = admin("token", "create", "alice", "--scope", "reed")
    assert (wrong.returncode, "reed" in wrong.stderr) == (2, True)


def test_the_sdk_is_served_beside_every_package(admin, sdk_wheel, tmp_path):
    """After `add-sdk` a package's index has `verifiers`, the whole-hub index too, and the start warns no more."""
    settings = tmp_path / "hub"
    with running_hub(settings) as hub:
        assert any("no wheel of verifiers" in line for line in hub.log)
        assert "sdk/verifiers@1.0.0 is there now" in admin("add-sdk", sdk_wheel).stderr
        assert "was there already" in admin("add-sdk", sdk_wheel).stderr
        owner = hub.owner()
        assert post_file(hub, owner.token, write_wheel(tmp_path)).is_success
        for index in (f"/{owner.slug}/demo-env/simple", "/simple"):
            page = httpx.get(f"{hub.url}{index}/verifiers/")
            assert (page.status_code, sdk_wheel.name in page.text) == (200, True)
    with running_hub(settings) as hub:
        assert not any("no wheel of verifiers" in line for line in hub.log)


def test_only_the_sdk_comes_in_that_way(admin, tmp_path):
    """Another package, a damaged wheel, or no file is refused."""
    other = admin("add-sdk", write_wheel(tmp_path))
    assert (other.returncode, "not of verifiers" in other.stderr) == (2, True)
    broken = tmp_path / "verifiers-1.0.0-py3-none-any.whl"
    broken.write_bytes(b"no zip")
    refused = admin("add-sdk", broken)
    assert refused.returncode != 0
    assert "Traceback" not in refused.stderr
    assert admin("add-sdk", tmp_path / "none.whl").returncode == 2


def test_an_error_is_one_object_with_json(admin):
    """A script reads what was wrong from stdout, in the shape that every command has."""
    done = admin("token", "list", "nobody", "--json")
    told = json.loads(done.stdout)
    assert done.returncode != 0
    assert (told["event"], told["error"]["code"]) == ("error", "not-found")
    assert set(told["error"]) == {"code", "message", "hint", "docs"}
