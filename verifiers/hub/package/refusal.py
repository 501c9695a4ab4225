"""Why a file may not be published: one error class, and one code for each rule.

    refuse("path-duplicate", "'pkg/__init__.py' is there twice", member="pkg/__init__.py")

A rule is stated once, in `RULES`; the reference page is written from it. A rule that only warns never reaches
`refuse`: its code stands on a `Remark` of the file's facts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from verifiers.errors import UserError
from verifiers.hub.package.archive_rules import ARCHIVE_RULES


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `summary` is what must hold, `hint` what to do where it does not. `warns`: it refuses nothing."""

    code: str
    summary: str
    hint: str
    warns: bool = False


class RefusedError(UserError):
    """A wheel, a source archive or a name breaks a rule of the hub; `code` names it, `member` the file inside."""

    attribution = "author"
    hint = "Mend what the message names, build again, and try `hub check`."

    def __init__(self, code: str, message: str, *, member: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint or RULES[code].hint)
        self.code = code
        self.member = member

    @property
    def message(self) -> str:
        """What is wrong, in one sentence."""
        return str(self)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"code": self.code, "message": self.message, "hint": self.hint, "member": self.member}

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> RefusedError:
        """From what `to_dict` made in another process."""
        return cls(told["code"], told["message"], member=told["member"], hint=told["hint"])


def refuse(code: str, detail: str, member: str | None = None, *, hint: str | None = None) -> NoReturn:
    """Raise RefusedError. The member is put before the detail where the detail does not name it itself."""
    message = detail if member is None or member in detail else f"{printable(member)}: {detail}"
    raise RefusedError(code, message, member=None if member is None else printable(member), hint=hint)


def printable(text: str) -> str:
    """Text of an archive as it may stand in a message: no control characters, not longer than 200 characters."""
    shown = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return shown if len(shown) <= 200 else f"{shown[:200]}…"


_ALL = (
    # --- names ----------------------------------------------------------------------------------------------
    Rule(
        "owner-name",
        "An owner is 2 to 39 characters of `a-z`, `0-9` and single `-`, none at its ends, and no word of the hub's "
        "addresses.",
        "Choose another name for the owner.",
    ),
    Rule(
        "project-name",
        "A name is ASCII letters, digits, `.`, `-` and `_`, a letter or digit at both ends, at most 100 characters.",
        "Change `name` in pyproject.toml.",
    ),
    Rule(
        "reserved-name",
        "A name is no word of the hub's addresses, no module of the standard library, and neither `verifiers` nor a "
        "module of what it depends on.",
        "Give the package another name: installed under this one it would hide what others import.",
    ),
    Rule(
        "version",
        "A version is one of PEP 440.",
        'Use a version such as version = "0.1.0".',
    ),
    Rule(
        "local-version",
        "A public release has no local version (`+…`).",
        "Leave out what follows the +, or publish the package as private.",
    ),
    Rule(
        "file-name",
        "A file is called `name-version(-build)-python-abi-platform.whl` or `name-version.tar.gz`, with the normal "
        "forms of name and version.",
        "Build with a current tool (uv build, hatchling ≥ 1.27, setuptools ≥ 77), and do not rename what it makes.",
    ),
    # --- archives -------------------------------------------------------------------------------------------
    *(Rule(*row) for row in ARCHIVE_RULES),
    # --- what a wheel holds ---------------------------------------------------------------------------------
    # --- what the metadata says -----------------------------------------------------------------------------
    # --- environments ---------------------------------------------------------------------------------------
)

RULES: dict[str, Rule] = {rule.code: rule for rule in _ALL}
"""All rules by code. The reference page `hub-rules.md` is written from them."""
