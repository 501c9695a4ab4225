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
    def docs(self) -> str:
        """Where the rule stands."""
        return f"docs/reference/hub-rules.md#{self.code}"

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
    shown = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text[:201])
    return shown if len(shown) <= 200 else f"{shown[:200]}…"


_UNCHANGED = "Build again, and do not change the wheel afterwards."

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
        "A version is one of PEP 440, and no number in it has more than 18 digits.",
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
    Rule(
        "form",
        "What an upload's form says as name and version is what the file is named.",
        "Publish with uv publish, twine or hub push, which read the form from the file.",
    ),
    Rule(
        "file-size",
        "A file is not larger than the hub takes (100 MiB, unless its limits say so).",
        "Leave data out of the package and load it at run time.",
    ),
    *(Rule(*row) for row in ARCHIVE_RULES),
    # --- folders and headers of a wheel ---------------------------------------------------------------------
    Rule(
        "dist-info",
        "A wheel has one folder `name-version.dist-info`, named exactly as the file, and no other such, no `.egg-info` "
        "and no `.egg-link`. What readers look for there is spelt as they do; nothing is there that installers write "
        "(`INSTALLER`, `REQUESTED`, `direct_url.json`).",
        "Build again with a current tool; do not rename, join or re-pack wheels.",
    ),
    Rule(
        "data-folder",
        "A folder `….data` is called `name-version.data` and holds purelib, platlib, headers, scripts and data only. "
        "It puts nothing over the wheel's other files or its metadata, and nothing among modules, programs and "
        "settings of Python and pip by way of data; an environment's data go below `share/`.",
        "Put the files into the package itself.",
    ),
    Rule("wheel-file", "WHEEL is there and of Wheel-Version 1.x.", "Build again with a current tool."),
    Rule(
        "wheel-tags",
        "The tags in WHEEL are those of the file name, one at least, and none is empty.",
        "Build again, or re-tag with `wheel tags`, which changes both.",
    ),
    Rule(
        "entry-point",
        "Entry points are names, never paths, and point at `module` or `module:attribute`; each line is `[group]`, "
        "`name = target` or a comment after `#`, from its first character on.",
        "Correct [project.scripts] or [project.entry-points] in pyproject.toml.",
    ),
    Rule(
        "script-name",
        "A script is a plain name, made once, and none that Python, an installer, `verifiers` or what it requires has "
        "(`python`, `pip`, `uv`, `hub`, `vf-…`, `tqdm`).",
        "Give the script another name in [project.scripts].",
    ),
    Rule(
        "startup-file",
        "A `.pth` or `.start` file at the top of a wheel runs whenever Python starts where the wheel is installed.",
        "Leave it out unless the package can not do without it.",
        warns=True,
    ),
    Rule(
        "startup-name",
        "A `.pth` or `.start` file at the top of a wheel is called after the package.",
        "Name it as the package, or leave it out.",
    ),
    Rule(
        "bytecode",
        "A wheel of an environment holds no `__pycache__`: Python runs what is there in place of the source beside it, "
        "or in place of another package's.",
        "Leave it out: installers make it where it is wanted.",
    ),
    Rule(
        "private-file",
        "An archive of an environment holds nothing that is secret or private by its name: `.env`, `.env.*` (but "
        "`.env.example` and the like), `.netrc`, `.pypirc`, `credentials.json`, `*.pem`, `id_rsa*`, `.ssh/`, results "
        "in `outputs/`, `.git/`, `.venv/`, `__pycache__/`.",
        "Leave it out: `only-include` below [tool.hatch.build.targets.sdist] names what belongs (`vf-init` shows how). "
        "What is public takes another name, such as `.crt` for a certificate.",
    ),
    # --- RECORD ---------------------------------------------------------------------------------------------
    Rule("record-missing", "A wheel has RECORD.", "Build again with a current tool."),
    Rule(
        "record-form",
        "RECORD is UTF-8 CSV of path, hash and size, with each path once; a path is one that a member may have.",
        "Build again with a current tool.",
    ),
    Rule("record-unlisted", "Every file of a wheel has a row in RECORD.", _UNCHANGED),
    Rule("record-absent", "Every row of RECORD has a file in the wheel.", _UNCHANGED),
    Rule("record-hash", "Every row of RECORD has a hash, sha256, sha384 or sha512.", "Build with a current tool."),
    Rule("record-content", "Size and hash in RECORD are those of the file.", _UNCHANGED),
    # --- METADATA and PKG-INFO ------------------------------------------------------------------------------
    Rule(
        "metadata-missing",
        "A wheel has METADATA in its dist-info folder, a source archive PKG-INFO at its top.",
        "Build again with a current tool.",
    ),
    Rule(
        "metadata-text",
        "Metadata is UTF-8 without NUL, at most 4 MiB, and each line before the first empty one is a header, none "
        "of them one of mails; there are at most 10,000, of 200 names.",
        "Shorten or re-encode the README; build with a current tool.",
    ),
    Rule(
        "metadata-version",
        "Metadata-Version is 1.0 to 1.2 or 2.1 to 2.6.",
        "Build with a current tool.",
    ),
    Rule(
        "metadata-newer",
        "A newer minor Metadata-Version than 2.6 is taken, and what it adds is passed over.",
        "Nothing has to be done.",
        warns=True,
    ),
    Rule(
        "metadata-older",
        "A source archive before Metadata-Version 2.2 does not say which fields are made when it is built, so those of "
        "its wheel count.",
        "Nothing has to be done; newer build tools write 2.2 or later.",
        warns=True,
    ),
    Rule(
        "metadata-field",
        "Name and Version are there, what may be said once is said once, and each known field has a valid value. "
        "Summary and Requires-Python have at most 512 characters, and no number has more than 18 digits.",
        "Correct the field in pyproject.toml.",
    ),
    Rule("metadata-name", "Name is that of the file name.", "Build again; do not rename the file."),
    Rule("metadata-release", "Version is that of the file name.", "Build again; do not rename the file."),
    Rule(
        "direct-url",
        "A requirement on an address is git+https or git+ssh with a full commit, or https with a hash; it holds no "
        "password.",
        "Pin it: `name @ git+https://…@<40 digits>` or `name @ https://….whl#sha256=<64 digits>`.",
    ),
    Rule(
        "license-file",
        "From Metadata-Version 2.4 on, each License-File is in the archive.",
        "Correct `license-files` in pyproject.toml.",
    ),
    # --- environments ---------------------------------------------------------------------------------------
    Rule(
        "import-clash",
        "No top-level module or folder of a wheel is one of the standard library, of `verifiers` or of what it "
        "depends on.",
        "Move it into the package's own module, or name it otherwise.",
    ),
    Rule(
        "load-module",
        "The wheel holds the module of its name, with underscores: `my_env.py` or `my_env/` for `my-env`.",
        "Give module and project one name, and see that the build includes the module (`vf-init` shows how).",
    ),
    Rule(
        "module-source",
        "That module is Python source that the version which looks at it can read, at most 4 MiB.",
        "Correct the syntax, or state the Python it needs in `requires-python`.",
    ),
    Rule(
        "module-unread",
        "The module needs a newer Python than the one that looks at it, so nothing tells that it loads.",
        "Run `hub check` with that Python.",
        warns=True,
    ),
    Rule(
        "load-environment",
        "The module binds `load_environment` at its top level: by def, an assignment or an import.",
        "Define load_environment(**kwargs) in it, or import it there.",
    ),
    Rule(
        "star-import",
        "`load_environment` comes from a star import, so nothing tells that it is there.",
        "Import it by name.",
        warns=True,
    ),
    Rule(
        "newer-api",
        "An environment offers `load_environment`, not only what upstream's newer API (verifiers 0.4 and later) has.",
        "Port it to load_environment, or publish it for the upstream package elsewhere.",
    ),
    Rule(
        "pyproject",
        "A source archive holds pyproject.toml; it is valid TOML of at most 1 MiB, without a line of more than 500 "
        "dots, and `[tool.verifiers.needs]` and `[tool.verifiers.hub]` have no unknown key.",
        "Correct pyproject.toml.",
    ),
    Rule(
        "needs",
        "`[tool.verifiers.needs]` has secrets as a list of names of variables; network, sandbox and gpu are true or "
        "false.",
        "Correct the table in pyproject.toml.",
    ),
    Rule(
        "hub-dependency",
        "`[tool.verifiers.hub] dependencies` are `owner/name` with versions, each once, and each also stands in "
        "`[project] dependencies` with the same versions.",
        "Let both lists agree in pyproject.toml.",
    ),
    # --- the inspection itself ------------------------------------------------------------------------------
    Rule(
        "inspection-failed",
        "A file can be inspected within the hub's limits of time and memory.",
        "Move large literals out of the module into a data file, and nest less deeply.",
    ),
)

RULES: dict[str, Rule] = {rule.code: rule for rule in _ALL}
"""All rules by code. The reference page `hub-rules.md` is written from them."""
