"""Steps on a wheel's own folders: one dist-info, WHEEL, entry points, scripts, and the modules that it brings.

The specification is "Binary distribution format"; that of entry points "Entry points specification".
"""

from __future__ import annotations

import configparser
import math
import re
from email.parser import HeaderParser

from packaging.tags import parse_tag

from verifiers.hub.package.names import MAX_TAGS, WheelName, module_of
from verifiers.hub.package.paths import fold
from verifiers.hub.package.protected import owner_of
from verifiers.hub.package.refusal import printable, refuse
from verifiers.hub.package.subject import Step, Subject

MAX_WHEEL = 64 << 10
MAX_ENTRY_POINTS = 1 << 20
SCRIPT_GROUPS = ("console_scripts", "gui_scripts")
SCHEMES = ("purelib", "platlib", "headers", "scripts", "data")
"""The folders that `NAME-VERSION.data` may hold."""
SITE_SCHEMES = ("purelib", "platlib")
"""Those of them that are unpacked beside the other modules."""

_CODE = re.compile(r"\.(?:py|pyc|so|pyd)\Z")
_NO_DATA = re.compile(
    r"(?:\A|/)(?:site|dist)-packages(?:/|\Z)|\A(?:bin|scripts|lib/python[^/]*)/|\Apyvenv\.cfg\Z", re.IGNORECASE
)
_ABOUT = re.compile(r"\.(?:dist|egg)-info\Z", re.IGNORECASE)
"""Folders that make installers and `importlib.metadata` believe that a distribution is installed."""
_GROUP = re.compile(r"\w+(?:\.\w+)*\Z")
_SCRIPT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")
_TAKEN = re.compile(r"(?:pythonw?[0-9.]*|pip[0-9.]*|uvx?|activate.*|vf-.*|hub|sandboxd)(?:\.exe)?\Z", re.IGNORECASE)
"""Scripts that an environment of Python, or this package, has already."""
_ENTRY = re.compile(r"[^\s=\[\]/\\:;,'\"][^=\[\]/\\\r\n]*\Z")
_TARGET = re.compile(r"\w+(?:\.\w+)*(?:[ \t]*:[ \t]*\w+(?:\.\w+)*)?(?:[ \t]*\[[\w \t.,-]*\])?\Z")


# --- folders ----------------------------------------------------------------------------------------------------


def find_dist_info(subject: Subject) -> None:
    """There is one dist-info folder, named as the file."""
    right = f"{module_of(subject.named.name)}-{subject.named.version}.dist-info"
    found = sorted(top for top in subject.tops if _ABOUT.search(top))
    if found != [right]:
        other = next((top for top in found if top != right), None)
        refuse("dist-info", f"{right} must be the one dist-info folder; there is: {', '.join(found) or 'none'}", other)
    subject.root = right


def check_data_folder(subject: Subject) -> None:
    """There is at most one data folder, named as the file, with the folders that installers know."""
    right = f"{subject.root.removesuffix('.dist-info')}.data"
    for path in subject.sizes:
        top, _, rest = path.partition("/")
        if not top.lower().endswith(".data"):
            continue
        scheme, _, inside = rest.partition("/")
        if top != right:
            refuse("data-folder", f"the data folder must be called {right}", path)
        if scheme not in SCHEMES or not inside:
            refuse("data-folder", f"it is in none of {', '.join(SCHEMES)}", path)
        if scheme == "data" and _NO_DATA.search(inside):
            refuse("data-folder", "it would be put among the modules or programs by a way around the wheel's own", path)


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


# --- entry points and scripts -----------------------------------------------------------------------------------


def read_entry_points(subject: Subject) -> None:
    """Entry points have names, never paths, and point at `module` or `module:attribute`."""
    member = f"{subject.root}/entry_points.txt"
    if member not in subject.sizes:
        return
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, default_section="")
    parser.optionxform = str  # type: ignore[assignment,method-assign] # names keep their case
    try:
        parser.read_string(subject.text(member, MAX_ENTRY_POINTS, "entry-point"))
    except configparser.Error as error:
        refuse("entry-point", f"it can not be read: {printable(str(error))}", member)
    for group in parser.sections():
        entries = dict(parser.items(group))
        for name, target in entries.items():
            wrong = _wrong_entry(group, name, target)
            if wrong:
                refuse("entry-point", printable(f"[{group}] {name} = {target}") + f": {wrong}", member)
        subject.facts.entry_points[group] = entries


def _wrong_entry(group: str, name: str, target: str) -> str:
    if _GROUP.match(group) is None:
        return "the group is no dotted name"
    if (_SCRIPT if group in SCRIPT_GROUPS else _ENTRY).match(name) is None:
        return "the name is none"
    return "" if _TARGET.match(target) else "the target is not module or module:attribute"


def check_scripts(subject: Subject) -> None:
    """No script takes the place of an interpreter's, an installer's or one of this package's."""
    facts = subject.facts
    member = f"{subject.root}/entry_points.txt"
    names = {name: member for group in SCRIPT_GROUPS for name in facts.entry_points.get(group, {})}
    scripts = f"{subject.root.removesuffix('.dist-info')}.data/scripts/"
    names |= {path.removeprefix(scripts): path for path in subject.sizes if path.startswith(scripts)}
    for name, member in names.items():
        if _SCRIPT.match(name) is None:
            refuse("script-name", f"{printable(name)!r} is no name of a script", member)
        if subject.policy.environment and _TAKEN.match(name):
            refuse("script-name", f"a script {name!r} would replace one that is there already", member)


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
        if root and _ABOUT.search(place.partition("/")[0]):
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
        top, inside, _ = path.partition("/")
        name = top if inside else top.partition(".")[0]
        if (inside or _CODE.search(top)) and (owner := owner_of(name)):
            refuse("import-clash", f"the module {name} is one of {owner}", subject.installed[path])


def remark_startup_files(subject: Subject) -> None:
    """A .pth file at the top runs at every start of Python: allowed, and worth knowing."""
    for path, member in subject.installed.items():
        if "/" not in path and path.lower().endswith(".pth"):
            subject.remark("startup-file", "it runs whenever Python starts where this is installed", member)


FOLDER_CHECKS: list[Step] = [find_dist_info, check_data_folder]
CHECKS: list[Step] = [
    check_wheel_file,
    check_tags,
    read_entry_points,
    check_scripts,
    find_modules,
    remark_startup_files,
]
"""`check_clashes` is not among them: it is for environments alone."""
