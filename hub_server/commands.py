"""The server's own commands. `hub serve`, `hub admin` and the others of the SDK start these in this Python.

Every setting is a flag of every command that needs it. stdout is for data (a token, a report), stderr for talk; an
error is what, why and what to do, once. Exit codes are those of all commands (docs/reference/errors.md).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter

from hub_server.problems import DOCS, Problem
from hub_server.settings import Settings, load_settings
from verifiers.errors import ConfigError, Error, ExitCode, HubRefusedError

if TYPE_CHECKING:
    from hub_server.context import Context

Json = Annotated[bool, Parameter(help="One JSON object on stdout.", negative="")]

ERRORS_PAGE = "docs/reference/errors.md#classes"

STORE = ("data", "database_url", "storage")
"""The settings that say where a hub is: what commands beside a running server need."""


def with_settings(names: Sequence[str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command a flag for each of these settings, and `--config`; its `**given` takes them."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(function, eval_str=True)
        kept = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        config = Parameter(help="TOML file of settings [HUB_CONFIG].")
        flags = [_flag("config", Annotated[Path | None, config])]
        for name in names:
            field = Settings.model_fields[name]
            flags.append(_flag(name, Annotated[field.annotation | None, Parameter(help=field.description)]))  # type: ignore[operator]

        def command(*arguments: Any, **options: Any) -> Any:
            return function(*arguments, **options)

        command.__doc__, command.__name__ = function.__doc__, function.__name__
        command.__signature__ = inspect.Signature(kept + flags)  # type: ignore[attr-defined]
        return command

    return wrap


def _flag(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


app = App(
    name="hub", help="Serve a hub and look after it.", help_format="plaintext", version_flags=[],
    suppress_keyboard_interrupt=False,
)  # fmt: skip
admin = App(name="admin", help="Owners, tokens and the SDK's wheel, on the machine of the hub.")
app.command(admin)
token = App(name="token", help="Tokens of any owner.")
admin.command(token)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point of `python -m hub_server`."""
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def run(arguments: list[str]) -> int:
    """Run the command and return its exit code."""
    try:
        result = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        return int(result) if isinstance(result, int) else ExitCode.OK
    except CycloptsError as error:
        hint = f"hub {' '.join(arguments[:1])} --help lists the flags."
        return _fail(ConfigError(str(error).strip(), hint=hint), arguments)
    except Error as error:
        return _fail(error, arguments)
    except Problem as problem:
        return _fail(HubRefusedError(problem.message, hint=problem.hint), arguments, problem.code, DOCS)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return ExitCode.INTERRUPTED


def _fail(error: Error, arguments: list[str], code: str | None = None, docs: str = ERRORS_PAGE) -> int:
    """Tell it as the SDK's commands do, with --json on stdout as well."""
    if "--json" in arguments:
        code = code or getattr(error, "code", None) or type(error).__name__.removesuffix("Error").lower()
        told = {"code": code, "message": str(error), "hint": error.hint, "docs": docs}
        _print_json({"event": "error", "error": told})
    sys.stderr.write(f"error: {error}\nhint: {error.hint}\n")
    return error.exit_code


# --- the server -------------------------------------------------------------------------------------------------


@app.command
@with_settings(tuple(Settings.model_fields))
def serve(
    *,
    bootstrap_owner: Annotated[str | None, Parameter(help="Make this owner first; its token goes to stdout.")] = None,
    **given: Any,
) -> int:
    """Serve a hub."""
    from hub_server.maintenance.serve import serve as run_server

    return run_server(load_settings(**given), bootstrap_owner)


# --- owners -----------------------------------------------------------------------------------------------------


@admin.command(name="create-owner")
@with_settings(STORE)
def create_owner(
    name: str,
    /,
    *,
    kind: Literal["user", "organisation"] = "user",
    site_admin: Annotated[bool, Parameter(help="An admin of every owner and of the hub.", negative="")] = False,
    **given: Any,
) -> None:
    """Make an owner and print its token, once. An owner that is there gets none."""
    from hub_server.maintenance.first_token import bootstrap

    if (token := bootstrap(load_settings(**given), name, kind, site_admin=site_admin)) is not None:
        sys.stdout.write(token + "\n")


@admin.command(name="list-owners")
@with_settings(STORE)
def list_owners(*, json: Json = False, **given: Any) -> None:
    """Every owner with its kind, its projects and its tokens that work."""
    from hub_server.maintenance.owners import owners

    with _hub(given) as context:
        found = owners(context)
    if json:
        _print_json({"owners": found})
    for one in [] if json else found:
        admin_of_all = ", admin of the hub" if one["site_admin"] else ""
        counts = f"{one['projects']} projects, {one['tokens']} tokens"
        sys.stdout.write(f"{one['owner']}  {one['kind']}, {counts}{admin_of_all}\n")


@admin.command(name="add-sdk")
@with_settings(STORE)
def add_sdk(wheel: Path, /, **given: Any) -> None:
    """Give the hub the wheel of `verifiers`, so that environments find it here. Again it changes nothing."""
    from hub_server.maintenance.sdk import add

    with _hub(given) as context:
        sys.stderr.write(add(context, wheel) + "\n")


# --- tokens -----------------------------------------------------------------------------------------------------


@token.command(name="create")
@with_settings(STORE)
def create_token(
    owner: str,
    /,
    *,
    name: Annotated[str, Parameter(help="What it is for.")] = "made by hub admin",
    scope: Annotated[list[str] | None, Parameter(help="May be repeated; every scope without it.")] = None,
    pattern: Annotated[list[str] | None, Parameter(help="As in alice/my-*; every project without it.")] = None,
    days: Annotated[int, Parameter(help="Days that it works; 0 is for ever.")] = 90,
    **given: Any,
) -> None:
    """Make another token of an owner and print it, once."""
    from hub_server.maintenance.owners import new_token

    with _hub(given) as context:
        sys.stdout.write(new_token(context, owner, name, scope or (), pattern or (), days or None) + "\n")


@token.command(name="list")
@with_settings(STORE)
def list_tokens(owner: str, /, *, json: Json = False, **given: Any) -> None:
    """The tokens of an owner, without their secrets."""
    from hub_server.maintenance.owners import tokens

    with _hub(given) as context:
        found = tokens(context, owner)
    if json:
        _print_json({"tokens": found})
    for one in [] if json else found:
        used = f"used {one['last_used_at'] or 'never'}"
        sys.stdout.write("  ".join([one["id"], one["state"], ",".join(one["scopes"]), used, one["name"]]) + "\n")


@token.command(name="revoke")
@with_settings(STORE)
def revoke_token(token_id: str, /, **given: Any) -> None:
    """Revoke a token by its id, and those that were made with it, at once."""
    from hub_server.maintenance.owners import revoke

    with _hub(given) as context:
        sys.stderr.write(f"revoked {', '.join(revoke(context, token_id))}\n")


# --- upkeep -----------------------------------------------------------------------------------------------------


@app.command
@with_settings(STORE)
def fsck(
    *,
    quick: Annotated[bool, Parameter(help="Compare sizes only, hash nothing.", negative="")] = False,
    json: Json = False,
    **given: Any,
) -> int:
    """Compare rows, blobs, sidecars and serials. Changes nothing; exits 1 if something is not as it should be."""
    from hub_server.maintenance.fsck import fsck as check

    with _hub(given, write=False) as context:
        report = check(context, hash_blobs=not quick)
    if json:
        _print_json(report.to_dict())
    for finding in [] if json else report.findings:
        sys.stdout.write(f"{finding.code}: {finding.what}: {finding.message}\n")
    seen = f"{report.projects} projects, {report.files} files, {report.bytes:,} bytes"
    sys.stderr.write(f"{len(report.findings)} findings in {seen}\n")
    return ExitCode.FAILED if report.findings else ExitCode.OK


@app.command
@with_settings(STORE)
def sweep(
    *,
    grace_hours: Annotated[float, Parameter(help="Leave what is younger.")] = 48,
    dry_run: Annotated[bool, Parameter(help="Only say what would go.", negative="")] = False,
    json: Json = False,
    **given: Any,
) -> None:
    """Remove old blobs that nothing names, left-over uploads, and sessions whose time is over."""
    from hub_server.maintenance.sweep import sweep as remove

    with _hub(given) as context:
        swept = remove(context, grace_hours, dry_run=dry_run)
    if json:
        _print_json(swept.to_dict())
    verb = "would remove" if dry_run else "removed"
    blobs = f"{swept.blobs} blobs ({swept.bytes:,} bytes)"
    sys.stderr.write(f"{verb} {blobs}, {swept.uploads} uploads, {swept.sessions} sessions\n")


@app.command(name="export")
@with_settings(STORE)
def export_hub(target: Path, /, *, json: Json = False, **given: Any) -> None:
    """Write the whole hub into a new folder, or a file that ends in .tar. It may run beside a server."""
    from hub_server.maintenance.export import export

    with _hub(given, write=False) as context:
        manifest = export(context, target, _say)
    if json:
        _print_json(manifest)
    _say(f"exported serial {manifest['serial']} to {target}")


@app.command(name="import")
@with_settings(STORE)
def import_hub(source: Path, /, *, json: Json = False, **given: Any) -> None:
    """Read an export into an empty hub, on any database and storage. An interrupted import may be begun again."""
    from hub_server.maintenance.load import load

    with _hub(given) as context:
        manifest = load(context, source, _say)
    if json:
        _print_json(manifest)
    _say(f"imported serial {manifest['serial']} from {source}")


def _hub(given: dict[str, Any], *, write: bool = True) -> AbstractContextManager[Context]:
    from hub_server.maintenance.prepare import opened

    return opened(load_settings(**given), write=write)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def _print_json(value: Any) -> None:
    sys.stdout.write(dumps(value, default=str) + "\n")
