"""From an author's folder to somebody else's score and back: real commands, real installers, real servers."""

import json
import sys

import pytest

from tests.end_to_end.conftest import Machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

on_sqlite = pytest.mark.parametrize("hub", ["sqlite"], indirect=True)
"""For what is the client's business: the database makes no difference."""


def install(machine, checkout, *arguments):
    """The first `hub install` of a machine whose virtual environment has no such command yet."""
    line = (sys.executable, "-m", "verifiers.cli.hub.main", "install", *arguments, "--python", machine.python)
    return checkout.run(*line)


def test_a_pinned_score_outlives_new_versions(hub, author, user, model, tmp_path):
    """Published, installed from the hub alone, scored; a new version scores otherwise, the pinned one as before; a lock
    brings both package and score to a third machine; a yank shows."""
    first = author.publish("0.1.0", 0.25)
    installed = install(user, author, first)
    assert first in installed.out
    sdk = user.run(user.python, "-c", "import verifiers; print(verifiers.__file__)").out
    assert sdk.startswith(str(user.folder))

    rewards, named = user.score(first, model)
    assert rewards == [1.0, 1.0, 1.0] == author.score("./environments/word_game", model)[0]
    assert (named["name"], named["version"]) == (f"{author.owner.slug}/word-game", "0.1.0")
    assert named["digest"].startswith("sha256:")
    user.command("hub.main", "lock", first)

    second = author.publish("0.2.0", 0.5)
    latest, other = user.score(f"{author.owner.slug}/word-game", model)
    assert latest == [2.0, 2.0, 2.0] and other["version"] == "0.2.0" and other["digest"] != named["digest"]
    assert user.score(second, model) == (latest, other)
    assert user.score(first, model) == (rewards, named)

    third = Machine(tmp_path / "third", hub.url)
    third.venv()
    (third.folder / "pylock.toml").write_bytes((user.folder / "pylock.toml").read_bytes())
    install(third, author, "-r", third.folder / "pylock.toml")
    third.command("hub.main", "verify", "pylock.toml")
    assert third.score(first, model) == (rewards, named)

    with hub.client(author.owner.token) as client:
        body = {"reason": "pays for length", "cause": "broken-reward"}
        client.request("POST", f"/api/v1/{author.owner.slug}/word-game/0.1.0/yank", json=body)
    findings = json.loads(third.command("hub.main", "verify", "--json", code=1).out)["findings"]
    assert [(one["package"], one["code"]) for one in findings] == [(first, "yanked")]
    assert "pays for length" in third.command("hub.main", "install", "-r", "pylock.toml").err


@on_sqlite
def test_an_isolated_environment_comes_from_the_hub_with_its_digest(author, model):
    """Played in a locked virtual environment made for it, and nothing is installed beside the command."""
    first = author.publish("0.1.0", 0.25)
    author.publish("0.2.0", 0.5)
    rewards, named = author.score(first, model, "--isolated")
    assert rewards == [1.0, 1.0, 1.0] and named["name"] == f"{author.owner.slug}/word-game"
    [lock] = author.folder.glob("cache/environments/word-game-*/requirements.lock")
    assert f"--hash={named['digest']}" in lock.read_text()


@on_sqlite
def test_a_run_is_not_continued_with_other_bits(author, user, model):
    """Resuming under another version of the environment names what changed."""
    first, second = author.publish("0.1.0", 0.25), author.publish("0.2.0", 0.5)
    install(user, author, first)
    user.score(first, model)
    [run] = user.folder.glob("outputs/evals/*/*")
    given = ("-m", "m", "-b", model.base_url, "-r", 2, "-n", 3, "-o", "outputs", "-d")
    refused = user.command("eval", second, *given, "--resume", run, code=1)
    assert "another env_id" in refused.err
    user.command("eval", first, *given, "--resume", run)
    assert len((run / "results.jsonl").read_text().splitlines()) == 6
