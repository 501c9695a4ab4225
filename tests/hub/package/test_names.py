"""Names, versions and file names have one spelling each; every other one is refused."""

import sys
from importlib import metadata

import pytest
from hypothesis import given, strategies as st
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from verifiers.hub.package import names
from verifiers.hub.package.protected import MODULES, OURS, is_taken_script, owner_of
from verifiers.hub.package.refusal import RULES, RefusedError, refuse


def refusal(call, *arguments):
    with pytest.raises(RefusedError) as caught:
        call(*arguments)
    return caught.value


# --- names and versions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given_name", "normal"), [("My.Env", "my-env"), ("a__-.b", "a-b"), ("gsm8k", "gsm8k")])
def test_names_are_normalised(given_name, normal):
    """Case and runs of separators are folded (PEP 503)."""
    assert names.normalise(given_name) == normal


@pytest.mark.parametrize("name", ["", "-a", "a-", "a b", "ä", "a/b", "a\x00", "a\n", "x" * 101])
def test_a_name_that_is_none_is_refused(name):
    """What does not start and end with a letter or digit, or holds other characters."""
    assert refusal(names.normalise, name).code == "project-name"


@given(st.from_regex(r"\A[0-9]{1,3}(\.[0-9]{1,3}){0,3}((a|b|rc)[0-9]{1,2})?(\.post[0-9])?(\+[a-z]{1,3})?\Z"))
def test_equal_versions_have_one_key(text):
    """A key is the same for every spelling, and never for different versions."""
    longer = text + ".0" if text.replace(".", "").isdigit() else "v" + text
    assert names.canonical_version(longer) == names.canonical_version(text)
    assert Version(names.canonical_version(text)) == Version(text)
    assert names.normal_version(f" v{text} ") == str(Version(text))


def test_a_version_that_is_none_is_refused():
    """PEP 440 decides."""
    assert refusal(names.canonical_version, "1.0-final?").code == "version"
    assert refusal(names.normal_version, "").code == "version"
    assert names.has_local_part("1.0+mine")


@pytest.mark.parametrize("slug", ["a", "Alice", "al--ice", "-al", "al-", "x" * 40, "al_ice", "ali ce", "simple", "api"])
def test_an_owner_has_a_plain_slug(slug):
    """Lower case, no word of an address."""
    assert refusal(names.check_owner, slug).code == "owner-name"
    assert names.check_owner("alice-2") == "alice-2"


@pytest.mark.parametrize("name", ["full", "Json", "typing.extensions", "PyYAML-", "verifiers", "hub-server", "httpx"])
def test_names_that_others_import_are_reserved(name):
    """Words of addresses, the standard library, and what comes with this package."""
    code = "project-name" if name.endswith("-") else "reserved-name"
    assert refusal(names.check_project, name).code == code
    assert names.check_project("My.Env") == "my-env"


# --- file names -------------------------------------------------------------------------------------------------


def test_a_wheel_name_tells_its_parts():
    """Name, version, build and the expanded tags."""
    found = names.parse_wheel_name("my_env-1.0.0-2b-py2.py3-none-any.whl")
    assert (found.name, found.version, found.build) == ("my-env", "1.0.0", "2b")
    assert sorted(map(str, found.tags)) == ["py2-none-any", "py3-none-any"]


@pytest.mark.parametrize(
    ("filename", "right"),
    [
        ("Requests-1.0.0-py3-none-any.whl", "requests-1.0.0-py3-none-any.whl"),
        ("requests-01.0.0-py3-none-any.whl", "requests-1.0.0-py3-none-any.whl"),
        ("my.env-1.0.0-PY3-none-any.whl", "my_env-1.0.0-py3-none-any.whl"),
        ("A_-b-1.0.tar.gz", "a_b-1.0.tar.gz"),
        ("a-v1.0.tar.gz", "a-1.0.tar.gz"),
    ],
)
def test_another_spelling_is_refused_with_the_right_one(filename, right):
    """One file has one name, so that no two of them can mean the same (warehouse#14602)."""
    parse = names.parse_wheel_name if filename.endswith(".whl") else names.parse_sdist_name
    error = refusal(parse, filename)
    assert error.code == "file-name"
    assert repr(right) in error.message


@pytest.mark.parametrize(
    "filename",
    ["a-1.whl", "../a-1.0-py3-none-any.whl", "a-1.0-py3-no/ne-any.whl", "a-1.0-py3-none-a\x00ny.whl"]
    + ["a-1.0-py3-none-.whl", "a-x-py3-none-any.whl", "a-1.0-py3-none-any.WHL", f"a-1.0-py3-none-{'x' * 200}.whl"]
    + [f"a-1.0-{'.'.join('abcdefgh')}-{'.'.join('abcdefgh')}-{'.'.join('abcdefgh')}.whl"],
)
def test_what_is_no_wheel_name_is_refused(filename):
    """No path, no control character, no product of tags that would take long to expand."""
    assert refusal(names.parse_wheel_name, filename).code == "file-name"


@pytest.mark.parametrize("filename", ["a-1.0.zip", "a.tar.gz", "a-1.0-1.tar.gz", "a-1.0.tar.gz/", "a/b-1.0.tar.gz"])
def test_what_is_no_sdist_name_is_refused(filename):
    """`name-version.tar.gz` alone (PEP 625)."""
    assert refusal(names.parse_sdist_name, filename).code == "file-name"


def test_a_source_archive_names_its_folder():
    """The folder inside is the stem of the file name."""
    found = names.parse_sdist_name("my_env-1!2.0.post1.tar.gz")
    assert (found.name, found.version, found.top) == ("my-env", "1!2.0.post1", "my_env-1!2.0.post1")


# --- protected modules ------------------------------------------------------------------------------------------


def required(root):
    """The distributions that a distribution requires, directly or not, as far as they are installed."""
    waiting, seen = [(root, frozenset())], set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        for text in metadata.requires(name) or []:
            wanted = Requirement(text)
            if wanted.marker is None or any(wanted.marker.evaluate({"extra": one}) for one in {"", *extras}):
                waiting.append((canonicalize_name(wanted.name), frozenset(wanted.extras)))
    return {name for name, _ in seen}


def modules_of(distribution):
    parts = [file.parts for file in metadata.distribution(distribution).files or []]
    tops = {part[0] for part in parts if len(part) > 1} | {
        part[0].split(".")[0] for part in parts if len(part) == 1 and part[0].endswith((".py", ".so"))
    }
    return {top for top in tops if top.isidentifier() and top != "__pycache__"}


@pytest.mark.slow
def test_the_protected_modules_are_those_that_are_installed():
    """Every module of what `verifiers` requires is listed; a new one is added to verifiers/hub/package/protected.py."""
    installed = {module for name in required("verifiers") - {"verifiers"} for module in modules_of(name)}
    assert installed - set(MODULES) == set()
    listed = {module for module, owner in MODULES.items() if owner in required("verifiers")}
    assert listed - installed - set(OURS) == set()


def test_a_module_is_known_in_any_case():
    """Some file systems fold it."""
    assert owner_of("HTTPX") == "httpx"
    assert owner_of("Json") == "Python's standard library"
    assert owner_of("my_env") is None
    assert all(owner_of(name) for name in sys.stdlib_module_names)


def scripts_of(distribution):
    found = metadata.distribution(distribution)
    return {one.name for one in found.entry_points if one.group in ("console_scripts", "gui_scripts")}


def test_the_scripts_that_are_installed_are_taken():
    """Every script of what `verifiers` requires, of ours and of pip, on every system; no other."""
    installed = {name for one in required("verifiers") | {"pip"} for name in scripts_of(one)}
    assert installed
    for name in installed:
        assert all(is_taken_script(name + end) for end in ("", ".exe", ".CMD", "-script.py")), name
    for name in ("my-env", "pythonic", "pipeline", "py-spy", "hubble", "uvicorn"):
        assert not is_taken_script(name)


# --- refusals ---------------------------------------------------------------------------------------------------


def test_a_refusal_names_rule_member_and_next_step():
    """It travels as JSON and comes back; control characters of an archive never reach a terminal."""
    with pytest.raises(RefusedError) as caught:
        refuse("file-name", "it is wrong", member="a\x1b[31m\n")
    told = caught.value.to_dict()
    assert told["message"] == r"a\x1b[31m\n: it is wrong"
    assert told["hint"] == RULES["file-name"].hint
    assert RefusedError.from_dict(told).to_dict() == told
