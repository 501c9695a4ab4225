"""`hub search`, `info`, `versions`, `inspect` and `diff`, against a running hub."""

import json

import pytest

from tests.support.archives import write_wheel
from tests.support.stored import stored
from verifiers.cli.hub.main import run
from verifiers.hub.terminal import printable


@pytest.fixture(scope="module")
def owner(sqlite_hub):
    """An owner with a project of three releases, and one with a near name."""
    slug = sqlite_hub.owner().slug
    with stored(sqlite_hub) as store:
        store.release(f"{slug}/base", "1.0")
        store.release(
            f"{slug}/ladder", "0.1", summary="Words on \x1b[31msteps", module="a = 1\n",
            requires_dist=["base>=1", "numpy>=1"],
        )  # fmt: skip
        store.release(
            f"{slug}/ladder", "0.2", summary="Words on steps", module="a = 2\n", files={"ladder_data.txt": "eins\n"},
            requires_dist=["base>=1", "numpy>=2"], needs=[f"{slug}/base>=1"],
            facts={"needs": {"secrets": ["SEARCH_KEY"], "network": True}, "license": "MIT"},
        )  # fmt: skip
        store.release(f"{slug}/ladder", "0.3rc1")
        store.yank(f"{slug}/ladder", "0.1", "counts steps twice", "broken-reward")
    return slug


@pytest.fixture
def hub_command(sqlite_hub, capsys, monkeypatch):
    """Run `hub …` and return its exit code, stdout and stderr."""
    monkeypatch.setenv("VF_HUB_URL", sqlite_hub.url)

    def command(*arguments):
        code = run(list(arguments))
        return code, *capsys.readouterr()

    return command


def test_search_prints_a_table_or_one_object(hub_command, owner):
    """Best hits first, each with its latest version."""
    code, out, _ = hub_command("search", owner, "lad")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()] == [["project", "latest"], [f"{owner}/ladder", "0.2"]]
    code, out, _ = hub_command("search", owner, "--json", "--limit", "1")
    told = json.loads(out)
    assert (len(told["hits"]), told["more"]) == (1, True)


def test_search_without_a_hit_says_so_and_is_no_failure(hub_command, owner):
    """On stderr; stdout stays empty for a pipe."""
    code, out, err = hub_command("search", "no-such-thing-anywhere")
    assert (code, out) == (0, "")
    assert "nothing on" in err


def test_versions_are_listed_newest_first_with_their_state(hub_command, owner):
    """Id, digest, and what is special about each."""
    _, out, _ = hub_command("versions", f"{owner}/ladder")
    lines = out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == [f"{owner}/ladder@{version}" for version in ("0.3rc1", "0.2", "0.1")]
    assert lines[0].endswith("pre-release")
    assert lines[1].endswith("latest")
    assert lines[2].endswith("yanked, broken-reward: counts steps twice")
    assert "sha256:" in lines[0]


def test_info_is_a_card_with_ways_to_install_safest_first(hub_command, sqlite_hub, owner):
    """The release that an unpinned id means; no line gives pip two indexes."""
    code, out, _ = hub_command("info", f"{owner}/ladder")
    assert code == 0
    assert out.startswith(f"{owner}/ladder@0.2  sha256:")
    for text in ("secret SEARCH_KEY, network", "base>=1, numpy>=2", "MIT", f"{owner}/base>=1"):
        assert text in out
    places = [
        out.index(line)
        for line in (
            f"hub install {owner}/ladder@0.2",
            f'uv pip install "ladder==0.2" --index {sqlite_hub.url}/{owner}/ladder/simple/',
            "[[tool.uv.index]]",
            "pip install -r pylock.toml",
        )
    ]
    assert places == sorted(places)
    assert "extra-index-url" not in out
    told = json.loads(hub_command("info", f"{owner}/ladder", "--json")[1])
    assert (told["id"], told["latest"], len(told["install"])) == (f"{owner}/ladder@0.2", "0.2", 4)


def test_info_of_a_yanked_release_warns_and_shows_nothing_that_steers_a_terminal(hub_command, owner):
    """The reason with its class; control characters of a summary are shown as escapes."""
    _, out, err = hub_command("info", f"{owner}/ladder@0.1")
    assert f"{owner}/ladder@0.1 is yanked (broken-reward): counts steps twice" in err
    assert "latest is 0.2" in out
    assert "\x1b[31m" not in out
    assert r"Words on \x1b[31msteps" in out


@pytest.mark.parametrize(
    ("id", "hint"), [("laddre", "/ladder?"), ("ladder@9", "hub versions"), ("ladder>=1", "hub versions")]
)
def test_what_is_not_there_names_what_is(hub_command, owner, id, hint):
    """A near name, or where the versions are listed; exit code 1."""
    code, out, err = hub_command("info", f"{owner}/{id}")
    assert (code, out) == (1, "")
    assert hint in err


def test_a_name_of_an_unknown_owner_finds_who_has_it(hub_command, owner):
    """The near misses of a search take over where the owner has none."""
    code, _, err = hub_command("versions", "nobody-has-this/ladder")
    assert code == 1
    assert f"{owner}/ladder" in err


def test_inspect_lists_the_files_and_prints_one(hub_command, owner):
    """The text alone is on stdout, so that it can be piped."""
    _, out, err = hub_command("inspect", f"{owner}/ladder@0.2")
    assert "ladder_data.txt" in out
    assert f"{owner}/ladder@0.2 sha256:" in err
    code, out, err = hub_command("inspect", f"{owner}/ladder", "ladder_data.txt")
    assert (code, out, err) == (0, "eins\n", "")
    code, _, err = hub_command("inspect", f"{owner}/ladder", "absent.txt")
    assert code == 1
    assert "hub inspect" in err
    assert "Did you mean ladder_data.txt?" in hub_command("inspect", f"{owner}/ladder", "lader_data.txt")[2]


def test_diff_takes_ids_or_a_version(hub_command, owner):
    """Files with their diffs, dependencies, needs."""
    _, out, _ = hub_command("diff", f"{owner}/ladder@0.1", "0.2")
    assert 0 <= out.find("ladder.py") < out.find(".dist-info/METADATA"), out
    for text in (
        "+  ladder_data.txt", "-a = 1\n+a = 2", "- dependency numpy>=1", "+ dependency numpy>=2",
        f"+ hub dependency {owner}/base>=1", "~ needs: nothing → secrets=SEARCH_KEY, network=True",
    ):  # fmt: skip
        assert text in out
    told = json.loads(hub_command("diff", f"{owner}/ladder@0.1", f"{owner}/ladder@0.2", "--json")[1])
    assert (told["before"], told["after"]) == (f"{owner}/ladder@0.1", f"{owner}/ladder@0.2")
    _, out, _ = hub_command("diff", f"{owner}/ladder@0.1", "0.2", "--stat")
    assert "-a = 1" not in out


def test_a_local_wheel_is_compared_with_a_release(hub_command, owner, tmp_path):
    """By the same code, on this machine, either way round; two projects are compared here, too."""
    wheel = write_wheel(tmp_path, "ladder", "0.3", headers={"Requires-Dist": ["base>=1", "numpy>=3"]})
    code, out, err = hub_command("diff", f"{owner}/ladder@0.2", str(wheel))
    assert code == 0
    assert "+ dependency numpy>=3" in out
    assert "ladder.py" in out
    assert "→ ladder-0.3-py3-none-any.whl" in err
    _, out, _ = hub_command("diff", str(wheel), f"{owner}/ladder@0.2", "--json")
    assert "numpy>=3" in json.loads(out)["dependencies"]["removed"]
    _, out, _ = hub_command("diff", f"{owner}/ladder@0.2", f"{owner}/base", "--json")
    assert json.loads(out)["after"] == f"{owner}/base@1.0"
    code, _, err = hub_command("diff", f"{owner}/ladder@0.2", "absent.whl")
    assert (code, "there is no file absent.whl" in err) == (2, True)


def test_control_and_direction_characters_are_shown_as_escapes():
    """Also those that turn the direction of writing around; letters of every script stay."""
    assert printable("zwölf\x1b]0;x\x07\u202e\n", keep="\n") == "zwölf\\x1b]0;x\\x07\\u202e\n"
