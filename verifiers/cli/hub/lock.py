"""`hub lock` and `hub verify`: pin everything that an environment needs, and look whether it is still that."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from verifiers.cli.hub.flags import NO_FLAGS, HubFlags
from verifiers.errors import ConfigError, ExitCode, StoreError

NAMES = "The file is called pylock.toml or pylock.NAME.toml (PEP 751)."


def lock(
    *ids: Annotated[str, Parameter(help="OWNER/NAME[@VERSION], several of them.")],
    output_file: Annotated[
        Path, Parameter(name=["--output-file", "-o"], help="Where to write the lock; pylock.toml or pylock.NAME.toml.")
    ] = Path("pylock.toml"),
    python_version: Annotated[str | None, Parameter(help="For another Python, as in 3.12 [this one's].")] = None,
    python: Annotated[str | None, Parameter(help="Another interpreter or virtual environment [this one].")] = None,
    before: Annotated[
        dt.datetime | None, Parameter(help="Only what was published before this day or moment, here and elsewhere.")
    ] = None,
    serial: Annotated[int | None, Parameter(help="The hub as of this serial.")] = None,
    prereleases: Annotated[bool, Parameter(help="Let pre-releases be the latest.", negative="")] = False,
    yes: Annotated[
        bool, Parameter(help="Agree in advance to relax a pin on another version of verifiers.", negative="")
    ] = False,
    flags: HubFlags = NO_FLAGS,
) -> ExitCode:
    """Write a lock of environments and of everything they need, each file with its digest."""
    from verifiers.hub.ids import parse_id
    from verifiers.hub.lock import LockOptions, make_lock
    from verifiers.hub.lock_file import to_text
    from verifiers.hub.target import find_target

    if not ids:
        raise ConfigError("nothing was named", hint="Name it, as in: hub lock alice/my-env@0.1.0")
    if not (output_file.name == "pylock.toml" or output_file.match("pylock.?*.toml")):
        raise ConfigError(f"installers know no lock that is called {output_file.name}", hint=NAMES)
    if before is not None and before.tzinfo is None:
        before = before.replace(tzinfo=dt.UTC)
    output = flags.output()
    options = LockOptions(
        python=python_version or "",
        before=before,
        serial=serial,
        prereleases=prereleases,
        agree=lambda question: output.confirm(question, yes=yes),
        warn=output.warning,
    )
    with flags.client() as hub:
        document = make_lock(hub, [parse_id(one) for one in ids], find_target(python), options)
    try:
        output_file.write_text(to_text(document), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"can not write {output_file}: {error.strerror}", cause=error) from error
    table = document["tool"]["verifiers"]
    number = len(document["packages"])
    output.event({"lock": str(output_file), "packages": number, **table})
    for one in table["packages"]:
        output.result(f"{one['id']} (sha256:{one['sha256'][:12]})")
    output.result(f"{number} packages as of serial {table['serial']} are in {output_file}")
    output.hint(f"install it: hub install -r {output_file}")
    return ExitCode.OK


def verify(
    lock: Annotated[Path | None, Parameter(help="A lock, instead of all that this Python has from hubs.")] = None,
    /,
    *,
    python: Annotated[str | None, Parameter(help="Another interpreter or virtual environment [this one].")] = None,
    flags: HubFlags = NO_FLAGS,
) -> ExitCode:
    """Compare what is installed, or a lock, with the hub and with the files; exit 1 where something differs."""
    from verifiers.hub.lock_file import read_lock
    from verifiers.hub.target import find_target
    from verifiers.hub.verify import verify_environment, verify_lock

    output = flags.output()
    target = find_target(python)
    if lock is not None:
        verified = verify_lock(read_lock(lock), target, flags.client_for)
    else:
        verified = verify_environment(target, flags.client_for)
    findings = [{"package": one.package, "code": one.code, "message": one.message} for one in verified.findings]
    output.event({"packages": list(verified.packages), "findings": findings})
    wrong = {one.package for one in verified.findings}
    for name in verified.packages:
        if name not in wrong:
            output.result(f"✓ {name}")
    for one in verified.findings:
        output.result(f"✗ {one.package}: {one.code}: {one.message}")
    if not verified.packages:
        output.note(f"nothing in {target.prefix} comes from a hub")
    return ExitCode.FAILED if findings else ExitCode.OK
