"""The hub as a process: it starts, knows whom a token belongs to, and refuses in one shape."""

import pytest

from verifiers.errors import HubDeniedError
from verifiers.hub.schema import Whoami


def test_a_token_says_whom_it_belongs_to(hub):
    """The token that `create-owner` prints works at once."""
    owner = hub.owner()
    with hub.client(owner.token) as client:
        assert client.get("/api/v1/whoami", Whoami).owner == owner.slug


def test_a_second_bootstrap_prints_no_token(hub):
    """Making an owner that is there prints nothing, and is no failure."""
    owner = hub.owner()
    again = hub.admin("create-owner", owner.slug)
    assert (again.returncode, again.stdout) == (0, "")


def test_no_token_and_a_wrong_one_are_told_apart(hub):
    """401 without a token, 403 with one that is none of ours."""
    with hub.client() as client, pytest.raises(HubDeniedError) as refused:
        client.get("/api/v1/whoami", Whoami)
    assert refused.value.code == "not-logged-in"
    with hub.client("envhub_wrong") as client, pytest.raises(HubDeniedError) as refused:
        client.get("/api/v1/whoami", Whoami)
    assert refused.value.code == "bad-token"


def test_an_unknown_route_answers_in_the_one_shape(hub):
    """Every error is an object with code, message, hint and docs."""
    with hub.client() as client:
        answer = client.http.get("/api/v1/no/such/route/here/at/all")
    assert answer.status_code == 404
    assert set(answer.json()) == {"code", "message", "hint", "docs"}
