"""Steps on `[tool.verifiers]` in pyproject.toml: what an environment needs, and the hub packages it stands on.

    [tool.verifiers.needs]
    secrets = ["SEARCH_API_KEY"]          # names of environment variables
    network = true
    sandbox = false
    gpu = false

    [tool.verifiers.hub]
    dependencies = ["alice/base-env>=1.2"]   # each also stands, without its owner, in [project] dependencies

A source archive has the file at its top. A wheel has it where the build puts it into the metadata folder, as the
projects of `vf-init` do: `extra_metadata/pyproject.toml`.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from verifiers.hub.package.facts import Needs
from verifiers.hub.package.metadata import BEFORE_DYNAMIC
from verifiers.hub.package.names import check_owner
from verifiers.hub.package.refusal import RefusedError, printable, refuse
from verifiers.hub.package.subject import Step, Subject

MAX_PYPROJECT = 1 << 20
MAX_DOTS = 500
"""In a line. The time to read a dotted key grows with the square of its parts."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_FLAGS = ("network", "sandbox", "gpu")


def pyproject_of(subject: Subject) -> str:
    """Where pyproject.toml is."""
    return f"{subject.root}/{'extra_metadata/' if subject.facts.kind == 'wheel' else ''}pyproject.toml"


def read_pyproject(subject: Subject) -> None:
    """pyproject.toml is valid TOML; a source archive holds it."""
    member = pyproject_of(subject)
    if member not in subject.sizes:
        if subject.facts.kind == "sdist":
            refuse("pyproject", "the source archive holds no pyproject.toml", member)
        return
    text = subject.text(member, MAX_PYPROJECT, "pyproject")
    if any(line.count(".") > MAX_DOTS for line in text.split("\n")):
        refuse("pyproject", f"a line has more than {MAX_DOTS} dots", member)
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        refuse("pyproject", f"it is no valid TOML: {printable(str(error))}", member)
    subject.pyproject = _table(_table(document, "tool", member), "verifiers", member)


def _table(table: dict[str, Any], name: str, member: str) -> dict[str, Any]:
    inner = table.get(name, {})
    if not isinstance(inner, dict):
        refuse("pyproject", f"{name} is no table", member)
    return inner


def read_needs(subject: Subject) -> None:
    """`[tool.verifiers.needs]` has secrets, network, sandbox and gpu, of the right kinds."""
    member = pyproject_of(subject)
    table = _known(subject, "needs", ("secrets", *_FLAGS))
    if "needs" not in subject.pyproject:
        return
    secrets = table.get("secrets", [])
    if not isinstance(secrets, list) or not all(isinstance(one, str) and _VARIABLE.match(one) for one in secrets):
        refuse("needs", "secrets must be a list of names of environment variables", member)
    for name in _FLAGS:
        if not isinstance(table.get(name, False), bool):
            refuse("needs", f"{name} must be true or false", member)
    subject.facts.needs = Needs(tuple(secrets), **{name: table.get(name, False) for name in _FLAGS})


def read_hub_dependencies(subject: Subject) -> None:
    """`[tool.verifiers.hub] dependencies` are hub packages with their owners, each once."""
    member = pyproject_of(subject)
    told = _known(subject, "hub", ("dependencies",)).get("dependencies", [])
    if not isinstance(told, list) or not all(isinstance(one, str) for one in told):
        refuse("hub-dependency", "dependencies must be a list of texts such as 'alice/base-env>=1.2'", member)
    parsed = [split_hub_dependency(one, member) for one in told]
    names = [canonicalize_name(requirement.name) for _, requirement in parsed]
    for name, number in Counter(names).items():
        if number > 1:
            refuse("hub-dependency", f"{name} is there more than once", member)
    subject.facts.hub_dependencies = [f"{owner}/{requirement}" for owner, requirement in parsed]


def check_hub_dependencies(subject: Subject) -> None:
    """Each hub dependency is an ordinary requirement, too, so that any installer asks for it."""
    made_at_build = {field.lower() for field in subject.told.get("dynamic", [])}
    if "requires-dist" not in made_at_build and subject.facts.metadata_version not in BEFORE_DYNAMIC:
        check_agreement(subject.facts.hub_dependencies, subject.facts.requires_dist, pyproject_of(subject))


def check_agreement(hub: Sequence[str], requires: Sequence[str], member: str | None = None) -> None:
    """Refuse `hub-dependency` where a hub dependency is no requirement, or one on other versions.

    For a release that has its hub dependencies in one file and its requirements in another.
    """
    ordinary = {canonicalize_name(one.name): one for one in map(Requirement, requires)}
    for text in hub:
        _, wanted = split_hub_dependency(text, member)
        beside = ordinary.get(canonicalize_name(wanted.name))
        if beside is None:
            refuse("hub-dependency", f"{text} is not among [project] dependencies as {wanted}", member)
        if wanted.specifier != beside.specifier:
            refuse("hub-dependency", f"{text} and {beside} in [project] dependencies ask for other versions", member)


def split_hub_dependency(text: str, member: str | None = None) -> tuple[str, Requirement]:
    """`alice/base-env>=1.2` as owner and requirement. Refuses `hub-dependency`."""
    owner, slash, rest = text.partition("/")
    try:
        requirement = Requirement(rest)
    except InvalidRequirement:
        refuse("hub-dependency", f"{printable(text)!r} is not owner/name with versions", member)
    if not slash or requirement.url or requirement.extras or requirement.marker:
        refuse("hub-dependency", f"{printable(text)!r} is not owner/name with versions", member)
    try:
        return check_owner(owner.strip()), requirement
    except RefusedError as error:
        refuse("hub-dependency", f"{printable(text)!r}: {error.message}", member)


def _known(subject: Subject, name: str, keys: tuple[str, ...]) -> dict[str, Any]:
    """A table of `[tool.verifiers]` with none but these keys."""
    member = pyproject_of(subject)
    table = _table(subject.pyproject, name, member)
    for key in table:
        if key not in keys:
            near = get_close_matches(key, keys, n=1)
            meant = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(keys)}"
            refuse("pyproject", f"[tool.verifiers.{name}] has no key {printable(key)!r}{meant}", member)
    return table


CHECKS: list[Step] = [read_pyproject, read_needs, read_hub_dependencies, check_hub_dependencies]
