"""`vf-init`: a new environment that runs at once: module, pyproject, card and test.

The texts come from `templates/`: one folder for each kind, with the module, its test and what the card says. This
file chooses, fills in and writes them; it never overwrites a file unless told to. An environment that was just
written passes its own test and `vf-eval NAME -m local` unchanged.

    vf-init my-env
    vf-init my-game --kind multi-turn
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Annotated, Any, Literal, get_args

from cyclopts import App, Parameter

from verifiers.cli.frame import framed, parsed, start
from verifiers.cli.output import Output
from verifiers.errors import ConfigError, ExitCode, MissingExtraError, StoreError, install_line

Kind = Literal["single-turn", "multi-turn", "tool", "sandbox", "code"]
KINDS: tuple[Kind, ...] = get_args(Kind)
TEMPLATES = Path(__file__).parent / "templates"
README = "README.md"

NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*\Z")
"""Names that are a project's and, with underscores, a module's, the same on every system."""


@dataclass(frozen=True, slots=True)
class Scaffold:
    """What is to be written: `name` is the project's, with dashes."""

    name: str
    kind: Kind = "single-turn"
    multi_file: bool = False

    @property
    def module(self) -> str:
        """The module that is imported; its folder has this name too."""
        return self.name.replace("-", "_")

    @property
    def _folder(self) -> str:
        return self.kind.replace("-", "_")

    def files(self) -> dict[str, str]:
        """Path below the environment's folder → text."""
        texts = self._texts()
        module = _filled(f"{self._folder}/module.py.tmpl", texts)
        code = {f"{self.module}.py": module}
        if self.multi_file:
            code = {
                f"{self.module}/__init__.py": _filled("package.py.tmpl", texts),
                f"{self.module}/environment.py": module,
            }
        return {
            "pyproject.toml": _filled("pyproject.toml.tmpl", texts),
            README: _filled("README.md.tmpl", texts),
            **code,
            f"test_{self.module}.py": _filled(f"{self._folder}/test.py.tmpl", texts),
        }

    @property
    def needs_sandbox(self) -> bool:
        """Whether its rollouts, or their programs, run in sandboxes."""
        return self._card().get("extra") == "sandbox"

    def _card(self) -> dict[str, Any]:
        return tomllib.loads((TEMPLATES / self._folder / "card.toml").read_text(encoding="utf-8"))

    def _texts(self) -> Mapping[str, str]:
        card = self._card()
        return {
            **{key: value.strip() for key, value in card.items() if isinstance(value, str)},
            "keywords": ", ".join(f'"{word}"' for word in card["keywords"]),
            "requirement": f"verifiers[{card['extra']}]" if "extra" in card else "verifiers",
            "sandbox": str(self.needs_sandbox).lower(),
            "name": self.name,
            "module": self.module,
            "contents": self.module if self.multi_file else f"{self.module}.py",
        }


def _filled(template: str, texts: Mapping[str, str]) -> str:
    return Template((TEMPLATES / template).read_text(encoding="utf-8")).substitute(texts)


def read_name(name: str, folder: Path) -> str:
    """The project's name, checked. ConfigError says what is wrong and what would do."""
    if not NAME.match(name):
        near = re.sub(r"[^a-z0-9]+", "-", name.rpartition("/")[2].lower()).strip("-0123456789")
        raise ConfigError(
            f"{name!r} is no name for an environment: it takes small letters, digits and single dashes",
            hint=f"Try: vf-init {near or 'my-env'}",
        )
    module = name.replace("-", "_")
    if keyword.iskeyword(module) or module in sys.stdlib_module_names:
        raise _taken(name, f"{module} is part of Python")
    here = folder / module
    if not (here / f"{module}.py").exists() and not (here / module).exists():
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin is not None:
            raise _taken(name, f"{module} is installed already, from {spec.origin}")
    return name.replace("_", "-")


def _taken(name: str, why: str) -> ConfigError:
    return ConfigError(
        f"an environment called {name!r} could not be imported next to what has that name: {why}",
        hint=f"Try another name, such as: vf-init {name}-env",
    )


def write(
    scaffold: Scaffold, folder: Path, *, force: bool = False, rewrite_readme: bool = False
) -> dict[str, list[Path]]:
    """Write what is missing below `folder`/<module>. Returns the paths `written` and those `kept` as they were.

    `force` overwrites every file, `rewrite_readme` the card. ConfigError if the module is there in the other form
    (one file or a folder), StoreError if the place can not be written.
    """
    target = folder / scaffold.module
    other = target / (f"{scaffold.module}.py" if scaffold.multi_file else scaffold.module)
    if other.exists():
        raise ConfigError(
            f"{other} exists: a module is one file or one folder, and Python would import only one of them",
            hint=f"Remove it, or {'leave out' if scaffold.multi_file else 'add'} --multi-file.",
        )
    done: dict[str, list[Path]] = {"written": [], "kept": []}
    for name, text in scaffold.files().items():
        path = target / name
        overwrite = force or (rewrite_readme and name == README)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w" if overwrite else "x", encoding="utf-8") as file:
                file.write(text)
            done["written"].append(path)
        except FileExistsError:
            done["kept"].append(path)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}", cause=error) from error
    return done


# --- the command ----------------------------------------------------------------------------------------------

app = App(
    name="vf-init",
    suppress_keyboard_interrupt=False,  # run_command answers for it
    help="Write a new environment that runs at once: module, pyproject, card and test.",
    help_epilogue="Examples:\n\nvf-init my-env\n\nvf-init my-game --kind multi-turn -p ./environments",
    help_format="plaintext",
    version_flags=[],
    result_action="return_value",
)


@app.default
def init(
    name: Annotated[str, Parameter(help="Name of the environment, such as my-env.")],
    /,
    *,
    path: Annotated[Path, Parameter(alias="-p", help="Folder of environments.")] = Path("environments"),
    kind: Annotated[
        Kind, Parameter(help="What the model does: one reply, several turns, tool calls, work in a shell, a program.")
    ] = "single-turn",
    multi_file: Annotated[bool, Parameter(negative="", help="A package instead of one module.")] = False,
    rewrite_readme: Annotated[bool, Parameter(negative="", help="Write the card anew if it exists.")] = False,
    force: Annotated[bool, Parameter(negative="", help="Overwrite every file that exists.")] = False,
    json: Annotated[bool, Parameter(negative="", help="One JSON object on stdout.")] = False,
    verbose: Annotated[bool, Parameter(alias="-v", negative="", help="Show tracebacks.")] = False,
) -> int:
    """Write the environment NAME below the folder of environments."""
    scaffold = Scaffold(read_name(name, path), kind, multi_file)
    done = write(scaffold, path, force=force, rewrite_readme=rewrite_readme)
    return _report(scaffold, path, done, Output(json=json, verbose=verbose))


def _report(scaffold: Scaffold, folder: Path, done: Mapping[str, Sequence[Path]], output: Output) -> ExitCode:
    output.event({"event": "summary", "name": scaffold.name, "path": str(folder / scaffold.module)}
                 | {key: [str(path) for path in paths] for key, paths in done.items()})  # fmt: skip
    for path in done["written"]:
        output.result(f"wrote {path}")
    for path in done["kept"]:
        output.note(f"kept {path}, which exists")
    if not done["written"]:
        output.hint(f"Everything exists. Overwrite it: vf-init {scaffold.name} -p {folder} --force")
        return ExitCode.FAILED
    if scaffold.needs_sandbox and not _has_bubblewrap():
        output.hint(f"First, its sandboxes: {install_line('sandbox')} (vf-sandbox doctor says what works here)")
    place = "" if folder == Path("environments") else f" --env-dir-path {folder}"
    output.hint(f"Run it:   vf-eval {scaffold.name} -m local{place}")
    output.hint(f"Check it: vf-validate {scaffold.name}{place}")
    first = "" if importlib.util.find_spec("pytest") else "pip install pytest && "
    output.hint(f"Test it:  {first}python -m pytest {folder / scaffold.module}")
    output.hint(f"Train it: vf-train model.path=MODEL_FOLDER env={scaffold.name}{place}")
    return ExitCode.OK


def _has_bubblewrap() -> bool:
    from verifiers.sandboxes.local.launch import find_bubblewrap  # here: other kinds do without

    try:
        find_bubblewrap()
    except MissingExtraError:
        return False
    return True


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point `vf-init`."""
    start(run, arguments)


def run(arguments: list[str]) -> int:
    """Run the command and return its exit code."""
    return framed(arguments, lambda _: parsed(app, arguments, "vf-init --help lists what it takes."))


if __name__ == "__main__":
    main()
