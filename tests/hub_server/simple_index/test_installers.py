"""The real uv and pip against an index of the hub."""

import datetime as dt
import re

import pytest

from hub_server.database import now
from hub_server.packages.service import project_of
from tests.support.archives import make_wheel

NO_NEEDS = {"Requires-Dist": None}


@pytest.fixture
def hub(sqlite_hub):
    """One database is enough: what is tested is how installers read the pages."""
    return sqlite_hub


@pytest.fixture
def add(rows):
    """A function that releases versions of a package without dependencies, and returns owner and name."""

    def add(*versions, owner=None, name=None, requires_python=">=3.11", **more):
        owner, name = owner or rows.owner(), name or rows.name()
        for version in versions:
            headers = {**NO_NEEDS, "Requires-Python": requires_python}
            wheel = make_wheel(name, version, headers=headers)
            rows.release(
                owner.slug, name, version, wheel=wheel, headers=headers, requires_python=requires_python, **more
            )
        return owner, name

    return add


def own_index(hub, owner, name, credentials=""):
    """The package's index."""
    base = hub.url.replace("http://", f"http://{credentials}")
    return f"{base}/{owner.slug}/{name}/simple/"


def version_of(installers, python, name):
    listed = installers.uv("pip", "list", "--python", python, "--format", "freeze").out
    return dict(line.split("==") for line in listed.split()).get(name)


@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_hashes_are_required_and_right(hub, installers, add, tool):
    """`uv pip compile --generate-hashes` reads them off the page; both tools check what they install against them."""
    owner, name = add("1.0")
    url = own_index(hub, owner, name)
    (asked := installers.folder / "asked.in").write_text(name)
    compiled = installers.uv("pip", "compile", "--quiet", "--generate-hashes", "--default-index", url, asked)
    assert compiled.code == 0, compiled.said
    right, count = re.subn("--hash=sha256:[0-9a-f]{64}", lambda found: found[0], compiled.out)
    assert count == 1
    for number, text in enumerate((right, re.sub("[0-9a-f]{64}", "0" * 64, right))):
        python = installers.venv(f"venv{number}")
        (locked := installers.folder / f"locked{number}.txt").write_text(text)
        line = ("install", "--require-hashes", "--index-url", url, "-r", locked)
        if tool == "uv":
            ended = installers.uv("pip", *line, "--python", python)
        else:
            ended = installers.pip(python, *line)
        assert (ended.code == 0) is (text is right), ended.said


def test_a_lock_has_sizes_and_upload_times(hub, installers, add, tmp_path):
    """`uv lock` and a `pylock.toml` name address, size, hash and upload time of the file; both install."""
    owner, name = add("1.0")
    url = own_index(hub, owner, name)
    (tmp_path / "pyproject.toml").write_text(
        f'[project]\nname = "mine"\nversion = "0"\nrequires-python = ">=3.11"\ndependencies = ["{name}"]\n'
    )
    locked = installers.uv("lock", "--project", tmp_path, "--default-index", url)
    assert locked.code == 0, locked.said
    lock = (tmp_path / "uv.lock").read_text()
    for part in (f'url = "{hub.url}/files/{owner.slug}/{name}/', "size = ", 'hash = "sha256:', "upload-time = "):
        assert part in lock
    pylock = tmp_path / "pylock.toml"
    compiled = installers.uv(
        "pip", "compile", "--quiet", "--default-index", url, tmp_path / "pyproject.toml", "-o", pylock
    )
    assert compiled.code == 0, compiled.said
    for part in ("upload-time = ", "size = ", "sha256 = "):
        assert part in pylock.read_text()
    python = installers.venv()
    synced = installers.uv("pip", "sync", "--python", python, pylock)
    assert synced.code == 0, synced.said
    assert version_of(installers, python, name) == "1.0"


def test_a_cutoff_in_time_counts_from_the_push(hub, installers, publishers, tmp_path):
    """`--exclude-newer` a moment before the push finds nothing, a moment after it the release."""
    owner = hub.owner()
    name = "cutoff-env"
    (tmp_path / "dist").mkdir()
    wheel = tmp_path / "dist" / "cutoff_env-1.0-py3-none-any.whl"
    wheel.write_bytes(make_wheel(name, "1.0", headers=NO_NEEDS))
    before = now()
    assert publishers.uv_publish(hub.url, owner.token, wheel).code == 0
    after = now() + dt.timedelta(seconds=1)
    found = []
    for moment in (before, after):
        python = installers.venv(f"venv{len(found)}")
        found.append(installers.uv(
            "pip", "install", "--python", python, "--default-index", own_index(hub, owner, name), name,
            "--exclude-newer", moment.isoformat(),
        ))  # fmt: skip
    assert found[0].code == 1
    assert "exclude-newer" in found[0].said
    assert "missing an upload date" not in found[0].said + found[1].said
    assert found[1].code == 0, found[1].said


def test_pip_downloads(hub, installers, add):
    """`pip download` takes the newest file from the index of an owner."""
    owner, name = add("1.0", "1.1", sdist=True)
    python = installers.venv()
    into = installers.folder / "downloads"
    ended = installers.pip(python, "download", "--index-url", f"{hub.url}/{owner.slug}/simple/", "-d", into, name)
    assert ended.code == 0, ended.said
    assert [path.name for path in into.iterdir()] == [f"{name.replace('-', '_')}-1.1-py3-none-any.whl"]


@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_a_yanked_release_is_passed_over(hub, installers, rows, add, tool):
    """Unpinned the older one is taken; pinned it installs, with the reason as a warning."""
    owner, name = add("1.0", "2.0")
    with rows.change(owner.slug, name) as project:
        yanked = next(release for release in project.releases if release.given_version == "2.0")
        yanked.yanked_at, yanked.yank_reason, yanked.yank_class = now(), "pays twice", "broken-reward"
    url = own_index(hub, owner, name)
    for asked, version in ((name, "1.0"), (f"{name}==2.0", "2.0")):
        python = installers.venv(f"venv{version}")
        if tool == "uv":
            ended = installers.uv("pip", "install", "--python", python, "--default-index", url, asked)
        else:
            ended = installers.pip(python, "install", "--index-url", url, asked)
        assert ended.code == 0, ended.said
        assert version_of(installers, python, name) == version
        assert ("pays twice" in ended.said) is (version == "2.0")


def test_a_release_with_nothing_but_yanks_says_why(hub, installers, rows, add):
    """uv's refusal has the reason."""
    owner, name = add("1.0")
    with rows.change(owner.slug, name) as project:
        project.releases[0].yanked_at, project.releases[0].yank_reason = now(), "leaks the answers"
    ended = installers.uv(
        "pip", "install", "--python", installers.venv(), "--default-index", own_index(hub, owner, name), name
    )
    assert ended.code == 1
    assert "leaks the answers" in ended.said


def test_a_release_for_another_python_is_passed_over(hub, installers, add):
    """Both tools take the newest release that runs here, by what the page says of each file."""
    owner, name = add("1.0")
    add("2.0", owner=owner, name=name, requires_python=">=3.99")
    url = own_index(hub, owner, name)
    for number, install in enumerate((installers.uv, installers.pip)):
        python = installers.venv(f"venv{number}")
        if install == installers.uv:
            ended = install("pip", "install", "--python", python, "--default-index", url, name)
        else:
            ended = install(python, "install", "--index-url", url, name)
        assert ended.code == 0, ended.said
        assert version_of(installers, python, name) == "1.0"


def _in_the_address(installers, hub, owner, name):
    return own_index(hub, owner, name, f"__token__:{owner.token}@"), {}


def _in_netrc(installers, hub, owner, name):
    netrc = installers.folder / "home" / ".netrc"
    netrc.write_text(f"machine 127.0.0.1 login __token__ password {owner.token}\n")
    netrc.chmod(0o600)
    return own_index(hub, owner, name), {}


def _in_variables(installers, hub, owner, name):
    login = {"UV_INDEX_HUB_USERNAME": "__token__", "UV_INDEX_HUB_PASSWORD": owner.token}
    return f"hub={own_index(hub, owner, name)}", login


@pytest.mark.parametrize(
    ("tool", "login"),
    [("uv", _in_the_address), ("pip", _in_the_address), ("uv", _in_netrc), ("pip", _in_netrc), ("uv", _in_variables)],
)
def test_a_private_package_installs_with_a_token(hub, installers, add, tool, login):
    """Page, METADATA and file, however the installer is given the token."""
    owner, name = add("1.0", visibility="private")
    url, variables = login(installers, hub, owner, name)
    python = installers.venv()
    if tool == "uv":
        line = ("pip", "install", "--python", python, "--default-index", url, name)
        ended = installers.uv(*line, **variables)
    else:
        ended = installers.pip(python, "install", "--index-url", url, name)
    assert ended.code == 0, ended.said
    assert version_of(installers, python, name) == "1.0"


def test_without_a_token_uv_says_that_it_needs_one(hub, installers, add):
    """The package's own index answers 401, which uv turns into advice about credentials."""
    owner, name = add("1.0", visibility="private")
    ended = installers.uv(
        "pip", "install", "--python", installers.venv(), "--default-index", own_index(hub, owner, name), name
    )
    assert ended.code != 0
    assert "401" in ended.said


def test_a_hidden_name_does_not_stop_the_search(hub, installers, add):
    """On the owner's index it is a 404, so uv goes on to the next index, which has it."""
    owner, name = add("1.0", visibility="private")
    other, _ = add("3.0", name=name)
    ended = installers.uv(
        "pip", "install", "--python", (python := installers.venv()), name,
        "--default-index", own_index(hub, other, name), "--index", f"{hub.url}/{owner.slug}/simple/",
    )  # fmt: skip
    assert ended.code == 0, ended.said
    assert version_of(installers, python, name) == "3.0"


def test_uv_publish_skips_what_the_index_has(hub, installers, rows, add, tmp_path):
    """`--check-url` compares the advertised hash: the same file is skipped, other bytes are an error."""
    owner, name = add("1.0")
    with rows.database.read() as session:
        file = project_of(session, owner.slug, name).releases[0].files[0]
        wheel = tmp_path / file.filename
        wheel.write_bytes(b"".join(rows.storage.read(file.sha256)))
    flags = ["--check-url", f"{hub.url}/{owner.slug}/simple/"]
    same = installers.uv_publish(hub.url, owner.token, wheel, flags=flags)
    assert same.code == 0, same.said
    assert "already exists" in same.said.lower() or "skipping" in same.said.lower()
    wheel.write_bytes(make_wheel(name, "1.0", description="other"))
    other = installers.uv_publish(hub.url, owner.token, wheel, flags=flags)
    assert other.code != 0
