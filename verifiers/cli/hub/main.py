"""`hub`: the command of the registry.

Each sub-command is a module of this folder, loaded when it is called: `hub --help` loads none of them. A sub-command
takes `hub: HubFlags` for what they share, prints through `Output`, and returns an exit code or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cyclopts import App, Parameter

from verifiers.cli.frame import framed, package_version, parsed, start

SERVER = "server:become"
"""What starts a command of the server, which has its own flags and help."""

COMMANDS = {
    "login": ("account:login", "Keep a token for a hub, once the hub has said whose it is."),
    "logout": ("account:logout", "Forget the token that is kept for a hub."),
    "whoami": ("account:whoami", "Who the token acts as, and what it allows."),
    "install": ("install:install", "Install environments of a hub; nothing unrelated is upgraded."),
    "push": ("push:push", "Build, check and publish an environment."),
    "check": ("check:check", "Try the hub's rules on an environment, and play it from its wheel alone."),
    "pull": ("install:pull", "Get the source of a release into a folder."),
    "search": ("find:search", "Find environments; without words all, by name."),
    "info": ("find:info", "Show what is to know of a release before it is installed, and how to install it."),
    "versions": ("find:versions", "List the versions of an environment, newest first."),
    "inspect": ("look:inspect", "List the files of a release, or print one of them."),
    "diff": ("look:diff", "Show what changed between two releases, or a local wheel and a release."),
    "lock": ("lock:lock", "Write a lock of environments and of everything they need, each file with its digest."),
    "verify": ("lock:verify", "Compare what is installed, or a lock, with the hub and with the files."),
    "yank": ("manage:yank", "Withdraw a release: installers pass it over unless it is pinned."),
    "unyank": ("manage:unyank", "Offer a yanked release again."),
    "delete": ("manage:delete", "Delete a release, minutes after its upload and before anybody has it."),
    "status": ("manage:status", "Mark a project as archived, deprecated or active again."),
    "visibility": ("manage:visibility", "Show a project to everybody, or to the owner's members only."),
    "transfer-name": ("manage:transfer_name", "Give a name in the whole-hub index to another owner's project."),
    "token": ("token:app", "Make, list and revoke tokens."),
    "owner": ("owner:app", "Organisations and their members."),
    "audit": ("owner:audit", "What has happened, by serial."),
    "serve": (SERVER, "Run a hub on this machine."),
    "admin": (SERVER, "Owners, tokens and the SDK's wheel, on the hub's machine."),
    "fsck": (SERVER, "Compare everything that a hub on this machine keeps."),
    "sweep": (SERVER, "Remove what nothing in a hub names any more."),
    "export": (SERVER, "Write a whole hub into a folder or a .tar."),
    "import": (SERVER, "Read an export into an empty hub."),
}
"""Name → (module:function of this folder, one sentence), in the order of the help."""


app = App(
    name="hub",
    suppress_keyboard_interrupt=False,  # run_command answers for it
    help=(
        "Publish environments, pin them, install them. The hub is named by --hub-url, VF_HUB_URL, or the settings.\n\n"
        "  hub push my-env                  build, check and publish an environment\n"
        "  hub install alice/my-env@0.1.0   into this Python\n"
        "  hub serve --data ./hub           a hub of your own"
    ),
    help_format="plaintext",
    version_format="plaintext",
    usage="Usage: hub COMMAND [OPTIONS]",
    version=package_version,
    version_flags=["--version"],
    # A default that is nothing is not shown, and a flag has no --no-… twin.
    default_parameter=Parameter(negative="", show_default=lambda value: value or None),
)
for _name, (_place, _help) in COMMANDS.items():
    app.command(f"verifiers.cli.hub.{_place}", name=_name, help=_help)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point `hub`."""
    start(run, arguments)


def run(arguments: list[str]) -> int:
    """Run the command and return its exit code."""
    return framed(arguments, lambda _: _command(arguments))


def _command(arguments: list[str]) -> Any:
    if arguments and COMMANDS.get(arguments[0], ("",))[0] == SERVER:
        from verifiers.cli.hub.server import become

        become(*arguments)
    known = bool(arguments) and arguments[0] in COMMANDS
    hint = f"hub {arguments[0]} --help shows what it takes." if known else "hub --help lists the commands."
    return parsed(app, arguments, hint)


if __name__ == "__main__":
    main()
