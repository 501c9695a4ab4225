"""Environments for training: found, loaded with the tasks of a split, played here or in workers."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from tests.support.mock_openai import MockOpenAI, chat
from tests.support.play import FunctionClient
from verifiers.errors import ConfigError, DatasetError, EnvironmentNotFoundError
from verifiers.evals.lookup import FoundEnvironment
from verifiers.rollouts.source import GroupSource, RolloutRequest
from verifiers.train.config import EnvironmentConfig
from verifiers.train.environments import find, loaded
from verifiers.train.players import Served, opened, options_of
from verifiers.types import ClientConfig

NUMBERS = count()

SUMS = """
import verifiers as vf


def load_environment(only_eval: bool = False, sampling_args=None):
    def right(completion, answer):
        return float(completion[-1]["content"] == answer)

    rows = [{"question": f"q{n}", "answer": f"q{n}"} for n in range(4)]
    few = [{"question": "e", "answer": "e"}]
    data = {"dataset": None if only_eval else rows, "eval_dataset": few, "sampling_args": sampling_args}
    return vf.SingleTurnEnv(rubric=vf.Rubric(funcs=[right]), **data)
"""


@pytest.fixture
def sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An environment of four tasks to learn from, and one for evaluation, of a name of its own."""
    name = f"sums_{next(NUMBERS)}"
    folder = tmp_path / "environments" / name
    folder.mkdir(parents=True)
    (folder / f"{name}.py").write_text(SUMS)
    (folder / "pyproject.toml").write_text(f'[project]\nname = "{name}"\nversion = "0.2.0"\n')
    monkeypatch.chdir(tmp_path)
    return name


@pytest.mark.parametrize("workers", [0, 1], ids=["here", "in-a-worker"])
async def test_tasks_to_learn_from_are_played(sums: str, workers: int) -> None:
    """The same tasks, rewards and digest wherever it is played, with the turns in the records."""
    config = EnvironmentConfig(id=sums, workers=workers, max_tasks=3)

    def answer(request):
        return chat(request.json["messages"][-1]["content"])

    with MockOpenAI(answer) as server:
        served = Served(FunctionClient(), "m", ClientConfig(api_base_url=server.base_url, api_key_var="NONE"))
        async with (
            opened(config, find(config), served, {"max_tokens": 8}, options_of(0, 0)) as playing,
            GroupSource(playing.rows, lambda request: playing.player) as source,
        ):
            assert len(source.task_ids) == 3
            await source.submit(RolloutRequest(source.task_ids[1], "g", 2))
            result = await anext(source.results())
    assert (playing.ref.name, playing.ref.version) == (sums, "0.2.0")
    assert str(playing.ref.digest).startswith("tree:")
    for member in result.members:
        assert member.record is not None and member.record["reward"] == 1.0
        assert len(member.record["trajectory"]) == 1


async def test_the_evaluation_tasks_are_others(sums: str) -> None:
    """Of the split that is asked for."""
    config = EnvironmentConfig(id=sums)
    served = Served(FunctionClient(), "m")
    async with opened(config, find(config), served, {}, options_of(0, 0), split="eval") as playing:
        assert [row["answer"] for row in playing.rows] == ["e"]


def test_a_hub_is_asked_first(sums: str, tmp_path: Path) -> None:
    """Whoever gets environments from a hub is told the id and whether it is to be isolated; it may have none."""
    asked = []
    release = FoundEnvironment("owner/name@1.0", tmp_path, "1.0", False)

    def prepare(env_id: str, isolated: bool) -> FoundEnvironment | None:
        asked.append((env_id, isolated))
        return release if "/" in env_id else None

    assert find(EnvironmentConfig(id="owner/name@1.0", isolated=True), prepare) is release
    assert find(EnvironmentConfig(id=sums), prepare).env_id == sums
    assert asked == [("owner/name@1.0", True), (sums, False)]


async def test_nothing_to_learn_from_is_an_error(sums: str) -> None:
    """With where such an environment belongs."""
    config = EnvironmentConfig(id=sums, args={"only_eval": True})
    with pytest.raises(DatasetError, match="no tasks to learn from") as raised:
        async with opened(config, find(config), Served(FunctionClient(), "m"), {}, options_of(0, 0)):
            pass
    assert "eval.environments" in raised.value.hint
    with pytest.raises(EnvironmentNotFoundError):
        find(EnvironmentConfig(id="nowhere-at-all"))


@pytest.mark.parametrize("asked", [{"top_p": 0.9}, {"extra_body": {"top_k": 20}}], ids=["argument", "body"])
def test_an_environment_that_cuts_the_distribution_is_refused(sums: str, asked: dict[str, object]) -> None:
    """Before anything is sampled, since every rollout would fail; what changes nothing may stand there."""
    wishes = {"top_p": 1.0, "max_tokens": 8}
    config = EnvironmentConfig(id=sums, args={"sampling_args": wishes})
    assert loaded(config, find(config)).rows
    config = EnvironmentConfig(id=sums, args={"sampling_args": {**wishes, **asked}})
    with pytest.raises(ConfigError, match=r"top_[pk] in its sampling_args"):
        loaded(config, find(config))
