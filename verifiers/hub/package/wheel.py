"""Steps on a wheel's own folders: one dist-info, WHEEL, data, and the modules that it brings.

The specification is "Binary distribution format".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from email.parser import HeaderParser

from packaging.tags import parse_tag

from verifiers.hub.package import entry_points
from verifiers.hub.package.names import MAX_TAGS, WheelName, module_of
from verifiers.hub.package.paths import fold
from verifiers.hub.package.protected import owner_of
from verifiers.hub.package.refusal import printable, refuse
from verifiers.hub.package.subject import Step, Subject

MAX_WHEEL = 64 << 10
SCHEMES = ("purelib", "platlib", "headers", "scripts", "data")
"""The folders that `NAME-VERSION.data` may hold."""
SITE_SCHEMES = ("purelib", "platlib")
"""Those of them that are unpacked beside the other modules."""

_CODE = re.compile(r"\.(?:pyw?|pyc|so|pyd)\Z")
_STARTUP = re.compile(r"\.(?:pth|start)\Z")
"""What `site` reads at every start of Python; .start from 3.15 on (PEP 829)."""
_NO_DATA = re.compile(
    r"(?:\A|/)(?:site|dist)-packages(?:/|\Z)|\A(?:s?bin|scripts|dlls|conda-meta|lib(?:64)?/python[^/]*)/"
    r"|\Alib/[^/]*\.pyw?\Z|\A(?:pyvenv\.cfg|pip\.(?:conf|ini)|[^/]*\.(?:_?pth|exe|dll))\Z"
)
"""Below the folder of Python: modules, programs, and settings of Python and pip."""
_ABOUT = re.compile(r"\.(?:(?:dist|egg)-info|egg-link)\Z")
"""Folders and files that make installers and `importlib.metadata` believe that a distribution is installed."""
_READ = {fold(name): name for name in ("METADATA", "WHEEL", "RECORD", "RECORD.jws", "RECORD.p7s", "entry_points.txt")}
"""Of dist-info: what is looked for there, which a file system may find under another spelling."""
_WRITTEN = {"installer", "requested", "direct_url.json", "provenance_url.json", "uv_cache.json", "uv_build.json"}
"""Of dist-info: what installers write, and what then tells where a distribution came from (PEP 376, 610, 710)."""


# --- folders ----------------------------------------------------------------------------------------------------


def find_dist_info(subject: Subject) -> None:
    """There is one dist-info folder, named as the file."""
    right = f"{module_of(subject.named.name)}-{subject.named.version}.dist-info"
    found = sorted(top for top in subject.tops if _ABOUT.search(fold(top)))
    if found != [right]:
        other = next((top for top in found if top != right), None)
        refuse("dist-info", f"{right} must be the one dist-info folder; there is: {', '.join(found) or 'none'}", other)
    subject.root = right


def check_dist_info(subject: Subject) -> None:
    """What readers look for in dist-info is spelt as they do, and nothing is there that installers write."""
    for path in subject.sizes:
        folder, _, name = path.partition("/")
        if folder != subject.root:
            continue
        folded = fold(name)
        if _READ.get(folded, name) != name:
            refuse("dist-info", f"some file systems take it for {_READ[folded]}", path)
        if folded in _WRITTEN:
            refuse("dist-info", "an installer writes it, and it would tell of another origin", path)


def check_data_folder(subject: Subject) -> None:
    """There is at most one data folder, named as the file, with the folders that installers know."""
    right = f"{subject.root.removesuffix('.dist-info')}.data"
    for path in subject.sizes:
        top, _, rest = path.partition("/")
        if not fold(top).endswith(".data"):
            continue
        scheme, _, inside = rest.partition("/")
        if top != right:
            refuse("data-folder", f"the data folder must be called {right}", path)
        if scheme not in SCHEMES or not inside:
            refuse("data-folder", f"it is in none of {', '.join(SCHEMES)}", path)
        if scheme == "data" and _NO_DATA.search(fold(inside)):
            refuse("data-folder", "it would be put among modules, programs or settings that are not the wheel's", path)
        if scheme == "data" and subject.policy.environment and not inside.startswith("share/"):
            refuse("data-folder", "the data of an environment belong below share/, or into the package", path)


# --- WHEEL ------------------------------------------------------------------------------------------------------


def check_wheel_file(subject: Subject) -> None:
    """WHEEL is there and of version 1.x. Headers other than Tag may be repeated: tools do that."""
    member = f"{subject.root}/WHEEL"
    if member not in subject.sizes:
        refuse("wheel-file", f"there is no {member}", member)
    headers = HeaderParser().parsestr(subject.text(member, MAX_WHEEL, "wheel-file"))
    version = str(headers["Wheel-Version"] or "").strip()
    if re.fullmatch(r"1\.[0-9]+", version) is None:
        refuse("wheel-file", f"Wheel-Version is {printable(version)!r}, not 1.x", member)
    subject.tags = [str(tag).strip() for tag in headers.get_all("Tag") or []]


def check_tags(subject: Subject) -> None:
    """The tags in WHEEL, expanded, are those of the file name."""
    member = f"{subject.root}/WHEEL"
    named = subject.named
    assert isinstance(named, WheelName)
    for tag in subject.tags:
        if tag.count("-") != 2 or not all(part for half in tag.split("-") for part in half.split(".")):
            refuse("wheel-tags", f"{printable(tag)!r} is no tag", member)
        if math.prod(half.count(".") + 1 for half in tag.split("-")) > MAX_TAGS:  # before they are expanded
            refuse("wheel-tags", f"a tag stands for more than {MAX_TAGS}", member)
    told = {one for tag in subject.tags for one in parse_tag(tag)}
    if told != named.tags:
        here, there = (", ".join(sorted(map(str, tags))) or "none" for tags in (told, named.tags))
        refuse("wheel-tags", f"WHEEL has the tags {printable(here)}, the file name {there}", member)
    subject.facts.tags = sorted(map(str, named.tags))
    subject.facts.build = named.build


# --- modules ----------------------------------------------------------------------------------------------------


def find_modules(subject: Subject) -> None:
    """The top-level modules that the wheel brings, and where the files beside other packages' are."""
    data = f"{subject.root.removesuffix('.dist-info')}.data"
    places: dict[str, str] = {}
    roots = ("", *(f"{data}/{scheme}/" for scheme in SITE_SCHEMES))
    for path in subject.sizes:
        top = path.partition("/")[0]
        root = "" if top != data else next((root for root in roots[1:] if path.startswith(root)), None)
        if root is None or top == subject.root:
            continue
        place = path.removeprefix(root)
        if root and _ABOUT.search(fold(place.partition("/")[0])):
            refuse("data-folder", "it would be put into the metadata of an installed distribution", path)
        if fold(place) in places:
            refuse("data-folder", f"it would be put over another file of the wheel, {places[fold(place)]}", path)
        places[fold(place)] = subject.installed[place] = path
    code = (path for path in subject.installed if _CODE.search(path))
    modules = {path.partition("/")[0].partition(".")[0] for path in code} - {"__pycache__"}
    subject.facts.import_names = sorted(name for name in modules if name.isidentifier())


def check_clashes(subject: Subject) -> None:
    """No top-level module or folder is the standard library's or belongs to what everyone has installed."""
    for path in subject.installed:
        top, inside, _ = fold(path).partition("/")
        name = top if inside else top.partition(".")[0]
        if (inside or _CODE.search(top)) and (owner := owner_of(name)):
            refuse("import-clash", f"the module {name} is one of {owner}", subject.installed[path])


def check_bytecode(subject: Subject) -> None:
    """No `__pycache__`: Python runs what is there in place of source, even in place of another package's."""
    for path in subject.installed:
        if "__pycache__" in fold(path).split("/"):
            refuse("bytecode", "Python would run it in place of source that it need not belong to", path)


def check_startup_files(subject: Subject) -> None:
    """A file that Python reads at every start is called after the package, so that it replaces nobody else's."""
    own = re.compile(rf"[_.-]*(?:editable[_.-]+(?:impl_)?)?{subject.named.name.replace('-', '[-_.]')}(?:[-_.]|\Z)")
    for path, member in _startup_files(subject):
        if own.match(_STARTUP.sub("", fold(path))) is None:
            wanted = f"its name must start with {subject.named.name}"
            refuse("startup-name", f"it may be another package's; {wanted}", member)


def remark_startup_files(subject: Subject) -> None:
    """A .pth or .start file at the top is read at every start of Python: allowed, and worth knowing."""
    for _, member in _startup_files(subject):
        subject.remark("startup-file", "it runs whenever Python starts where this is installed", member)


def _startup_files(subject: Subject) -> Iterator[tuple[str, str]]:
    """Where such files are once installed, and their names in the wheel."""
    for path, member in subject.installed.items():
        if "/" not in path and _STARTUP.search(fold(path)):
            yield path, member


FOLDER_CHECKS: list[Step] = [find_dist_info, check_dist_info, check_data_folder]
CHECKS: list[Step] = [check_wheel_file, check_tags, *entry_points.CHECKS, find_modules, remark_startup_files]
ENVIRONMENT_CHECKS: list[Step] = [check_clashes, check_bytecode, check_startup_files]
