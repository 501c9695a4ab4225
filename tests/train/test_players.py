"""Environments for training: found, loaded with the tasks of a split, played here or in workers."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.mock_openai import MockOpenAI, chat
from tests.support.play import FunctionClient
from verifiers.clients.rendering import Rendered
from verifiers.errors import ConfigError, DatasetError, EnvironmentNotFoundError, ModelError
from verifiers.evals.lookup import FoundEnvironment
from verifiers.rollouts.source import GroupSource, RolloutRequest
from verifiers.train.config import EnvironmentConfig
from verifiers.train.environments import find
from verifiers.train.players import Served, opened, options_of
from verifiers.types import ClientConfig

NUMBERS = count()

SUMS = """
import verifiers as vf


def load_environment(only_eval: bool = False, sampling_args=None, grouped: bool = False):
    def right(completion, answer):
        return float(completion[-1]["content"] == answer)

    rows = [{"question": f"q{n}", "answer": f"q{n}"} for n in range(4)]
    few = [{"question": "e", "answer": "e"}]
    data = {"dataset": None if only_eval else rows, "eval_dataset": few, "sampling_args": sampling_args}
    env = vf.SingleTurnEnv(rubric=vf.Rubric(funcs=[right]), **data)
    return vf.EnvGroup([vf.EnvGroup([env])]) if grouped else env
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


ASKED: dict[str, tuple[dict[str, object], str]] = {
    "argument": ({"top_p": 0.9}, "top_p=0.9 is refused"),
    "body": ({"extra_body": {"top_k": 20}}, "top_k=20 is refused"),
    "chat": ({"response_format": {"type": "json_object"}}, "response_format is one of chat routes"),
    "unknown": ({"extra_body": {"stpo": ["x"]}}, "no sampling argument 'stpo'"),
}
PLACES: dict[str, dict[str, object]] = {
    "here": {},
    "in-a-group": {"args": {"grouped": True}},
    "in-a-group-in-a-worker": {"workers": 1, "args": {"grouped": True}},
}


@pytest.mark.parametrize(
    ("place", "asked"),
    [("here", one) for one in ASKED] + [("in-a-group", one) for one in ASKED]
    + [("in-a-group-in-a-worker", "body")],
)  # fmt: skip
async def test_an_environment_that_asks_for_what_no_policy_gives_is_refused(sums: str, place: str, asked: str) -> None:
    """Wherever it is played, and whichever child of a group asks: before anything is sampled, since each rollout would
    fail. What changes nothing may stand there, and what the run sets itself."""
    wishes = {"top_p": 1.0, "max_tokens": 8, "temperature": 0.3, "stop": ["x"], "timeout": 5}
    options = {"id": sums, **PLACES[place]}
    refused, said = ASKED[asked]
    served = Served(FunctionClient(), "m", ClientConfig(api_base_url="http://127.0.0.1:9/v1", api_key_var="NONE"))

    async def play(sampling_args: dict[str, object]) -> int:
        args = {**dict(options.get("args", {})), "sampling_args": sampling_args}  # type: ignore[call-overload]
        config = EnvironmentConfig(**{**options, "args": args})  # type: ignore[arg-type]
        async with opened(config, find(config), served, {}, options_of(0, 0)) as playing:
            return len(playing.rows)

    if place in ("here", "in-a-group"):
        assert await play(wishes) == 4
    with pytest.raises(ConfigError, match=f"sampling_args of the environment {sums}: .*{said}") as raised:
        await play({**wishes, **refused})
    assert raised.value.hint


class Template:
    """A renderer whose template refuses what it is told to."""

    def __init__(self, refuses: str) -> None:
        self.refuses = refuses

    async def render(self, messages: list[Any], tools: Any, arguments: Any) -> Rendered:
        if self.refuses in str(messages):
            raise ModelError("the chat template refuses the messages", hint="Look at it.")
        return Rendered("", [], None)

    async def ids(self, text: str) -> list[int]:
        return []


async def test_a_policy_whose_template_can_not_write_a_prompt_is_refused(sums: str) -> None:
    """Before anything is sampled."""
    config = EnvironmentConfig(id=sums)
    served = Served(FunctionClient(), "m", renderer=Template("q0"))
    with pytest.raises(ConfigError, match=f"{sums} can not be played: the chat template refuses"):
        async with opened(config, find(config), served, {}, options_of(0, 0)):
            pass
    served = Served(FunctionClient(), "m", renderer=Template("nothing"))
    async with opened(config, find(config), served, {}, options_of(0, 0)) as playing:
        assert len(playing.rows) == 4
