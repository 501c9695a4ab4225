"""What no client of ours sends: each is refused in the one shape, never with a 5xx, and nothing hangs."""

from __future__ import annotations

import base64
import json

import httpx
import pytest

BEFORE_TIME, AFTER_TIME, HALF, HUGE = (
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "\ud800",
    10**400,
)
DEEP = b"[" * 100_000


def cursor(value) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def is_refusal(answer: httpx.Response) -> bool:
    """4xx with code, message, hint and docs."""
    return 400 <= answer.status_code < 500 and {"code", "message", "hint", "docs"} == set(answer.json())


@pytest.fixture
def root(hub):
    with httpx.Client(
        base_url=hub.url, headers={"Authorization": f"Bearer {hub.root.token}"}, timeout=60
    ) as http:
        yield http


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/v1/resolve", {"requirements": ["a/b"], "before": BEFORE_TIME}),
        ("POST", "/api/v1/resolve", {"requirements": ["a/b"], "before": AFTER_TIME}),
        ("POST", "/api/v1/resolve", {"requirements": ["a/b"], "serial": 2**64}),
        ("POST", "/api/v1/resolve", {"requirements": ["a/b"], "serial": HUGE}),
        ("POST", "/api/v1/resolve", {"requirements": [HALF]}),
        ("POST", "/api/v1/resolve", {"requirements": ["a/b\0"]}),
        ("POST", "/api/v1/tokens", {"name": "n", "scopes": ["read"], "owner": HALF}),
        ("POST", "/api/v1/tokens", {"name": "n", "scopes": ["read"], "owner": "\0"}),
        ("POST", "/api/v1/tokens/leaked", {"tokens": [HALF]}),
        ("POST", "/api/v1/owners", {"owner": "some-new-one", "kind": "organisation", "admin": HALF}),
        ("PUT", "/api/v1/owners/nobody/members/nobody", {"role": HALF}),
        ("POST", "/api/v1/nobody/e/transfer-name", {"to": HALF}),
    ],
)
def test_a_value_that_nothing_can_hold_is_refused(root, method, path, body):
    """Half a surrogate pair, NUL, moments outside of the calendar, integers of any length."""
    answer = root.request(
        method, path, content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    assert is_refusal(answer) or path.endswith("leaked"), answer.text
    assert answer.status_code < 500


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff\xfe", DEEP, b'{"requirements":' + DEEP, b'{"serial":' + b"9" * 9999, b"null"]
)
def test_a_body_that_is_no_such_json_is_refused(root, body):
    """Also one that is nested too deeply to be read."""
    assert is_refusal(
        root.post("/api/v1/resolve", content=body, headers={"Content-Type": "application/json"})
    )


@pytest.mark.parametrize(
    "after",
    [
        ["a", [0, HALF, 1]],
        [HALF, [0, "a", 1]],
        ["a", [2**70, "a", 1]],
        ["a", [0, "a", 2**70]],
        ["a", [0, "\0", 1]],
        ["\0", [0, "a", 1]],
        ["a", [True, "a", True]],
        [],
        1,
    ],
)
def test_a_cursor_that_was_made_up_is_refused_or_finds_nothing_wrong(root, after):
    """A page or a refusal, also on the page for people."""
    for path in ("/api/v1/search", "/search"):
        assert root.get(path, params={"q": "a", "after": cursor(after)}).status_code in (200, 400)
