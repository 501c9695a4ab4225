"""Write the reference pages that come from the code: commands, API, errors, settings.

    python docs/generate.py            write docs/reference/*.md
    python docs/generate.py --check    exit 1 and name the pages that are not what the code says

A page's text is the code's own: docstrings, signatures, `--help`. What is wrong there is mended there.
"""

import enum
import importlib
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import verifiers
from hub_server import settings as hub
from verifiers import errors
from verifiers.evals.values import KINDS
from verifiers.hub.package.refusal import RULES
from verifiers.types import EvalConfig
from verifiers.validation.checks import CHECKS

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
from docs.hub_api import hub_api_page  # noqa: E402 - found once the folder is on the path
from docs.train_config import train_config_page  # noqa: E402

REFERENCE = ROOT / "docs" / "reference"
NOTICE = "<!-- Written by docs/generate.py from the code: change the code, then run `make docs`. -->\n"


def scripts() -> dict[str, str]:
    """The commands: name to `module:function`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return dict(project["scripts"])


# --- commands ---------------------------------------------------------------------------------------------------


def commands_page() -> str:
    """The help of each command."""
    parts = [
        "# Commands\n",
        (
            "Data goes to stdout, everything else to stderr. `--json` is machine output and nothing else. Exit codes "
            "are the same [for all commands](errors.md#exit-codes).\n"
        ),
    ]
    for name, target in sorted(scripts().items()):
        parts += [f"## {name}\n", f"```text\n{help_text(name, target)}\n```\n"]
    return "\n".join(parts)


def help_text(name: str, target: str) -> str:
    """What `NAME --help` prints, 100 columns wide and without colours."""
    module, function = target.split(":")
    code = f"import sys; sys.argv = [{name!r}, '--help']; from {module} import {function}; {function}()"
    env = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.strip():
        raise RuntimeError(f"{name} --help ended with {done.returncode}: {done.stderr}")
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


# --- API --------------------------------------------------------------------------------------------------------

SECTIONS = (
    ("Environments", "verifiers.envs"),
    ("Rubrics", "verifiers.rubrics"),
    ("Parsers and extraction", "verifiers.parsers"),
    ("Decorators", "verifiers.decorators"),
    ("Clients", "verifiers.clients"),
    ("Sandboxes", "verifiers.sandboxes"),
    ("Groups of rollouts", "verifiers.rollouts"),
    ("Training", "verifiers.train"),
    ("Types", "verifiers.types"),
    ("Limits", "verifiers.scopes"),
    ("Results", "verifiers.evals"),
    ("Settings and logging", "verifiers.settings"),
)


BY_MODULE = {
    "Capabilities": "verifiers.sandboxes.results",
    "CodeResult": "verifiers.sandboxes.sessions",
    "Command": "verifiers.sandboxes.spec",
    "Interpreter": "verifiers.sandboxes.sessions",
    "Lease": "verifiers.sandboxes.lease",
    "NodeProvider": "verifiers.sandboxes.node.client",
    "NodesProvider": "verifiers.sandboxes.node.cluster",
    "Process": "verifiers.sandboxes.sandbox",
    "Provider": "verifiers.sandboxes.sandbox",
    "Session": "verifiers.sandboxes.sessions",
    "SessionResult": "verifiers.sandboxes.sessions",
    "SyncProvider": "verifiers.sandboxes.sync",
    "command": "verifiers.sandboxes.spec",
    "ScriptedClient": "verifiers.clients.scripted",
    "EmbeddedServer": "verifiers.clients.embedded",
    "CachedClient": "verifiers.clients.cache",
    "ResponseCache": "verifiers.clients.cache_file",
    "GenerateOptions": "verifiers.evals.options",
    "CodeLimits": "verifiers.grading.code_run",
    "grade_code": "verifiers.grading.code",
    "grade_math": "verifiers.grading.math",
    "in_sandboxes": "verifiers.rubrics.code_rubric",
    "read_tests": "verifiers.grading.code_tests",
    "Verdict": "verifiers.grading.verdict",
}
"""Names that are imported from their module."""


def api_page() -> str:
    """Every name of `verifiers.__all__` but the errors, which have a page of their own, by section."""
    parts = [
        "# Python API\n",
        (
            "`import verifiers as vf` offers these names; each is loaded when it is first used. Errors are on "
            "[their own page](errors.md). A class's page lists what it adds to its base.\n"
        ),
    ]
    remaining = [name for name in verifiers.__all__ if not is_error(getattr(verifiers, name))]
    for title, prefix in SECTIONS:
        names = [name for name in remaining if home(name).startswith(prefix)]
        remaining = [name for name in remaining if name not in names]
        parts.append(f"## {title}\n")
        parts += [entry(name) for name in sorted(names, key=str.lower)]
    leftover = [name for name in remaining if not home(name).startswith("verifiers.error")]
    if leftover:
        raise RuntimeError(f"no section of the API page takes {leftover}")
    parts.append("## Imported from their modules\n")
    parts += [entry(name, module) for name, module in BY_MODULE.items()]
    return "\n".join(parts)


def home(name: str) -> str:
    """The module that a public name is loaded from."""
    modules: dict[str, str] = verifiers._HOME  # the facade's own table
    return modules[name]


def is_error(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, BaseException)


def entry(name: str, module: str = "") -> str:
    """One name: signature, docstring, and for a class its public methods and properties."""
    module = module or home(name)
    value = getattr(importlib.import_module(module), name)
    lines = [f"### {name}\n", f"`{module}`\n"]
    if inspect.isclass(value) and issubclass(value, enum.Enum):
        lines += [prose(value), ", ".join(f"`{item.name}` = `{item.value}`" for item in value) + "\n"]
    elif inspect.isclass(value):
        lines.append(block(f"class {name}{signature(value)}"))
        lines.append(prose(value))
        lines += [member(key, found) for key, found in members(value)]
    elif inspect.isroutine(value):
        prefix = "async " if inspect.iscoroutinefunction(value) else ""
        lines += [block(f"{prefix}{name}{signature(value)}"), prose(value)]
    else:
        lines.append(f"`{name}` = `{shown(value)}`\n")
    return "\n".join(line for line in lines if line)


def members(cls: type) -> list[tuple[str, Any]]:
    """Public methods and properties that the class defines itself and that say what they do."""
    found = [(key, value) for key, value in vars(cls).items() if not key.startswith("_")]
    return [(key, value) for key, value in found if is_documented_member(value)]


def is_documented_member(value: Any) -> bool:
    function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    is_member = isinstance(function, property) or inspect.isfunction(function)
    # Its own docstring: one inherited from a builtin differs between releases of Python.
    return is_member and bool(function.__doc__)


def member(name: str, value: Any) -> str:
    """One method or property as a list item."""
    function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    if isinstance(function, property):
        head = f"{name}"
    else:
        head = f"{'await ' if inspect.iscoroutinefunction(function) else ''}{name}{signature(function)}"
    text = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
    return f"- **`{shorten(head)}`** {text}\n"


QUALIFIERS = re.compile(r"\b(?:typing|collections\.abc|verifiers(?:\.\w+)+|datasets(?:\.\w+)+|pathlib(?:\.\w+)*)\.")


def signature(value: Any) -> str:
    """The call signature, annotations without quotes and module paths; empty when there is none."""
    try:
        text = str(inspect.signature(value))
    except (TypeError, ValueError):
        return ""
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", re.sub(r'(: |-> )"([^"]*)"', r"\1\2", text))
    return re.sub(r"<function (\w+) at 0x[0-9a-f]+>", r"\1", QUALIFIERS.sub("", text))


def shorten(head: str) -> str:
    """`(self, …)` as `(…)`, in one line."""
    return re.sub(r"\((?:self|cls)(?:, )?", "(", head, count=1)


def block(text: str) -> str:
    return f"```text\n{text}\n```\n"


def prose(value: Any) -> str:
    """The docstring, with indented parts kept as they are."""
    text = inspect.getdoc(value) or ""
    return f"{text}\n" if text and not text.startswith(f"{getattr(value, '__name__', '')}(") else ""


def shown(value: Any) -> str:
    return re.sub(r"\s+", " ", QUALIFIERS.sub("", str(value)))


# --- errors -----------------------------------------------------------------------------------------------------


def errors_page() -> str:
    """The tree, one row a class, and the exit codes."""
    tree = inspect.getdoc(errors) or ""
    rows = [error_row(cls) for cls in error_classes()]
    codes = [f"| {code.value} | `{code.name}` | {code_doc(code)} |" for code in errors.ExitCode]
    return "\n".join(
        [
            "# Errors and exit codes\n",
            f"```text\n{tree.split(chr(10) * 2, 2)[1]}\n```\n",
            (
                "All are reachable as `vf.NAME`. A failure of a rollout is written to its record as "
                "[`error`](file-formats.md#error); an error that ends a command is printed once, with a hint.\n"
            ),
            "## Classes\n",
            "| class | kind | retryable | ends the run | who can mend it | exit code | meaning |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "\n## Exit codes\n",
            "| code | name | meaning |",
            "|---|---|---|",
            *codes,
            "",
            "## Chains and codes in code\n",
            entry("ErrorChain"),
            entry("ExitCode"),
        ]
    )


def error_classes() -> list[type[errors.Error]]:
    """All error classes, parents before children, in the order of the module."""
    found = [
        value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, errors.Error)
    ]
    return list(dict.fromkeys(found))


def error_row(cls: type[errors.Error]) -> str:
    meaning = " ".join((cls.__doc__ or "").split("\n\n")[0].split())
    flags = ["yes" if flag else "no" for flag in (cls.retryable, cls.fatal)]
    return (
        f"| `{cls.__name__}` | {cls.kind} | {flags[0]} | {flags[1]} | {cls.attribution} "
        f"| {int(cls.exit_code)} | {meaning} |"
    )


def code_doc(code: errors.ExitCode) -> str:
    """The text below an exit code's line in the source."""
    source = inspect.getsource(errors.ExitCode)
    found = re.search(rf'{code.name} = {code.value}\n\s+"""(.+?)"""', source, re.DOTALL)
    if found is None:
        raise RuntimeError(f"ExitCode.{code.name} is not documented")
    return found.group(1)


# --- settings ---------------------------------------------------------------------------------------------------

VARIABLES = {
    "VF_CACHE_DIR": "where the embedded model and, with `cache`, the replies are kept, instead of `~/.cache/verifiers`",
    "VF_CONFIG": "the user's settings file, instead of `~/.config/verifiers/config.toml`",
    "VF_DATA_DIR": "a folder of public data sets; when set, no hub is asked ([data](../guides/data.md))",
    "VF_CREDENTIALS": "the file of the tokens for hubs, instead of `~/.local/share/verifiers/credentials.toml`",
    "VF_HUB_TOKEN": "the token for the hub, instead of the one that `hub login` kept",
    "VF_HUB_URL": "the hub that the commands ask, where no `--hub-url` is given",
    "VF_LOCAL_API_KEY": "nothing: the embedded model's server asks for no key, and yours is not sent to it",
    "VF_LOCAL_THREADS": "threads of the embedded model (default 1)",
    "VF_LOG_LEVEL": "level of the package's log in commands: DEBUG, INFO, WARNING or ERROR",
    "VF_SANDBOX_PROVIDER": "where sandboxes come from: `local`, `docker`, `podman`, `prime`, or nodes "
    "([sandboxes](../guides/sandboxes.md))",
    "VF_SANDBOX_LEVEL": "what isolates sandboxes of this machine: `namespace`, `landlock` or `none`",
    "VF_SANDBOX_MAX_ALIVE": "how many sandboxes there may be at any time",
    "VF_SANDBOX_MAX_STARTING": "how many of them may start at once",
    "VF_SANDBOX_READY": "how many of a kind wait idle for the next rollout",
    "VF_SANDBOXD_TOKEN": "the token of the nodes that run `sandboxd`, for both ends",
    "DOCKER_HOST": "where Docker answers, for sandboxes in containers (over TCP with Docker's own `DOCKER_TLS_VERIFY`)",
    "CONTAINER_HOST": "where Podman answers",
    "PRIME_API_KEY": "the key for sandboxes of Prime's service, and for its models",
    "PRIME_TEAM_ID": "the team that its sandboxes are for",
    "PRIME_API_BASE_URL": "where that service is",
    "OPENAI_API_KEY": "the key of the default provider; `-k` names another variable",
    "OPENAI_BASE_URL": "where the default provider is",
    "NO_COLOR": "set to anything: no colours",
}
"""Variables that are no settings of an evaluation. A test holds the list to the code."""


def settings_page() -> str:
    """Settings of an evaluation with their kinds and defaults, and the other variables."""
    rows = [
        f"| `{name}` | {kind} | {default_of(name)} | {variable_of(name)} |" for name, kind in KINDS.items()
    ]
    others = [f"| `{name}` | {meaning} |" for name, meaning in VARIABLES.items()]
    return "\n".join(
        [
            "# Settings\n",
            (
                "A setting has one name everywhere: as a flag (`--num-examples`, see [commands](commands.md#vf-eval)), "
                "in a file (`num_examples`) and as a variable (`VF_NUM_EXAMPLES`). The first that sets it wins:\n"
            ),
            "1. the flag",
            "2. the variable",
            "3. the `[[eval]]` entry of a configuration file, then the file's top level",
            "4. `[tool.verifiers.eval]` of the project's pyproject, then of the environment's",
            "5. `[eval]` of the user's file",
            "6. the default\n",
            (
                "Tables are merged key by key, lists replaced. An unknown name is an error that names near misses. "
                "`vf-eval … --dry-run` prints every value with its origin.\n"
            ),
            "| name | kind | default | variable |",
            "|---|---|---|---|",
            *rows,
            "\n## Other variables\n",
            "| variable | meaning |",
            "|---|---|",
            *others,
            *hub_settings(),
            "",
        ]
    )


def hub_settings() -> list[str]:
    """Settings of a hub: the fields of the server's own class."""
    rows = [
        f"| `{name}` | {hub_default(name)} | `{hub.variable_of(name)}` | {field.description} |"
        for name, field in hub.Settings.model_fields.items()
    ]
    return [
        "\n## Settings of a hub\n",
        (
            "Of [`hub serve`](../guides/hub-running.md) and the commands beside it. A setting is a flag "
            "(`--database-url`), a variable, and a key of the TOML file that `--config` or `HUB_CONFIG` names; the "
            "first that sets it wins. An unknown key of the file, and a wrong value, ends the command with exit 2. "
            "With `storage`, the credentials, the region and the endpoint come from `AWS_ACCESS_KEY_ID`, "
            "`AWS_SECRET_ACCESS_KEY`, `AWS_REGION` and `AWS_ENDPOINT_URL`.\n"
        ),
        "| name | default | variable | meaning |",
        "|---|---|---|---|",
        *rows,
    ]


def hub_default(name: str) -> str:
    """The default of a hub's setting as a table cell."""
    value = hub.Settings.model_fields[name].default
    if value is None:
        return "–"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def variable_of(name: str) -> str:
    """The variable of a setting; what is played is named by the command line or a file."""
    return "–" if name in ("env_id", "name") else f"`VF_{name.upper()}`"


def default_of(name: str) -> str:
    """The default of a setting as a table cell; a dash where there is none."""
    field = EvalConfig.model_fields.get(name)
    if field is None or field.is_required():
        return "–"
    value = field.get_default(call_default_factory=True)
    if value is None or value in ("", [], {}):
        return "–"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


# --- checks -----------------------------------------------------------------------------------------------------


def checks_page() -> str:
    """Every check of `vf-validate`, in the order in which they are made."""
    parts = [
        "# Checks\n",
        (
            "What [`vf-validate`](../guides/validating.md) checks, in this order. An error fails the validation, a "
            "warning does with `--strict`. `--skip ID` leaves a check out.\n"
        ),
        "| id | severity | it promises |",
        "|---|---|---|",
    ]
    parts += [f"| [`{one.id}`](#{one.id}) | {one.severity} | {one.promise} |" for one in CHECKS.values()]
    for one in CHECKS.values():
        parts += [f"\n## {one.id}\n", f"{one.severity.capitalize()}. {one.promise}\n"]
        parts += [f"- Why: {one.why}", f"- What to do: {one.fix}"]
    return "\n".join([*parts, ""])


# --- rules of the hub ---------------------------------------------------------------------------------------------


def hub_rules_page() -> str:
    """Every rule on what may be published, in the order in which files are looked at."""
    parts = [
        "# Rules of the hub\n",
        (
            "What a hub takes, and `hub check` finds before. An upload that breaks a rule is refused with the rule's "
            "code, what is wrong, and the file inside; nothing of it is kept. Rules marked *warns* refuse nothing: "
            "what they find is shown on the release.\n"
        ),
    ]
    for rule in RULES.values():
        mark = " *Warns.*" if rule.warns else ""
        parts += [f"## {rule.code}\n", f"{rule.summary}{mark}\n", f"What to do: {rule.hint}\n"]
    return "\n".join(parts)


# --- all --------------------------------------------------------------------------------------------------------

PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands_page,
    "api.md": api_page,
    "errors.md": errors_page,
    "settings.md": settings_page,
    "checks.md": checks_page,
    "hub-rules.md": hub_rules_page,
    "hub-api.md": hub_api_page,
    "train-config.md": train_config_page,
}


def stale() -> list[str]:
    """The pages whose file is not what the code says."""
    contents = {name: NOTICE + page() for name, page in PAGES.items()}
    return [
        name
        for name, text in contents.items()
        if not (REFERENCE / name).is_file() or (REFERENCE / name).read_text() != text
    ]


def main() -> int:
    """Write the pages, or with `--check` only compare them."""
    if "--check" in sys.argv[1:]:
        names = stale()
        if names:
            print(f"not what the code says: {', '.join(names)}; run `make docs`", file=sys.stderr)
        return 1 if names else 0
    REFERENCE.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(NOTICE + page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
