"""Each rule refuses the file that breaks it, and only warns where it says so; sound files tell of themselves."""

import gzip
import hashlib
import json
import sys

import pytest
from hypothesis import given, settings, strategies as st

from tests.support.archives import (
    make_sdist,
    make_wheel,
    sdist_name,
    sha256_row,
    wheel_name,
    write_sdist,
    write_wheel,
)
from tests.support.raw_tar import gzip_bytes
from tests.support.refused import COMMIT, REFUSED
from verifiers.hub.package.archive_rules import ARCHIVE_RULES
from verifiers.hub.package.facts import FileFacts, Needs, Policy
from verifiers.hub.package.inspect import inspect_file
from verifiers.hub.package.refusal import RULES, RefusedError

WHEEL = wheel_name()
OF_NAMES = {"owner-name"}
"""Rules that no file breaks; tests/hub/package/test_names.py does."""


def inspected(folder, data, filename, policy=None):
    path = folder / "upload"
    path.write_bytes(data)
    return inspect_file(path, filename, policy or Policy())


def wheel(folder, policy=None, *, filename=WHEEL, **content):
    return inspected(folder, make_wheel(**content), filename, policy)


def sdist(folder, policy=None, **content):
    return inspected(folder, make_sdist(**content), sdist_name(), policy)


def codes(facts):
    return [remark.code for remark in facts.warnings]


# --- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.id)
def test_a_broken_rule_is_named(tmp_path, case):
    """With what is wrong, and the rule's hint."""
    with pytest.raises(RefusedError) as caught:
        inspected(tmp_path, case.data(), case.filename, case.policy)
    assert caught.value.code == case.code, caught.value.message
    assert case.says in caught.value.message
    assert caught.value.hint == RULES[case.code].hint


def test_every_rule_is_broken_by_a_test():
    """A rule that nothing triggers is not there. Those on archives are held to the same by their own tests."""
    of_archives = {code for code, *_ in ARCHIVE_RULES}
    refusing = {code for code, rule in RULES.items() if not rule.warns}
    assert refusing - of_archives - OF_NAMES == {case.code for case in REFUSED}
    assert {code for code, rule in RULES.items() if rule.warns} == set(REMARKS)


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_no_change_of_a_wheel_ends_otherwise_than_with_a_verdict(tmp_path_factory, data):
    """Whatever bytes are changed: facts, or a refusal, never another error."""
    whole = bytearray(make_wheel(dist_info={"entry_points.txt": "[console_scripts]\na = demo_env:main\n"}))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    folder = tmp_path_factory.mktemp("changed")
    assert verdict(inspected, folder, bytes(whole), WHEEL) in {"", *RULES}


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_no_change_of_a_source_archive_ends_otherwise_than_with_a_verdict(tmp_path_factory, data):
    """The bytes inside the gzip stream are changed: it would catch the others."""
    whole = bytearray(gzip.decompress(make_sdist()))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    folder = tmp_path_factory.mktemp("changed")
    assert verdict(inspected, folder, gzip_bytes(bytes(whole)), sdist_name()) in {"", *RULES}


def verdict(call, *arguments, **content):
    """The code of the rule that is broken, empty for none."""
    try:
        call(*arguments, **content)
    except RefusedError as error:
        return error.code
    return ""


TOLD = ["METADATA", "WHEEL", "RECORD", "entry_points.txt", "extra_metadata/pyproject.toml"]
TEXTS = st.text(st.characters(codec="utf-8"), max_size=60)


@given(member=st.sampled_from(TOLD), text=TEXTS)
@settings(max_examples=100, deadline=None)
def test_no_text_in_the_metadata_folder_ends_otherwise_than_with_a_verdict(tmp_path_factory, member, text):
    """The files of dist-info may say anything."""
    folder = tmp_path_factory.mktemp("said")
    assert verdict(wheel, folder, dist_info={member: text or "\n"}) in {"", *RULES}


# --- remarks ----------------------------------------------------------------------------------------------------

NEWER_SYNTAX = "def load_environment():\n    return 1\n\nmatch x:\n    case 1 +: pass\n"
REMARKS = {
    "startup-file": {"files": {"demo_env.pth": "import os\n"}},
    "metadata-newer": {"headers": {"Metadata-Version": "2.9"}},
    "metadata-older": {
        "headers": {"Metadata-Version": "2.1", "Requires-Dist": []},
        "tool": '[tool.verifiers.hub]\ndependencies = ["alice/base-env"]\n',
    },
    "module-unread": {"module": NEWER_SYNTAX, "headers": {"Requires-Python": f">3.{sys.version_info.minor}.999"}},
    "star-import": {"module": "from demo_env_parts import *\n", "files": {"demo_env_parts.py": ""}},
}


OF_SDISTS = {"metadata-older"}


@pytest.mark.parametrize("code", REMARKS)
def test_what_is_only_worth_knowing_is_remarked(tmp_path, code):
    """The file passes, and its facts say so."""
    facts = (sdist if code in OF_SDISTS else wheel)(tmp_path, **REMARKS[code])
    assert codes(facts) == [code]
    assert FileFacts.from_dict(json.loads(json.dumps(facts.to_dict()))) == facts


OF_CONTENT = {"record-unlisted", "record-absent", "record-hash", "record-content"}
LENIENT = [case for case in REFUSED if case.code in OF_CONTENT]


@pytest.mark.parametrize("case", LENIENT, ids=lambda case: case.id)
def test_a_lenient_hub_remarks_on_the_content_of_record(tmp_path, case):
    """What is wrong in RECORD's content is then shown on the release."""
    assert codes(inspected(tmp_path, case.data(), case.filename, Policy(strict_record=False))) == [case.code]


@pytest.mark.parametrize("case", [case for case in REFUSED if case.code == "record-form"], ids=lambda case: case.id)
def test_a_lenient_hub_still_wants_a_record_that_can_be_read(tmp_path, case):
    """The form of RECORD is strict everywhere."""
    with pytest.raises(RefusedError) as caught:
        inspected(tmp_path, case.data(), case.filename, Policy(strict_record=False))
    assert caught.value.code == "record-form"


# --- what passes ------------------------------------------------------------------------------------------------


def test_a_wheel_tells_of_itself(tmp_path):
    """Names, digests, metadata and modules; the metadata byte for byte, as the index serves it."""
    told = {
        "Name": "Demo.Env",
        "License-Expression": "MIT",
        "Keywords": "math,single-turn",
        "Project-URL": ["Source, https://example.org"],
        "Requires-Dist": ["verifiers>=0.1", f"base @ git+https://example.org/b.git@{COMMIT}", "x; extra == 'more'"],
        "Provides-Extra": "more",
        "License-File": "LICENSE",
    }
    scripts = "[console_scripts]\ndemo = demo_env:main\n\n[my.plugins]\nSome Name = demo_env.plugin : Thing [more]\n"
    info = {"licenses/LICENSE": "free", "entry_points.txt": scripts}
    path = write_wheel(tmp_path, headers=told, dist_info=info, files={"helper/a.py": "", "data/tasks.json": "{}"})
    facts = inspect_file(path, path.name, Policy(name="demo-env", version="v0.1"))
    assert (facts.name, facts.display_name, facts.version, facts.kind) == ("demo-env", "Demo.Env", "0.1.0", "wheel")
    assert facts.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert facts.blake2b_256 == hashlib.blake2b(path.read_bytes(), digest_size=32).hexdigest()
    assert facts.size == path.stat().st_size
    assert facts.metadata.startswith(b"Metadata-Version: 2.4\nName: Demo.Env\n")
    assert facts.import_names == ["demo_env", "helper"]
    assert facts.direct_urls == [f"base @ git+https://example.org/b.git@{COMMIT}"]
    assert facts.entry_points["console_scripts"] == {"demo": "demo_env:main"}
    assert (facts.license, facts.keywords, facts.extras) == ("MIT", ["math", "single-turn"], ["more"])
    assert facts.readme == "# An environment for tests\n"
    assert facts.tags == ["py3-none-any"]
    assert facts.warnings == []


def test_a_source_archive_tells_of_its_needs(tmp_path):
    """`[tool.verifiers]` of its pyproject, beside the metadata."""
    tool = (
        '[tool.verifiers.needs]\nsecrets = ["KEY"]\nnetwork = true\n'
        '[tool.verifiers.hub]\ndependencies = ["alice/Base.Env>=1.2"]\n'
        '[tool.verifiers.eval]\nnum_examples = 1\n'
    )
    path = write_sdist(tmp_path, tool=tool, headers={"Requires-Dist": ["verifiers", "base-env>=1.2"]})
    facts = inspect_file(path, path.name, Policy())
    assert facts.needs == Needs(secrets=("KEY",), network=True)
    assert facts.hub_dependencies == ["alice/Base.Env>=1.2"]
    assert (facts.kind, facts.import_names, facts.metadata_version) == ("sdist", [], "2.4")
    assert FileFacts.from_dict(json.loads(json.dumps(facts.to_dict()))) == facts


def test_requirements_that_are_made_at_build_time_can_not_be_compared(tmp_path):
    """A source archive may leave them to the wheel (Dynamic)."""
    tool = '[tool.verifiers.hub]\ndependencies = ["alice/base-env"]\n'
    assert sdist(tmp_path, tool=tool, headers={"Dynamic": "Requires-Dist"}).hub_dependencies == ["alice/base-env"]


def test_a_wheel_that_ships_its_project_tells_of_its_needs(tmp_path):
    """As those do that `vf-init` sets up."""
    facts = wheel(tmp_path, dist_info={"extra_metadata/pyproject.toml": "[tool.verifiers.needs]\ngpu = true\n"})
    assert facts.needs == Needs(gpu=True)
    assert wheel(tmp_path).needs is None


@pytest.mark.parametrize("version", "1.0 1.1 1.2 2.1 2.2 2.3 2.4 2.5 2.6".split())
def test_every_released_version_of_the_metadata_is_taken(tmp_path, version):
    """With the fields that 2.5 brought, whether or not the installed packaging knows them."""
    more = {"Import-Name": "demo_env"} if version >= "2.5" else {}
    assert wheel(tmp_path, headers={"Metadata-Version": version, **more}).metadata_version == version


def test_a_private_package_may_have_a_local_version(tmp_path):
    """Nothing public can be mistaken for it."""
    name = wheel_name(version="0.1.0+mine")
    assert wheel(tmp_path, Policy(private=True), version="0.1.0+mine", filename=name).version == "0.1.0+mine"


def test_the_sdk_passes_by_its_own_door(tmp_path):
    """Its name, modules and scripts are reserved for it; nothing else is let off."""
    content = {"name": "verifiers", "filename": wheel_name("verifiers"), "module": None}
    content |= {"files": {"verifiers/__init__.py": "", "hub_server/__init__.py": ""}}
    content |= {"dist_info": {"entry_points.txt": "[console_scripts]\nvf-eval = verifiers.cli.eval:main\n"}}
    facts = wheel(tmp_path, Policy(environment=False), **content)
    assert facts.import_names == ["hub_server", "verifiers"]
    with pytest.raises(RefusedError, match="RECORD"):
        wheel(tmp_path, Policy(environment=False), record=lambda rows: rows[1:], **content)


def test_common_noise_of_tools_passes(tmp_path):
    """Repeated headers of WHEEL, signatures, folders without a row, hashes with padding or better ones."""
    noise = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nRoot-Is-Purelib: true\nTag: py3-none-any\n"

    def better(rows):
        whole = {row[0]: row for row in rows}
        whole["a.txt"][1] = "sha512=" + sha512(b"a")
        whole["b.txt"][1] += "="
        return [row for row in whole.values() if not row[0].endswith(".jws")]

    info = {"WHEEL": noise, "RECORD.jws": "{}"}
    files = {"a.txt": b"a", "b.txt": b"b", "empty/": b""}
    assert wheel(tmp_path, dist_info=info, files=files, record=better).warnings == []


def test_names_that_only_sound_private_pass(tmp_path):
    """Examples, public keys and certificates, source, and a package that is called outputs."""
    names = (
        ".env.example", ".env.local.sample", "demo_env/env.py", "demo_env/credentials.py", "docs/credentials.md",
        ".gitignore", ".gitattributes", ".github/workflows/ci.yml", "keys/id_rsa.pub", "keys/ca.crt", "answers.key",
        "id_rsa_cracking.py", "demo_env/outputs/format.py", "demo_env/evals/a.json", "outputs/__init__.py",
        "outputs/text.py", "venvs/a.txt",
    )  # fmt: skip
    files = dict.fromkeys(names, b"")
    assert codes(sdist(tmp_path, files=files)) == codes(wheel(tmp_path, files=files)) == []


@pytest.mark.parametrize(
    "name", ["demo_env.pth", "demo-env.start", "__editable__.demo_env-0.1.0.pth", "_demo_env.pth", "demo.env-nspkg.pth"]
)
def test_a_startup_file_of_its_own_passes_with_a_remark(tmp_path, name):
    """Whichever way build tools spell the package's name."""
    assert [one.code for one in wheel(tmp_path, files={name: ""}).warnings] == ["startup-file"]


def test_entry_points_as_tools_write_them(tmp_path):
    """Comments, blank lines, carriage returns, blanks around, extras; and data below share/."""
    text = "# made\r\n[console_scripts]\r\ndemo-env = demo_env.cli:main\r\n\n[a.b]\nx y=demo_env : f [fast, gpu]  \n"
    facts = wheel(tmp_path, dist_info={"entry_points.txt": text}, files={"demo_env-0.1.0.data/data/share/a": b""})
    assert facts.entry_points == {
        "console_scripts": {"demo-env": "demo_env.cli:main"}, "a.b": {"x y": "demo_env : f [fast, gpu]"}
    }  # fmt: skip


def sha512(data):
    import base64

    return base64.urlsafe_b64encode(hashlib.sha512(data).digest()).decode()


LOADERS = [
    "# coding: latin-1\ndef load_environment(): ...",
    "del x\nload_environment = 1\ndel load_environment\ndef load_environment(): ...",
    "async def load_environment(): ...",
    "load_environment = lambda: None",
    "a, (load_environment, b) = f()",
    "load_environment: object = 1",
    "from .parts import load_environment",
    "from parts import make as load_environment",
    "if x:\n    pass\nelif y:\n    def load_environment(): ...",
    "try:\n    import a\nexcept ImportError:\n    load_environment = None",
    "try:\n    pass\nfinally:\n    load_environment = None",
    "try:\n    pass\nexcept* ValueError:\n    load_environment = None",
    "with a as b:\n    if c:\n        from d import load_environment",
    "if TYPE_CHECKING:\n    pass\nelse:\n    from d import load_environment",
    "import verifiers as vf\nfrom verifiers import Taskset\ndef load_environment(): ...",
    "x = '\\d'\ndef load_environment(): ...",
]


@pytest.mark.parametrize("source", LOADERS)
def test_a_module_may_bind_the_loader_in_any_of_these_ways(tmp_path, source):
    """What counts is the module's top level, not whose code it is."""
    assert wheel(tmp_path, module=f"{source}\n").warnings == []


def test_the_module_may_be_a_folder_or_lie_in_a_purelib(tmp_path):
    """Wherever it is importable from once installed."""
    source = "from demo_env.main import load_environment\n"
    for place in ("demo_env/__init__.py", "demo_env-0.1.0.data/purelib/demo_env.py"):
        assert wheel(tmp_path, module=None, files={place: source}).import_names == ["demo_env"]


def test_a_readme_of_a_megabyte_and_a_half_passes(tmp_path):
    """It is part of METADATA."""
    assert len(wheel(tmp_path, description="x" * (3 << 19)).readme) == 3 << 19


def test_a_row_for_every_file_is_what_the_builders_write():
    """The helper that makes RECORD agrees with the rule on it."""
    assert sha256_row("a", b"")[1] == "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"
