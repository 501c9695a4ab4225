"""Nothing of a hub shadows a public package, and none of those shadows what the hub has: with real uv and pip,
and a second index that has an impostor of everything.
"""

import contextlib
import http.server
import threading

import httpx
import pytest

from tests.support.archives import make_wheel, wheel_name
from tests.support.hub import running_hub
from tests.support.hub_rows import HubRows


@pytest.fixture
def hub(sqlite_hub):
    """One database is enough: what is tested is what installers choose."""
    return sqlite_hub


@pytest.fixture
def public(tmp_path):
    """A second index, as the public one: it has an impostor of whatever is asked for, version 9.0."""

    def page(name):
        wheel = make_wheel(name, "9.0", {"impostor.py": ""}, headers={"Requires-Dist": None})
        return wheel_name(name, "9.0"), wheel

    class Impostor(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            part = self.path.strip("/").split("/")[-1]
            if part.endswith(".whl"):
                body, kind = page(part.split("-")[0].replace("_", "-"))[1], "application/octet-stream"
            else:
                file = page(part)[0]
                body, kind = f'<a href="/files/{file}">{file}</a>'.encode(), "text/html"
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_HEAD(self):
            self.do_GET()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Impostor) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/simple/"
        server.shutdown()


@pytest.fixture
def demo(hub, rows, sdk):
    """An environment that needs the SDK and a package of the public index: its name and its own index."""
    owner, name = rows.owner().slug, rows.name("demo")
    headers = {"Requires-Dist": ["verifiers>=0.1", "from-public"]}
    rows.release(owner, name, "1.0", headers=headers, wheel=make_wheel(name, "1.0", headers=headers))
    return name, f"{hub.url}/{owner}/{name}/simple/"


def installed(installers, python):
    """Versions by name, of what an environment has."""
    listed = installers.uv("pip", "list", "--python", python, "--format", "freeze")
    return dict(line.split("==") for line in listed.out.splitlines())


@pytest.mark.parametrize("pin", ["", "==1.0"])
def test_uv_takes_the_hubs_package_and_sdk_and_the_rest_elsewhere(installers, demo, public, pin):
    """`--index SCOPED`: the hub's packages come from the hub although the other index has higher versions."""
    name, scoped = demo
    python = installers.venv()
    ended = installers.uv(
        "pip", "install", "--python", python, "--default-index", public, "--index", scoped, f"{name}{pin}"
    )
    assert ended.code == 0, ended.said
    assert installed(installers, python) == {name: "1.0", "verifiers": "1.0.0", "from-public": "9.0"}


def test_a_projects_index_block_does_the_same(installers, demo, public, tmp_path):
    """`[[tool.uv.index]]` with the package's index before the default, in a lock."""
    name, scoped = demo
    (tmp_path / "pyproject.toml").write_text(
        f'[project]\nname = "mine"\nversion = "0"\nrequires-python = ">=3.11"\ndependencies = ["{name}"]\n'
        f'[[tool.uv.index]]\nname = "hub"\nurl = "{scoped}"\n'
        f'[[tool.uv.index]]\nname = "public"\nurl = "{public}"\ndefault = true\n'
    )
    ended = installers.uv("lock", "--project", tmp_path, UV_NO_CONFIG="false")
    assert ended.code == 0, ended.said
    lock = (tmp_path / "uv.lock").read_text()
    assert f'name = "{name}"\nversion = "1.0"\nsource = {{ registry = "{scoped}" }}' in lock
    assert f'name = "verifiers"\nversion = "1.0.0"\nsource = {{ registry = "{scoped}" }}' in lock
    assert f'name = "from-public"\nversion = "9.0"\nsource = {{ registry = "{public}" }}' in lock


def test_pip_with_two_indexes_takes_the_impostor(installers, demo, public):
    """Why no recipe of ours has `--extra-index-url`: pip merges the indexes and takes the highest version."""
    name, scoped = demo
    python = installers.venv()
    ended = installers.pip(python, "install", "--index-url", scoped, "--extra-index-url", public, name)
    assert ended.code == 0, ended.said
    assert installed(installers, python)[name] == "9.0"


def test_pip_with_hashed_addresses_takes_what_they_name(hub, installers, http, demo, public):
    """Both files by their addresses: the right ones, the rest from the public index; a wrong hash is refused."""
    name, scoped = demo
    urls = []
    for one in (name, "verifiers"):
        file = http.get(f"{scoped}{one}/").json()["files"][0]
        urls.append(f"{hub.url}{file['url']}#sha256={file['hashes']['sha256']}")
    python = installers.venv()
    ended = installers.pip(python, "install", "--index-url", public, *urls)
    assert ended.code == 0, ended.said
    assert installed(installers, python) == {name: "1.0", "verifiers": "1.0.0", "from-public": "9.0"}
    wrong = installers.pip(installers.venv("other"), "install", "--index-url", public, urls[0][:-4] + "0000")
    assert wrong.code != 0
    assert "do not match the hashes" in wrong.said.lower()


# --- one index for pip ---------------------------------------------------------------------------------------------


@pytest.fixture
def full(tmp_path, public):
    """The one index for pip of a package that needs both, on a hub that names the second index as its upstream."""
    with running_hub(tmp_path / "data", upstream_index=public) as hub, contextlib.closing(HubRows(hub)) as rows:
        owner = rows.owner()
        headers = {"Requires-Dist": ["verifiers>=0.1", "from-public"]}
        wheel = make_wheel("demo-env", "1.0", headers=headers)
        facts = {"hub_dependencies": [f"{owner.slug}/secret"]}
        rows.release(owner.slug, "demo-env", "1.0", wheel=wheel, headers=headers, facts=facts)
        rows.release(owner.slug, "secret", "1.0", visibility="private")
        alone = {"Requires-Dist": None}
        sdk = make_wheel("verifiers", "1.0.0", {"verifiers/__init__.py": ""}, module=None, headers=alone)
        rows.release("sdk", "verifiers", "1.0.0", wheel=sdk, headers=alone)
        yield f"{hub.url}/{owner.slug}/demo-env/full/simple/"


def test_pip_with_the_full_index_takes_the_right_ones(installers, full):
    """One index: the hub's names from the hub although the other has higher versions, the rest from there."""
    python = installers.venv()
    ended = installers.pip(python, "install", "--index-url", full, "demo-env")
    assert ended.code == 0, ended.said
    assert installed(installers, python) == {"demo-env": "1.0", "verifiers": "1.0.0", "from-public": "9.0"}


def test_no_name_of_the_hub_is_sent_elsewhere(full, public):
    """Neither the package, nor the SDK, nor a dependency that the caller may not see; for a stranger nothing is."""
    with httpx.Client() as client:
        found = {name: client.get(f"{full}{name}/") for name in ("demo-env", "verifiers", "secret", "numpy")}
        assert {name: answer.status_code for name, answer in found.items()} == {
            "demo-env": 200, "verifiers": 200, "secret": 404, "numpy": 302,
        }  # fmt: skip
        assert found["numpy"].headers["location"] == f"{public}numpy/"
        assert client.get(f"{full}Num_Py").headers["location"].endswith("/full/simple/num-py/")
        absent = full.replace("demo-env", "absent")
        assert client.get(f"{absent}absent/").status_code == 401
        assert client.get(f"{absent}numpy/").status_code == 404


def test_without_an_upstream_there_is_no_full_index(demo):
    """A hub whose operator has named no other index answers 404 for all of it."""
    name, scoped = demo
    full = scoped.replace("/simple/", "/full/simple/")
    with httpx.Client() as client:
        assert {client.get(url).status_code for url in (full, f"{full}{name}/", f"{full}numpy/")} == {404}
