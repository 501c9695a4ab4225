"""The log: one line a request, and never a secret."""

import json
import time

import httpx
import pytest

from hub_server.operations.logs import masked
from tests.support.archives import write_wheel
from tests.support.hub import PATIENCE, running_hub
from tests.support.uploads import post_file


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with running_hub(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


def line_of(hub, answer):
    """The line of a request, which is written after its answer."""
    request_id, end = answer.headers["X-Request-ID"], time.monotonic() + PATIENCE
    while time.monotonic() < end:
        for line in hub.log:
            if request_id in line:
                return json.loads(line)
        time.sleep(0.02)
    raise AssertionError(f"no line of {request_id}")


def test_a_line_has_what_an_operator_asks(hub):
    """Method, route, status, time, bytes, who, and the id that the client was given."""
    owner = hub.owner()
    answer = httpx.get(f"{hub.url}/api/v1/whoami", headers={"Authorization": f"Bearer {owner.token}"})
    line = line_of(hub, answer)
    assert (line["method"], line["route"], line["status"]) == ("GET", "/api/v1/whoami", 200)
    assert line["principal"] == owner.slug
    assert line["token"] == answer.json()["token_id"]
    assert line["sent"] == len(answer.content)
    assert line["ms"] > 0


def test_the_installers_routes_have_names_too(hub):
    """An index is logged by the form of its address, so that numbers do not grow with the projects."""
    line = line_of(hub, httpx.get(f"{hub.url}/alice/simple/demo-env/"))
    assert (line["route"], line["path"]) == ("/{owner}/simple/{name}/", "/alice/simple/demo-env/")


def test_a_request_keeps_its_id(hub):
    """An id that a proxy gave goes on; one with strange characters does not."""
    given = httpx.get(f"{hub.url}/healthz", headers={"X-Request-ID": "from-the-proxy.1"})
    assert given.headers["X-Request-ID"] == "from-the-proxy.1"
    strange = httpx.get(f"{hub.url}/healthz", headers={"X-Request-ID": 'a"b c'})
    assert strange.headers["X-Request-ID"] != 'a"b c'


def test_no_secret_is_logged(hub):
    """Neither a token in a header, in the path or in the query, nor a password in a query."""
    owner = hub.owner()
    headers = {"Authorization": f"Bearer {owner.token}"}
    for path in ("/api/v1/whoami?key=secret-value", f"/{owner.token}/simple/", f"/nothing?token={owner.token}"):
        line_of(hub, httpx.get(f"{hub.url}{path}", headers=headers))
    text = "".join(hub.log)
    assert owner.token not in text
    assert owner.token[7:] not in text
    assert "secret-value" not in text


def test_a_refusal_names_its_rule(hub, tmp_path):
    """The line of a refused upload has the code of the rule."""
    owner = hub.owner()
    wheel = write_wheel(tmp_path, name="demo-env")
    bad = wheel.with_name("demo_env-9.9.9-py3-none-any.whl")
    bad.write_bytes(wheel.read_bytes())
    answer = post_file(hub, owner.token, bad)
    assert answer.status_code == 400
    assert f"[{line_of(hub, answer)['code']}]" in answer.text


def test_masking():
    """Tokens and passwords of URLs are replaced wherever they stand."""
    assert masked("GET /envhub_abcDEF123/x") == "GET /envhub_…/x"
    assert masked("postgresql://me:secret@db/hub") == "postgresql://me:…@db/hub"
    assert masked("nothing here") == "nothing here"


def test_text_on_demand(tmp_path):
    """`log_format=text` is for people; `log_level=error` is silent about requests."""
    with running_hub(tmp_path, log_format="text") as hub:
        httpx.get(f"{hub.url}/healthz")
        hub.stop()
        assert any("route=/healthz" in line and not line.startswith("{") for line in hub.log)


def test_a_proxy_is_believed_only_if_it_is_named(hub, tmp_path):
    """The client's address comes from X-Forwarded-For of a proxy that is trusted, and of no other."""
    headers = {"X-Forwarded-For": "203.0.113.9"}
    assert line_of(hub, httpx.get(f"{hub.url}/healthz", headers=headers))["client"] == "203.0.113.9"
    with running_hub(tmp_path, forwarded_allow_ips="10.0.0.1") as other:
        assert line_of(other, httpx.get(f"{other.url}/healthz", headers=headers))["client"] == "127.0.0.1"
