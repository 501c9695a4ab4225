"""What the sub-commands of `hub` share: the hub's URL, machine output, tracebacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from verifiers.cli.output import Output

if TYPE_CHECKING:
    from verifiers.hub.client import HubClient


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class HubFlags:
    """Flags of every sub-command that asks a hub."""

    hub_url: Annotated[str | None, Parameter(help="URL of the hub [VF_HUB_URL, or the settings].")] = None
    json: Annotated[bool, Parameter(help="One JSON object on stdout.", negative="")] = False
    verbose: Annotated[bool, Parameter(alias="-v", help="Show tracebacks.", negative="")] = False

    def output(self) -> Output:
        """Where the command prints."""
        return Output(json=self.json, verbose=self.verbose)

    def client(self) -> HubClient:
        """A connection to the hub, with the user's token for it."""
        from verifiers.hub.client import HubClient, hub_url

        return HubClient(hub_url(self.hub_url))

    def client_for(self, url: str) -> HubClient:
        """A connection to a hub that a file names. `VF_HUB_TOKEN` is for the user's own hub: no file may send it on."""
        from verifiers.hub.client import HubClient

        return HubClient(url, self.token_for(url) or "")

    def token_for(self, url: str) -> str | None:
        """The token for a hub that a file names."""
        from verifiers.hub.client import find_hub_url
        from verifiers.hub.credentials import kept_token, token_for

        return token_for(url) if url == find_hub_url(self.hub_url) else kept_token(url)


NO_FLAGS = HubFlags()
"""Flags of a call without any; cyclopts wants a default instance."""
