"""The server's own commands. `hub serve` and `hub admin` of the SDK start these in this Python.

stdout is for data: `create-owner` prints the token, alone, once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from hub_server.settings import Settings, load_settings

app = App(name="hub_server", help="Serve a hub and look after it.", help_format="plaintext", version_flags=[])
admin = App(name="admin", help="Owners, tokens and the SDK's wheel, on the machine of the hub.")
app.command(admin)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point of `python -m hub_server`."""
    app(list(sys.argv[1:] if arguments is None else arguments))


@app.command
def serve(
    *,
    data: Annotated[Path | None, Parameter(help="Folder of the database and the blobs.")] = None,
    host: Annotated[str | None, Parameter(help="Address to listen on.")] = None,
    port: Annotated[int | None, Parameter(help="Port to listen on; 0 takes a free one.")] = None,
    database_url: Annotated[str | None, Parameter(help="As in postgresql+psycopg://user@host/hub.")] = None,
    storage: Annotated[str | None, Parameter(help="As in s3://bucket/prefix.")] = None,
    workers: Annotated[int | None, Parameter(help="Server processes.")] = None,
    bootstrap_owner: Annotated[str | None, Parameter(help="Make this owner first; its token goes to stdout.")] = None,
) -> None:
    """Serve a hub."""
    from hub_server.maintenance.serve import serve as run

    given = {"data": data, "host": host, "port": port, "database_url": database_url, "storage": storage}
    run(load_settings(workers=workers, **given), bootstrap_owner)


@admin.command(name="create-owner")
def create_owner(
    name: str,
    /,
    *,
    kind: str = "user",
    data: Path | None = None,
    database_url: str | None = None,
) -> None:
    """Make an owner and print its token, once. An owner that is there gets none."""
    from hub_server.maintenance.first_token import bootstrap

    settings: Settings = load_settings(data=data, database_url=database_url)
    if (token := bootstrap(settings, name, kind)) is not None:
        sys.stdout.write(token + "\n")
