"""The description of the HTTP API (OpenAPI) is what the hub does: whatever fits it is answered, never with a 5xx."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from tests.support.archives import make_wheel, wheel_name
from tests.support.uploads import post_upload

EXAMPLES = 15


def send(case, place, token):
    """One request of the case, to a place, as somebody or nobody."""
    case.path_parameters = place
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = case.call(headers=headers, timeout=60)
    assert answer.status_code < 500, f"{case.method} {case.path} {place} {case.body!r}: {answer.text}"
    if answer.status_code >= 400 and "json" in answer.headers.get("content-type", ""):
        assert {"code", "message", "hint", "docs"} <= set(answer.json())


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
def test_no_request_makes_the_hub_fail(hub):
    """Requests of every route, with a token and without, on names that are there and on others: below 500."""
    owner = hub.owner()
    assert post_upload(hub, owner.token, wheel_name(), make_wheel()).status_code == 200
    there = {"owner": owner.slug, "name": "demo-env", "version": "0.1.0"}
    api = schemathesis.openapi.from_url(f"{hub.url}/openapi.json")
    operations = [found.ok() for found in api.get_all_operations()]
    assert len(operations) > 10

    for operation in operations:

        @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def ask(case):
            place = dict(case.path_parameters or {})
            known = {name: there.get(name, value) for name, value in place.items()}
            for somewhere in (place, known) if known != place else (place,):
                for token in (None, owner.token):
                    send(case, somewhere, token)

        ask()
