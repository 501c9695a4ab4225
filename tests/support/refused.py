"""A file for every rule on what wheels and source archives hold, each broken in that one way.

    for case in REFUSED: inspect_file(…, case.data(), case.policy) raises RefusedError with case.code

The rules on archives as such have theirs in tests/hub/package/test_zip_walk.py and test_tar_walk.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.archives import make_sdist, make_wheel, metadata_bytes, sdist_name, sha256_row, wheel_name
from verifiers.hub.package.facts import Policy
from verifiers.hub.package.paths import Limits

COMMIT = "0123456789abcdef0123456789abcdef01234567"
EMPTY = sha256_row("", b"")[1]
LENIENT = Policy(strict_record=False)
DATA = "demo_env-0.1.0.data"
WHEEL, SDIST = wheel_name(), sdist_name()


@dataclass(frozen=True)
class Case:
    """A file that the rule `code` refuses. `says` stands in the message."""

    code: str
    says: str
    data: Callable[[], bytes]
    filename: str = WHEEL
    policy: Policy = field(default_factory=Policy)

    @property
    def id(self) -> str:
        return f"{self.code}: {self.says}"


def wheel(code: str, says: str, *, filename: str = WHEEL, policy: Policy | None = None, **content: Any) -> Case:
    return Case(code, says, lambda: make_wheel(**content), filename, policy or Policy())


def sdist(code: str, says: str, *, filename: str = SDIST, policy: Policy | None = None, **content: Any) -> Case:
    return Case(code, says, lambda: make_sdist(**content), filename, policy or Policy())


def headers(code: str, says: str, **told: Any) -> Case:
    """A wheel whose METADATA says other things."""
    return wheel(code, says, headers={name.replace("_", "-"): value for name, value in told.items()})


def metadata(code: str, says: str, data: bytes) -> Case:
    return wheel(code, says, dist_info={"METADATA": data})


def module(code: str, says: str, source: str) -> Case:
    return wheel(code, says, module=source)


def tool(code: str, says: str, table: str) -> Case:
    """A source archive whose pyproject ends with this."""
    return sdist(code, says, tool=table)


def record(code: str, says: str, change: Callable[[list[list[str]]], list[list[str]]]) -> Case:
    return wheel(code, says, record=change)


def entries(code: str, says: str, text: str) -> Case:
    return wheel(code, says, dist_info={"entry_points.txt": text})


def tags(says: str, *lines: str) -> Case:
    text = "Wheel-Version: 1.0\n" + "".join(f"Tag: {line}\n" for line in lines)
    return wheel("wheel-tags", says, dist_info={"WHEEL": text})


PLAIN = metadata_bytes("demo-env", "0.1.0", None, "")
NAMES = [
    wheel("file-name", "'demo_env-0.1.0-py3-none-any.whl'", filename="Demo.Env-0.1.0-py3-none-any.whl"),
    wheel("file-name", "is no file name of a wheel", filename="demo_env-0.1.0.whl"),
    sdist("file-name", "those end in .tar.gz", filename="demo_env-0.1.0.zip"),
    wheel("version", "is no version", policy=Policy(version="one")),
    wheel("project-name", "is no name", policy=Policy(name="demo env")),
    wheel("form", "says 'other' as name", policy=Policy(name="other")),
    wheel("form", "says '0.1.1' as version", policy=Policy(version="0.1.1")),
    wheel("local-version", "'0.1.0+mine'", version="0.1.0+mine", filename=wheel_name(version="0.1.0+mine")),
    wheel("reserved-name", "'yaml' is the name of a module of pyyaml", name="yaml", filename=wheel_name("yaml")),
    sdist("reserved-name", "Python's standard library", name="json", filename=sdist_name("json")),
    wheel("reserved-name", "'verifiers' is the name", name="verifiers", filename=wheel_name("verifiers")),
    wheel("reserved-name", "a word of the hub's addresses", name="full", filename=wheel_name("full")),
    wheel("file-size", "bytes, more than 1,000", policy=Policy(limits=Limits(file_bytes=1000))),
]
FOLDERS = [
    wheel("dist-info", "other-9.dist-info", files={"other-9.dist-info/METADATA": "Name: other\n"}),
    wheel("dist-info", "other-9.dist-info", files={"other-9.dist-info/": b""}),
    wheel("dist-info", "Other-9.DIST-INFO", files={"Other-9.DIST-INFO/x": b""}),
    wheel("dist-info", "there is: demo_env-0.1.0.dist-info", filename=wheel_name(version="0.1.1")),
    wheel("dist-info", "requests-99.egg-info", files={"requests-99.egg-info/PKG-INFO": b""}),
    wheel("dist-info", "requests-99.egg-info", files={"requests-99.egg-info": b""}),
    wheel("dist-info", "requests-99.dist-info.", files={"requests-99.dist-info./METADATA": b""}),
    wheel("dist-info", "requests.egg-link", files={"requests.egg-link": b""}),
    wheel("dist-info", "an installer writes it", dist_info={"direct_url.json": "{}"}),
    wheel("dist-info", "an installer writes it", dist_info={"Installer": "pip"}),
    wheel("dist-info", "take it for entry_points.txt", dist_info={"Entry_Points.TXT": ""}),
    wheel("data-folder", "over another file of the wheel, demo_env.py", files={f"{DATA}/purelib/demo_env.py": b""}),
    wheel("data-folder", "over another file", files={f"{DATA}/platlib/Demo_Env.py": b""}),
    wheel("data-folder", "over another", files={f"{DATA}/platlib/a.py": b"", f"{DATA}/purelib/a.py": b""}),
    wheel("data-folder", "into the metadata", files={f"{DATA}/purelib/demo_env-0.1.0.dist-info/METADATA": b""}),
    wheel("data-folder", "into the metadata", files={f"{DATA}/platlib/other-9.egg-info": b""}),
    wheel("data-folder", "must be called demo_env-0.1.0.data", files={"other-9.data/purelib/x.py": b""}),
    wheel("data-folder", "is in none of", files={"demo_env-0.1.0.data/elsewhere/x.py": b""}),
    wheel("data-folder", "is in none of", files={"demo_env-0.1.0.data/purelib": b""}),
    *(
        wheel("data-folder", "among modules, programs or settings", files={f"{DATA}/data/{path}": b""})
        for path in ("lib/python3.11/site-packages/json.py", "Lib/Site-Packages/x.py", "bin/python", "pyvenv.cfg")
        + ("lib64/python3.11/json.py", "Lib/json.py", "pip.conf", "PIP.INI.", "python311._pth", "python3.dll", "sbin/x")
    ),
    wheel("data-folder", "belong below share/", files={f"{DATA}/data/etc/profile.d/a.sh": b""}),
    wheel("wheel-file", "there is no", dist_info={"WHEEL": None}),
    wheel("wheel-file", "Wheel-Version is '2.0'", dist_info={"WHEEL": "Wheel-Version: 2.0\nTag: py3-none-any\n"}),
    wheel("wheel-file", "Wheel-Version is ''", dist_info={"WHEEL": "Tag: py3-none-any\n"}),
    wheel("wheel-file", "is not UTF-8", dist_info={"WHEEL": b"\xff"}),
    tags("has the tags none"),
    tags("'' is no tag", ""),
    tags("'py3-none' is no tag", "py3-none"),
    tags("'py3-none-any-x' is no tag", "py3-none-any-x"),
    tags("'py3.-none-any' is no tag", "py3.-none-any"),
    tags("py2-none-any, py3-none-any", "py2.py3-none-any"),
    tags("stands for more than", "-".join([".".join("abcdefgh")] * 3)),
]
SCRIPTS = [
    entries("entry-point", "before the first [group]", "a = b:c\n"),
    entries("entry-point", "the name is there twice", "[console_scripts]\na = b:c\na = b:d\n"),
    entries("entry-point", "the group is there twice", "[a]\nb = c:d\n[a]\n"),
    entries("entry-point", "is not name = target", "[a]\nb\n"),
    entries("entry-point", "the name is none", "[console_scripts]\n../../evil = b:c\n"),
    entries("entry-point", "the name is none", "[my.plugins]\na/b = b:c\n"),
    entries("entry-point", "the target is not", "[console_scripts]\na = b:c()\n"),
    entries("entry-point", "the target is not", "[console_scripts]\na = /bin/sh\n"),
    entries("entry-point", "the target is not", "[console_scripts]\na =\n"),
    entries("entry-point", "the group is no", "[my plugins]\na = b:c\n"),
    # what one reader takes for a script named pip, and another for a comment, another group or a part of a value
    entries("entry-point", "end the line within it", "[console_scripts]\n# a\u2028pip = demo_env:main\n"),
    entries("entry-point", "end the line within it", "[console_scripts]\n# a\rpip = demo_env:main\n"),
    entries("entry-point", "the name is none", "[console_scripts]\n;pip = demo_env:main\n"),
    entries("entry-point", "the group is no", "[console_scripts]\na = b:c\n[d] = e:f\npip = demo_env:main\n"),
    entries("entry-point", "the group is no", "[[console_scripts]]\npip = demo_env:main\n"),
    entries("entry-point", "it is indented", "[a]\nx = b:c\n [console_scripts]\npip = demo_env:main\n"),
    entries("script-name", "twice", "[console_scripts]\na = b:c\n[gui_scripts]\nA = d:e\n"),
    wheel(
        "script-name",
        "the script 'a' twice",
        files={"demo_env-0.1.0.data/scripts/a": "#!python"},
        dist_info={"entry_points.txt": "[console_scripts]\nA = b:c\n"},
    ),
    *(
        wheel("script-name", "would replace one", files={f"demo_env-0.1.0.data/scripts/{name}": "#!python"})
        for name in ("pip.bat", "pip3-script.py", "python3.11-config", "Deactivate.bat", "tqdm", "wheel")
    ),
    *(
        entries("script-name", "would replace one", f"[console_scripts]\n{name} = demo_env:main\n")
        for name in ("python3", "pip", "UV", "vf-eval", "hub", "activate", "python3.12.exe")
    ),
    wheel("script-name", "would replace one", files={"demo_env-0.1.0.data/scripts/python": "#!python"}),
    wheel("script-name", "is no name of a script", files={"demo_env-0.1.0.data/scripts/a/b": "#!python"}),
]
RECORDS = [
    wheel("record-missing", "there is no", dist_info={"RECORD": None}),
    wheel("record-form", "is not UTF-8", dist_info={"RECORD": b"\xff"}),
    wheel("record-form", "is no CSV", dist_info={"RECORD": 'a"b,"c"d,e\n"'}),
    record("record-form", "has two rows", lambda rows: rows + rows[:1]),
    record("record-form", "not path, hash and size", lambda rows: [rows[0][:2], *rows[1:]]),
    record("record-form", "a size is no number", lambda rows: [[*rows[0][:2], "-1"], *rows[1:]]),
    record("record-form", "a hash can not be read", lambda rows: [[rows[0][0], "sha256=Ä", "1"], *rows[1:]]),
    record("record-form", "can not be read", lambda rows: [*rows[:-1], [rows[-1][0], "x\u2028../evil,,", ""]]),
    *(
        wheel("record-form", path, policy=LENIENT, record=lambda rows, path=path: [*rows, [path, "", ""]])
        for path in ("../../evil", "/etc/passwd", "a?b")
    ),
    record("record-unlisted", "demo_env.py", lambda rows: rows[1:]),
    record("record-absent", "ghost.py", lambda rows: rows + [sha256_row("ghost.py", b"")]),
    record("record-hash", "is none", lambda rows: [[rows[0][0], "", ""], *rows[1:]]),
    record("record-hash", "is 'md5'", lambda rows: [[rows[0][0], "md5=AAAAAAAAAAAAAAAAAAAAAA", "1"], *rows[1:]]),
    record("record-hash", "is 'sha256'", lambda rows: [[rows[0][0], "sha256=AAAA", "1"], *rows[1:]]),
    record("record-content", "another one", lambda rows: [[rows[0][0], EMPTY, rows[0][2]], *rows[1:]]),
    record("record-content", "RECORD says 7 bytes", lambda rows: [[*rows[0][:2], "7"], *rows[1:]]),
    record("record-content", "another one", lambda rows: [[rows[0][0], f"sha512={'A' * 86}", rows[0][2]], *rows[1:]]),
]
METADATA = [
    wheel("metadata-missing", "there is no", dist_info={"METADATA": None}),
    sdist("metadata-missing", "there is no", without=["PKG-INFO"]),
    metadata("metadata-text", "is not UTF-8", PLAIN + b"\xff"),
    metadata("metadata-text", "holds a NUL", PLAIN + b"\0"),
    metadata("metadata-text", "is larger than", PLAIN + b"#" * (4 << 20)),
    *(
        metadata("metadata-text", "a line is no header", PLAIN.replace(b"\n\n", f"{more}\n\n".encode()))
        for more in ("\nRequires-Dist : evil", "\nnothing", "\rRequires-Dist: evil", "\u2028Requires-Dist: evil")
    ),
    metadata("metadata-text", "a line is no header", b" x\n" + PLAIN),
    metadata("metadata-text", "a line is no header", b"\xef\xbb\xbf" + PLAIN),
    headers("metadata-text", "Content-Type is a header of mails", Content_Type="multipart/mixed; boundary=x"),
    headers("metadata-text", "a header of mails", Content_Transfer_Encoding="base64"),
    headers("metadata-text", "more than 10,000 headers", Classifier=["x"] * 10_001),
    headers("metadata-text", "200 different", **{f"x{number}": "" for number in range(201)}),
    headers("metadata-field", "summary is longer", Summary="x" * 513),
    headers("metadata-field", "requires-python is longer", Requires_Python=",".join([">=3"] * 200)),
    headers("metadata-field", "too large for installers", Requires_Python=f">={'1' * 19}"),
    headers("metadata-field", "too large", Requires_Dist=[f"numpy>={'1' * 5_000}"]),
    headers("metadata-field", "too large", Requires_Dist=[f"numpy; python_version > '{'1' * 19}'"]),
    headers("metadata-field", "Exceeds the limit", Version="1" * 5_000),
    wheel("version", "more than 18 digits", filename=f"demo_env-{'1' * 19}-py3-none-any.whl"),
    headers("metadata-version", "there is no Metadata-Version", Metadata_Version=None),
    headers("metadata-version", "'2.0'", Metadata_Version="2.0"),
    headers("metadata-version", "'3.0'", Metadata_Version="3.0"),
    sdist("metadata-version", "'2.0'", headers={"Metadata-Version": "2.0"}),
    headers("metadata-field", "there is no Name", Name=None),
    headers("metadata-field", "there is no Version", Version=None),
    headers("metadata-field", "Name is there more than once", Name=["demo-env", "demo-env"]),
    headers("metadata-field", "Requires-Python is there more than once", Requires_Python=[">=3", ">=4"]),
    headers("metadata-field", "'numpy>'", Requires_Dist=["numpy>"]),
    headers("metadata-field", "requires-python", Requires_Python="three"),
    headers("metadata-field", "license-expression", License_Expression="Free as in beer"),
    headers("metadata-field", "description-content-type", Description_Content_Type="text/html"),
    headers("metadata-field", "license-file", License_File="../LICENSE"),
    headers("metadata-name", "Name is 'other-env'", Name="other-env"),
    headers("metadata-release", "Version is '0.4.0'", Version="0.4.0"),
    sdist("metadata-release", "Version is '0.4.0'", headers={"Version": "0.4.0"}),
    *(
        headers("direct-url", says, Requires_Dist=[f"base-env @ {url}"])
        for url, says in (
            ("git+https://example.org/a.git", "no full commit"),
            ("git+https://example.org/a.git@main", "no full commit"),
            (f"git+https://example.org/a.git@{COMMIT[:12]}", "no full commit"),
            (f"git+http://example.org/a.git@{COMMIT}", "is neither"),
            ("https://example.org/a-1.0-py3-none-any.whl", "has no hash"),
            ("https://example.org/a-1.0-py3-none-any.whl#sha256=12", "has no hash"),
            ("https://example.org/a-1.0-py3-none-any.whl#md5=0123456789abcdef0123456789abcdef", "has no hash"),
            (f"https://me:secret@example.org/a-1.0.tar.gz#sha256={'a' * 64}", "holds a password"),
            (f"http://example.org/a-1.0.tar.gz#sha256={'a' * 64}", "is neither"),
            ("file:///tmp/a-1.0.tar.gz", "is neither"),
            ("https://[::1/a.whl", "is no address"),
        )
    ),
    headers("license-file", "License-File LICENSE is not", License_File="LICENSE"),
    sdist("license-file", "License-File LICENSE is not", headers={"License-File": "LICENSE"}),
]
NO_LOADER = "def main():\n    return 1\n"
ENVIRONMENTS = [
    *(
        wheel("import-clash", says, files={path: b""})
        for path, says in (
            ("json.py", "the module json is one of Python's standard library"),
            ("Numpy/extra.txt", "the module numpy is one of numpy"),
            ("verifiers/rubrics/mine.py", "the module verifiers is one of verifiers"),
            ("demo_env-0.1.0.data/purelib/httpx/__init__.py", "the module httpx is one of httpx"),
            ("_yaml.cpython-311-x86_64-linux-gnu.so", "the module _yaml is one of pyyaml"),
            ("distutils/__init__.py", "Python's standard library"),
            ("sitecustomize.py", "Python's standard library"),
            ("\u017fix.py", "the module six is one of six"),
            ("six.PY", "the module six is one of six"),
            ("six.py.", "the module six is one of six"),
            ("pip/extra.py", "the module pip is one of pip"),
            ("_virtualenv.py", "the module _virtualenv is one of virtualenv"),
            ("__editable___verifiers_finder.py", "an editable installation"),
        )
    ),
    *(
        wheel("bytecode", "in place of source", files={path: b""})
        for path in ("__pycache__/six.cpython-311.pyc", "demo_env/__PYCACHE__/a.cpython-311.pyc")
        + (f"{DATA}/purelib/__pycache__/typing_extensions.cpython-311.pyc",)
    ),
    *(
        wheel("startup-name", "may be another package's", files={path: b""})
        for path in ("distutils-precedence.pth", "demo.start", "demo_env2.pth", f"{DATA}/platlib/_Virtualenv.PTH")
    ),
    *(
        make("private-file", f"{path}: {why}", files={path: b""})
        for make, path, why in (
            (sdist, ".env", "a file of this name holds secrets"),
            (sdist, "demo_env/.ENV.local", "a file of this name holds secrets"),
            (wheel, "demo_env/.env", "a file of this name holds secrets"),
            (wheel, f"{DATA}/data/share/demo/credentials.json", "a file of this name holds secrets"),
            (sdist, ".netrc", "a file of this name holds secrets"),
            (sdist, ".pypirc", "a file of this name holds secrets"),
            (sdist, "keys/server.pem", "a file of this name holds secrets"),
            (sdist, "keys/id_rsa_deploy", "a file of this name holds secrets"),
            (sdist, "keys/id_ed25519", "a file of this name holds secrets"),
            (sdist, "client_secret_12.apps.json", "a file of this name holds secrets"),
            (sdist, ".aws/config", "a file of this name holds secrets"),
            (sdist, "outputs/evals/demo--m/1/results.jsonl", "it lies where runs keep their results"),
            (sdist, "outputs/log.txt", "it lies where runs keep their results"),
            (wheel, "demo_env/outputs/evals/a.jsonl", "it lies where runs keep their results"),
            (sdist, ".git/config", "it belongs to a checkout or to its virtual environment"),
            (sdist, "vendor/.git", "it belongs to a checkout or to its virtual environment"),
            (sdist, ".venv/bin/python", "it belongs to a checkout or to its virtual environment"),
            (sdist, "env/pyvenv.cfg", "it belongs to a checkout or to its virtual environment"),
            (sdist, "demo_env/__pycache__/a.pyc", "it belongs to a checkout or to its virtual environment"),
        )
    ),
    wheel("load-module", "holds demo, other", module=None, files={"demo.py": NO_LOADER, "other/a.py": ""}),
    wheel("load-module", "holds no module", module=None),
    wheel("load-module", "holds demo_env", module=None, files={"demo_env/main.py": NO_LOADER}),
    module("module-source", "it is no Python", "def load_environment(:\n"),
    module("module-source", "too many nested parentheses", f"x = {'(' * 50_000}{')' * 50_000}\n"),
    module("module-source", "it is larger than", "#" * ((4 << 20) + 1)),
    wheel("module-source", "it is no Python", module=None, files={"demo_env.py": b"x = '\xff'\n"}),
    wheel("module-source", "it is no Python", module=None, files={"demo_env.py": b"x = 1\0\n"}),
    *(
        module("module-source", f"the encoding {name} is none of", f"# coding: {name}\ndef load_environment(): ...\n")
        for name in ("utf-7", "punycode", "idna", "unicode_escape")
    ),
    module("load-environment", "deletes load_environment", "def load_environment(): ...\ndel load_environment\n"),
    module("load-environment", "binds no load_environment", NO_LOADER),
    module("load-environment", "binds no load_environment", "class A:\n    def load_environment(self): ...\n"),
    module("load-environment", "binds no load_environment", "def f():\n    load_environment = 1\n"),
    module("load-environment", "binds no load_environment", "load_environment: object\n"),
    module("load-environment", "binds no load_environment", "import load_environment.x\n"),
    module("load-environment", "binds no load_environment", "from a import load_environment as other\n"),
    module(
        "load-environment",
        "binds no load_environment",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a import load_environment\n",
    ),
    module("newer-api", "verifiers.Taskset", "from verifiers import Taskset\nclass Mine(Taskset): ...\n"),
    module("newer-api", "verifiers.Env", "import verifiers as vf\nclass Mine(vf.Env): ...\n"),
    module("newer-api", "verifiers.v1", "import verifiers.v1 as vf\nclass Mine(vf.Taskset): ...\n"),
    wheel(
        "newer-api",
        "verifiers.Harness, verifiers.v1",
        module=None,
        files={
            "demo_env/__init__.py": "from demo_env.mine import Mine\n__all__ = ['Mine']\n",
            "demo_env/mine.py": "from verifiers.v1 import Task\nimport verifiers as v\nclass Mine(v.Harness): ...\n",
            "demo_env/broken.py": "def (\n",
        },
    ),
    module("inspection-failed", "too deep", "if a:\n    b\n" + "elif a:\n    b\n" * 2_000),
    module("inspection-failed", "too deep", f"x = {'-' * 200_000}1\n"),
    module("inspection-failed", "too deep", "x = a" + ".a" * 50_000 + "\n"),
]
PROJECTS = [
    sdist("pyproject", "holds no pyproject.toml", without=["pyproject.toml"]),
    tool("pyproject", "is no valid TOML", "[tool"),
    tool("pyproject", "more than 500 dots", f"x{'.x' * 501} = 1\n"),
    sdist("pyproject", "tool is no table", pyproject="tool = 1\n"),
    tool("pyproject", "needs is no table", "[tool.verifiers]\nneeds = 1\n"),
    tool("pyproject", "has no key 'secret'; did you mean secrets?", "[tool.verifiers.needs]\nsecret = ['A']\n"),
    tool("pyproject", "has no key 'x'; there are dependencies", "[tool.verifiers.hub]\nx = 1\n"),
    wheel("pyproject", "is no valid TOML", dist_info={"extra_metadata/pyproject.toml": "["}),
    tool("needs", "secrets must be", "[tool.verifiers.needs]\nsecrets = 'A'\n"),
    tool("needs", "secrets must be", "[tool.verifiers.needs]\nsecrets = ['A=1']\n"),
    tool("needs", "network must be true or false", "[tool.verifiers.needs]\nnetwork = 'yes'\n"),
    tool("hub-dependency", "must be a list", "[tool.verifiers.hub]\ndependencies = 'alice/base'\n"),
    tool("hub-dependency", "is not owner/name", "[tool.verifiers.hub]\ndependencies = ['base-env>=1']\n"),
    tool("hub-dependency", "is no name for an owner", "[tool.verifiers.hub]\ndependencies = ['Al ice/base-env']\n"),
    tool("hub-dependency", "is not owner/name", "[tool.verifiers.hub]\ndependencies = ['alice/base[x]>=1']\n"),
    tool("hub-dependency", "more than once", "[tool.verifiers.hub]\ndependencies = ['alice/a', 'bob/A>1']\n"),
    tool("hub-dependency", "is not among", "[tool.verifiers.hub]\ndependencies = ['alice/base-env>=1']\n"),
    sdist(
        "hub-dependency",
        "ask for other versions",
        tool="[tool.verifiers.hub]\ndependencies = ['alice/base-env>=1']\n",
        headers={"Requires-Dist": ["verifiers", "base_env>=2"]},
    ),
]
REFUSED = NAMES + FOLDERS + SCRIPTS + RECORDS + METADATA + ENVIRONMENTS + PROJECTS
