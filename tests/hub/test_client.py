"""What a command says where no hub is: another server, a proxy, an old address."""

import httpx
import pytest

from hub_server.commands import app as server
from verifiers.cli.eval import app as evaluate
from verifiers.cli.hub import main as command
from verifiers.cli.init import app as init
from verifiers.cli.install import app as install
from verifiers.cli.output import error_object
from verifiers.cli.validate import app as validate
from verifiers.errors import (
    ConfigError,
    ExitCode,
    HubDeniedError,
    HubError,
    HubNotFoundError,
    HubUnavailableError,
)
from verifiers.hub.client import HubClient, find_hub_url, hub_url, refusal

URL = "https://hub.example"


def answer(status, **options):
    return httpx.Response(status, request=httpx.Request("GET", f"{URL}/api/v1/whoami"), **options)


@pytest.mark.parametrize(
    ("response", "kind", "code", "hint"),
    [
        (answer(404, text="<h1>nginx</h1>"), HubError, "http-404", "Check the hub's URL"),
        (answer(403, json={"detail": "no"}), HubError, "http-403", "Check the hub's URL"),
        (answer(301, headers={"Location": "https://new.example/"}), HubError, "http-301", "--hub-url"),
        (answer(502, text="Bad Gateway"), HubUnavailableError, "http-502", "Try again later"),
    ],
)
def test_an_answer_of_no_hub_is_told_as_such(response, kind, code, hint):
    """The status of another server is never taken for a hub's refusal: no login is asked for, no project missed."""
    error = refusal(response, URL)
    assert type(error) is kind and error.code == code
    assert "not as a hub does" in str(error) and hint in error.hint


def test_an_answer_without_a_body_keeps_its_meaning():
    """HEAD has no body: its status is all that can be gone by."""
    assert type(refusal(httpx.Response(404, request=httpx.Request("HEAD", URL)), URL)) is HubNotFoundError


def test_a_redirect_says_where_to():
    """A hub that has moved, or http where https was meant, is one step to mend."""
    assert "https://new.example/" in str(refusal(answer(301, headers={"Location": "https://new.example/"}), URL))


def test_a_refusal_of_a_hub_leads_to_its_page():
    """Code and page are the hub's own, down to the command's machine output."""
    page = "docs/reference/hub-api.md#errors"
    error = refusal(answer(403, json={"code": "denied", "message": "m", "hint": "h", "docs": page}), URL)
    assert type(error) is HubDeniedError
    assert error_object(error) == {"code": "denied", "message": "m", "hint": "h", "docs": page}


def test_a_path_that_a_hub_does_not_have_is_named(sqlite_hub):
    """A URL with too much behind it is an error of the URL, in a sentence."""
    path = "/nope/api/v1/whoami"
    with HubClient(sqlite_hub.url, "") as client, pytest.raises(HubNotFoundError, match=path) as told:
        client.request("GET", path)
    assert "Check the hub's URL" in told.value.hint


def test_no_project_decides_where_the_token_goes(tmp_path, monkeypatch):
    """A checkout of somebody else's can not name the hub that a user's token is sent to."""
    (tmp_path / "pyproject.toml").write_text('[tool.verifiers.hub]\nhub-url = "https://elsewhere.example.org"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VF_CONFIG", str(tmp_path / "none.toml"))
    assert find_hub_url() is None


def test_an_interrupt_is_no_fault_of_the_command(monkeypatch, capsys):
    """Ctrl-C ends a command with 130 and one word."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(HubClient, "request", interrupted)
    assert command.run(["search", "--hub-url", URL]) == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("app", [evaluate, init, install, validate, command.app, server], ids=lambda app: app.name[0])
def test_no_command_hides_an_interrupt(app):
    """An interrupt reaches what answers for it, and is not made an exit on the way."""

    @app.command(name="interrupt-me")
    def interrupt_me():
        raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            app(["interrupt-me"], exit_on_error=False, print_error=False, result_action="return_value")
    finally:
        del app["interrupt-me"]


def test_a_url_without_its_scheme_is_nearly_right():
    """The hint is the address that was meant."""
    with pytest.raises(ConfigError) as told:
        hub_url("hub.example:8080")
    assert "https://hub.example:8080" in told.value.hint
