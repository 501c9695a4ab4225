"""HTTP to a hub.

    with HubClient(hub_url(None)) as hub:
        hub.get("/api/v1/whoami", Whoami)

Every refusal becomes a typed error with the hub's own sentence: `HubDeniedError` (exit 3), `HubNotFoundError`,
`HubRefusedError` (exit 1), `HubUnavailableError` (exit 4).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlsplit

from verifiers.errors import (
    ConfigError,
    HubDeniedError,
    HubError,
    HubNotFoundError,
    HubRefusedError,
    HubUnavailableError,
)
from verifiers.hub.credentials import token_for
from verifiers.settings import read_toml, table_at, user_file

if TYPE_CHECKING:  # both are loaded with the first client: who only wants to know the hub's URL does not wait
    import httpx
    from pydantic import BaseModel

Model = TypeVar("Model", bound="BaseModel")

TIMEOUT, CONNECT_TIMEOUT = 30.0, 10.0
"""Seconds."""


def find_hub_url(given: str | None = None) -> str | None:
    """The hub: `--hub-url`, `VF_HUB_URL`, or `url` below `[hub]` in the user's own file.

    No file of a project names it: a checkout of somebody else's could otherwise say where the user's token goes.
    """
    if given or (given := os.environ.get("VF_HUB_URL")):
        return given.rstrip("/")
    user = user_file()
    url = table_at(read_toml(user), "hub", where=str(user)).get("url") if user.is_file() else None
    return str(url).rstrip("/") if url else None


def hub_url(given: str | None = None) -> str:
    """The same, where one is needed. ConfigError if nothing names one."""
    url = find_hub_url(given)
    if url is None:
        raise ConfigError("no hub was named", hint="Name it: --hub-url URL, or export VF_HUB_URL=URL")
    if not url.startswith(("http://", "https://")):
        host = url.rpartition("://")[2]
        raise ConfigError(f"{url} is no URL of a hub", hint=f"Is it https://{host}, or http://{host} on this machine?")
    return url


class HubClient:
    """A connection to one hub, with the user's token for it if there is one."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url.rstrip("/")
        self.token = token if token is not None else token_for(url)
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        import httpx

        limits = httpx.Timeout(TIMEOUT, connect=CONNECT_TIMEOUT)
        # The user's proxies and certificates, but not netrc, which would put another login over the token.
        self.http = httpx.Client(base_url=self.url, headers=headers, timeout=limits, trust_env=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.http.close()

    def get(self, path: str, model: type[Model], **params: Any) -> Model:
        """GET and read the answer."""
        known = {name: value for name, value in params.items() if value is not None}
        return self.read(self.request("GET", path, params=known), model)

    def post(self, path: str, body: BaseModel | None, model: type[Model]) -> Model:
        """POST a record and read the answer."""
        return self.read(self.request("POST", path, json=body.model_dump(mode="json") if body else None), model)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request. Raises one of the hub errors for anything but 2xx."""
        response = self.send(method, path, **options)
        if response.is_success:
            return response
        raise refusal(response, self.url)

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The same, where a refusal is read by the caller: whatever the hub answers. HubUnavailableError if nothing."""
        import httpx

        try:
            return self.http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise HubUnavailableError(f"the hub {self.url} does not answer: {error}", cause=error) from error

    @contextmanager
    def stream(self, url: str) -> Iterator[httpx.Response]:
        """GET a file, its bytes as they are. The token goes to this hub's own origin only, wherever the file lies."""
        import httpx

        request = self.http.build_request("GET", url, headers={"Accept-Encoding": "identity"})
        if urlsplit(str(request.url))[:2] != urlsplit(self.url)[:2]:
            request.headers.pop("Authorization", None)
        try:
            response = self.http.send(request, stream=True, follow_redirects=True)
        except httpx.HTTPError as error:
            raise HubUnavailableError(f"the hub {self.url} does not answer: {error}", cause=error) from error
        with closing(response):
            if not response.is_success:
                response.read()
                raise refusal(response, self.url)
            yield response

    def read(self, response: httpx.Response, model: type[Model]) -> Model:
        """The answer as a record."""
        from pydantic import ValidationError

        try:
            return model.model_validate_json(response.content)
        except ValidationError as error:
            raise HubError(
                f"{response.request.url} did not answer as a hub does", hint="Check the hub's URL.", cause=error
            ) from error


def refusal(response: httpx.Response, url: str) -> HubError:
    """The error that a response stands for."""
    status = response.status_code
    try:
        body = response.json()
    except ValueError:
        body = {}
    if not isinstance(body, dict):
        body = {}
    if not body.get("code") and response.request.method != "HEAD":
        return _no_hub(response, url)
    message = str(body.get("message") or f"{url} answered {status} {response.reason_phrase}")
    kind = {401: HubDeniedError, 403: HubDeniedError, 404: HubNotFoundError}.get(status, HubRefusedError)
    if status >= 500 or status == 429:
        kind = HubUnavailableError
    error = kind(message, hint=body.get("hint"))
    error.code = str(body.get("code") or f"http-{status}")
    error.docs = str(docs) if (docs := body.get("docs")) else None
    return error


def _no_hub(response: httpx.Response, url: str) -> HubError:
    """The error for an answer that no hub gives: another server's, or a proxy's."""
    status = response.status_code
    told = f"{url} answered {status} {response.reason_phrase}, and not as a hub does"
    if response.is_redirect and (target := response.headers.get("location")):
        error = HubError(f"{told}: it sends to {target}", hint="If the hub has moved, name its new URL: --hub-url URL")
    elif status >= 500 or status == 429:
        error = HubUnavailableError(told, hint="Try again later; a proxy may stand before a hub that is down.")
    else:
        error = HubError(told, hint="Check the hub's URL (--hub-url, VF_HUB_URL).")
    error.code = f"http-{status}"
    return error
