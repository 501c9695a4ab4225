"""CodeRubric: the parser takes out the program, a sandbox runs it, and no verdict is no score."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from datasets import Dataset
from rubric_states import always, finished

from verifiers.clients.scripted import ScriptedClient
from verifiers.envs.env_group import EnvGroup
from verifiers.envs.singleturn_env import SingleTurnEnv
from verifiers.errors import ConfigError, SandboxCreationError, SandboxSettingsError
from verifiers.grading.code_run import CodeLimits
from verifiers.parsers.parser import Parser
from verifiers.parsers.xml_parser import XMLParser
from verifiers.rubrics.code_rubric import CodeRubric, grading_spec
from verifiers.rubrics.rubric_group import RubricGroup
from verifiers.sandboxes.local.provider import LocalProvider
from verifiers.sandboxes.pool import SandboxPool
from verifiers.sandboxes.sandbox import Provider
from verifiers.types import State

LIMITS = CodeLimits(seconds=1, memory=256, total_seconds=20)
RIGHT = "```python\ndef double(x):\n    return 2 * x\n```"
TESTS = "assert double(1) == 2\nassert double(2) == 4\nassert double(-1) == -2\nassert double(0) == 0"
SCRIPT = "for n in range(3):\n    assert double(n) == n + n"


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def provider() -> AsyncIterator[Provider]:
    async with LocalProvider() as provider:
        yield provider


async def rubric_with(provider: Provider, **options: Any) -> CodeRubric:
    spec = replace(grading_spec(LIMITS), isolation=(await provider.capabilities()).isolation)
    return CodeRubric(provider=provider, limits=LIMITS, spec=spec, **options)


async def graded(rubric: CodeRubric, reply: str, **task: Any) -> State:
    state = finished(reply, **task)
    await rubric.score_rollout(state)
    return state


async def test_program_is_run_and_told_about(provider: Provider):
    """All or nothing is the reward; the share, the number and the time-outs are metrics; the record says why."""
    rubric = await rubric_with(provider)
    state = await graded(rubric, f"<think>```python\n1```</think>So:\n{RIGHT}", info={"tests": TESTS})
    assert state["reward"] == 1.0
    assert state["metrics"] == {"correct_code": 1.0, "pass_rate": 1.0, "tests_run": 4.0, "timeouts": 0.0}
    state = await graded(rubric, RIGHT.replace("2 * x", "x * x if x != 2 else 1/0"), info={"tests": TESTS})
    assert state["reward"] == 0.0 and state["metrics"]["pass_rate"] == 0.25 and state["error"] is None
    assert state["code_grade"]["first_failure"]["test"] == "assert double(1) == 2"


async def test_partial_credit_is_the_share(provider: Provider):
    """With `partial` the reward is the share of the tests that passed."""
    rubric = await rubric_with(provider, partial=True)
    state = await graded(rubric, RIGHT.replace("2 * x", "abs(2 * x)"), info={"tests": TESTS})
    assert state["reward"] == 0.75


async def test_tests_come_from_info_or_answer(provider: Provider):
    """`info["tests"]`, a row of a published data set as `info`, or the answer."""
    rubric = await rubric_with(provider)
    stdin = "```py\nprint(2 * int(input()))\n```"
    assert (await graded(rubric, RIGHT, answer=TESTS))["reward"] == 1.0
    assert (await graded(rubric, RIGHT, info={"test_list": [TESTS], "task_id": 1}))["reward"] == 1.0
    assert (await graded(rubric, stdin, info={"inputs": ["4\n"], "outputs": ["8\n"]}, answer="x"))["reward"] == 1.0


@pytest.mark.parametrize("reply", ["", "def double(x): return 2 * x", "```bash\nls\n```", "<think>" + RIGHT])
async def test_no_program_is_zero(provider: Provider, reply: str):
    """Text without a Python block after the thinking is no program."""
    state = await graded(await rubric_with(provider), reply, info={"tests": TESTS})
    assert state["reward"] == 0.0 and state["code_grade"]["verdict"] == "no_answer"


async def test_unfit_tests_and_broken_sandboxes_are_no_score(provider: Provider):
    """Tests that can not be read, or fail by themselves, and a platform that fails leave the rollout unscored."""
    rubric = await rubric_with(provider)
    for tests, words in (("asert f(", "cannot be read"), ("import no_such_module_\n" + SCRIPT, "fail by themselves")):
        state = await graded(rubric, RIGHT, info={"tests": tests})
        assert state["reward"] is None and words in str(state["scoring_errors"])

    class Broken(LocalProvider):
        async def create(self, spec: Any) -> Any:
            raise SandboxCreationError("no room")

    rubric.provider = Broken()
    state = await graded(rubric, RIGHT, info={"tests": TESTS})
    assert state["reward"] is None and "no room" in str(state["scoring_errors"])


async def test_many_that_need_two_sandboxes_do_not_wait_for_each_other():
    """Test code takes a second sandbox; with room for three, eight gradings at once all come to an end."""
    async with SandboxPool(LocalProvider(), max_alive=3) as pool:
        rubric = await rubric_with(pool, at_a_time=8)
        states = [finished(RIGHT, info={"tests": SCRIPT}) for _ in range(8)]
        await rubric.score_group(states)
        assert [state["reward"] for state in states] == [1.0] * 8
        assert pool.stats().used == 0


async def test_unknown_arguments_are_refused():
    """A misspelt argument is an error that names the near one; those of Rubric and of a subclass are known."""

    class Own(CodeRubric):
        def __init__(self, level: int = 1, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.level = level

    for rubric in (CodeRubric, Own):
        with pytest.raises(ConfigError, match="'partail'") as raised:
            rubric(partail=True)
        assert raised.value.hint == "Did you mean 'partial'?"
        assert rubric(partial=True, parallelize_scoring=False).partial
    assert Own(level=2, weights=[]).level == 2


async def test_given_functions_and_parsers():
    """correct_code follows the given functions; the environment's parser is used if it takes out an answer."""
    rubric = CodeRubric([always(1, "own")], [0.5])
    assert rubric.get_reward_func_names() == ["own", "correct_code", "pass_rate", "tests_run", "timeouts"]
    assert rubric.get_reward_weights() == [0.5, 1.0, 0.0, 0.0, 0.0]
    rubric.bind_parser(Parser())
    assert rubric.parser.parse(RIGHT) == "def double(x):\n    return 2 * x\n"
    parser = XMLParser(["answer"])
    rubric.bind_parser(parser)
    assert rubric.parser is parser


@pytest.mark.parametrize(("named", "said"), [("dokcer", "dokcer"), ("unix:nothere.sock", r"nothere\.sock")])
async def test_a_provider_that_is_not_there_ends_the_run_before_the_model_is_asked(monkeypatch, named, said):
    """Programs would be paid for, and no one of them graded; groups of rubrics and of environments ask, too."""
    # In an event loop of its own: that of this file's tests has a provider already.
    monkeypatch.setenv("VF_SANDBOX_PROVIDER", named)
    asked = []
    tasks = Dataset.from_list([{"question": "double", "answer": TESTS}])
    env = SingleTurnEnv(dataset=tasks, rubric=RubricGroup([CodeRubric()]))
    group = EnvGroup([env])
    client = ScriptedClient(lambda request: asked.append(request) or RIGHT)
    with pytest.raises(SandboxSettingsError, match=said):
        await asyncio.to_thread(asyncio.run, group.evaluate(client, "m", num_examples=1))
    assert not asked
