"""A family of broken environments: each differs from the sound one in one thing, and gets exactly that finding."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.toy_environments import CARD, PROJECT, SOUND, Environments, by_check, found
from verifiers.validation.checks import CHECKS, PROCESS
from verifiers.validation.findings import Status


def source(base: str, *pairs: tuple[str, str]) -> dict[str, str]:
    """What to write: a sound environment with texts replaced, each of which must be there."""
    for old, new in pairs:
        assert old in base, old
        base = base.replace(old, new)
    return {"source": base}


def sound(*pairs: tuple[str, str]) -> dict[str, str]:
    return source(SOUND, *pairs)


def reward(value: str) -> dict[str, str]:
    """The sound environment with another reward for the reply `text`."""
    return sound(("return float(text.strip() == answer)", f"return {value}"))


def rows(text: str) -> dict[str, str]:
    """The sound environment with another row for each number n."""
    return sound(('{"question": f"What is {n} + {n}?", "answer": str(2 * n)}', text))


def rubric(text: str, *more: tuple[str, str]) -> dict[str, str]:
    return sound(("rubric=vf.Rubric([right])", f"rubric={text}"), *more)


def project(old: str, new: str) -> dict[str, str]:
    assert old in PROJECT
    return {"project": PROJECT.replace(old, new)}


def card(old: str, new: str) -> dict[str, str]:
    assert old in CARD
    return {"card": CARD.replace(old, new)}


def function(text: str) -> tuple[str, str]:
    """One more function of the module."""
    return ("def tasks", f"{text}\n\n\ndef tasks")


NO_ORACLE = SOUND.partition("def oracle")[0]
TOOL = function('def look_up(number: int) -> str:\n    """Look a number up."""\n    return str(number)')
TOOLS = sound(
    TOOL,
    (
        "    return vf.SingleTurnEnv(\n        ",
        "    env = vf.ToolEnv(\n        tools=[look_up], ",
    ),
    ("\n    )\n", "\n    )\n    # more\n    return env\n"),
)["source"]
GAME = sound(
    function(
        "class Game(vf.MultiTurnEnv):\n    # more\n"
        "    async def env_response(self, messages, state):\n        return [vf.UserMessage('Again.')]"
    ),
    ("vf.SingleTurnEnv(\n        ", "Game(\n        max_turns=2, "),
)["source"]
RETURN = "    return vf.SingleTurnEnv("
ROW = '{"question": f"What is {n} + {n}?", "answer": str(2 * n), %s}'
SETTING = "\n[tool.verifiers.validate]\nmax_rewards = 1\n"
FINE = function("def fine(completion, answer):\n    return 1.0")
TURNS = function("def num_turns(state):\n    return 0.0")
ANSWERED = """@vf.stop
    async def answered(self, state):
        steps = state["trajectory"]
        return bool(steps) and steps[-1]["completion"][-1]["content"].isdigit()
"""
LUCK = """async def setup_state(self, state):
        state["luck"] = next(COUNT)
        return state
"""
SLEEPS = "    if len(text) > 90_000:\n        time.sleep(1000)\n    return float("
WAITS = "        await __import__('asyncio').sleep(1000 * ('N/A' == messages[-1]['content']))\n"
NOISE = '0.3 * (len(text) < 200 and set("bcd") <= set(text) and not set("aeiou") & set(text))'

Case = tuple[str, dict[str, Any], str]
"""The check, what is written, and a part of what is found."""

CASES: list[Case] = [
    # project and card
    ("project", {"project": ""}, "no pyproject.toml"),
    ("project", {"project": PROJECT + SETTING}, "'max_rewards'"),
    ("version", project("0.1.0", "one"), "'one'"),
    ("version", project('version = "0.1.0"', ""), "no version"),
    ("dependencies", project("verifiers>=0.1", "httpx"), "verifiers is not among"),
    ("dependencies", project(">=0.1", '>=0.1", "== what'), "no requirement"),
    ("verifiers-pin", project(">=0.1", ">=0.1,<0.2"), "<0.2"),
    ("card", {"card": None}, "no README.md"),
    ("card", card("## Reward", "## Else"), "Reward"),
    ("card-arguments", card("`count`", "`counts`"), "counts"),
    ("undeclared-imports", sound(function("def later():\n    import hypothesis")), "hypothesis"),
    ("borrowed-imports", sound(function("def later():\n    import orjson")), "orjson"),
    # import and load
    ("import", sound(function("1 / 0")), "ZeroDivisionError"),
    ("import", sound(function("raise SystemExit(3)")), "SystemExit"),
    ("import", sound(function("from verifiers import Taskset")), "newer API"),
    ("import", sound(function("from openai import no_such_name")), "no_such_name"),
    ("arguments", sound(("count: int = 8", "count")), "missing a required argument: 'count'"),
    ("arguments", sound(("def load_environment", "def load")), "no load_environment"),
    ("load", sound((RETURN, f"    raise OSError('disk')\n{RETURN}")), "disk"),
    ("load", sound((RETURN, "    return dict(")), "returned dict"),
    ("load-warnings", rubric("vf.Rubric([right]), sytem_prompt='Add.'"), "sytem_prompt"),
    # data
    ("data", rows('{"text": "q", "answer": "a"}'), "neither"),
    ("data", sound(("for n in range(first, last)", "for n in range(0)")), "no rows"),
    ("data", sound(("eval_dataset=tasks(200, 200 + count)", "eval_dataset=tasks(200, 201).select([])"),
                   ("return [{", "return datasets.Dataset.from_list([{"), ("(first, last)]", "(first, last)])"),
                   ("import verifiers", "import datasets\nimport verifiers")), "eval: there are no rows"),
    ("data", sound(("dataset=tasks(100, 100 + count)", "dataset=lambda: 1 / 0")), "ZeroDivisionError"),
    ("prompts", rows('{"question": "" if n == 101 else str(n), "answer": str(2 * n)}'), "row 1"),
    ("info", rows(ROW % '"info": "[1, 2]"'), "info is a list"),
    ("answers", rows('{"question": str(n), "answer": "" if n == 103 else str(2 * n)}'), "is empty (row 3)"),
    ("example-ids", rows(ROW % '"example_id": n // 2'), "4 of 8 rows"),
    ("duplicates", sound(("in range(first, last)", "in [first, *range(first, last)]")), "rows 0 and 1"),
    ("overlap", sound(("tasks(200, 200 + count)", "tasks(107, 107 + count)")), "row 0"),
    # rubric and tools
    ("reward-arguments", rubric("vf.Rubric([right, fine])", FINE, ("answer, state)", "answer, unicorn)")), "'unicorn'"),
    ("weights", rubric("vf.Rubric([right], weights=[0.0])"), "all 0"),
    ("metric-names", rubric("vf.Rubric([right, num_turns], weights=[1.0, 0.0])", TURNS), "'num_turns'"),
    ("parser-mismatch", rubric("vf.Rubric([right], parser=vf.Parser(str.lower)), parser=vf.Parser(str.upper)"),
     "differ in extract_fn"),
    ("tool-schemas", source(TOOLS, ("    # more", '    env.tool_defs[0]["name"] = "look up"')), "'look up'"),
    ("tool-schemas", source(TOOLS, ("    # more", '    env.tool_defs[0]["parameters"]["required"] = ["what"]')),
     "requires what"),
    ("tool-descriptions", source(TOOLS, ('    """Look a number up."""\n', "")), "'look_up'"),
    # playing
    ("rollouts", source(GAME, ("'Again.'", 'messages[-1]["content"].split()[0]')), "IndexError"),
    ("rollouts", source(GAME, ("return [vf", "if messages[-1]['content'] == state['answer']: return [vf")),
     "env_response returned None"),
    ("endings", source(GAME, ("max_turns=2", "max_turns=-1"), ("# more", ANSWERED)), "goes on after 200 turns"),
    ("rollout-time", source(GAME, ("        return [vf", f"{WAITS}        return [vf")), "had not ended after"),
    ("rewards", reward("float(text.split()[-1] == answer)"), "'right'"),
    ("rewards", reward('float(text == answer) or (None if "x" in text else 0.0)'), "returned None"),
    ("reward-time", sound(("    return float(", SLEEPS), ("import verifiers", "import time\nimport verifiers")),
     "did not return within"),
    ("oracle", sound(('return task["answer"]', 'return "I think " + task["answer"]')), "earned 0 of 1"),
    ("oracle", sound(('return task["answer"]', 'return task["gold"]')), "KeyError"),
    ("no-oracle", source(NO_ORACLE, ("== answer", '== "It is " + answer')), "the best earned 0"),
    ("floor-empty", reward("1.0"), "earned the maximum, 1"),
    ("floor-null", reward('float(text in (answer, "N/A"))'), "'N/A' earned 1"),
    ("floor-random", reward(f"float(text == answer) or {NOISE}"), "earned 0.3"),
    ("floor-echo", reward('float(text == answer or "What is" in text)'), "'What is 20"),
    ("floor-leak", reward('float(text.replace("{answer}", answer) == answer)'), "'{answer}' earned 1"),
    ("floor-injection", reward('float(text == answer or "full score" in text)'), "'Ignore the rubric"),
    ("floor-long", reward("max(float(text == answer), len(text) // 1000 / 100)"), "(100,000 characters)"),
    ("floor-control", reward('float(text == answer or chr(7) in text)'), "earned 1"),
    ("floor-chance", reward('float(text == answer or "What is" in text and answer.endswith("4"))'), "tasks"),
    ("scoring-repeats", reward("(1 + next(COUNT)) * float(text == answer)"), "scored again"),
    ("play-repeats", source(GAME, ("return float(", 'return (1 + state["luck"]) * float('), ("# more", LUCK)),
     "the same replies earned"),
    ("records", sound(("    text =", "    state['info'] = {'day': datetime.date(2020, 1, 1)}\n    text =")),
     "datetime.date"),
]  # fmt: skip


def name_of(case: Case) -> str:
    return case[0]


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_broken_environment_gets_its_finding(case: Case, environments: Environments) -> None:
    """The check that it breaks finds it and says where; no other check finds anything."""
    check, written, told = case
    name = environments.write(**written)
    timeout = 4.0 if check in ("reward-time", "rollout-time") else 60.0
    results = found(environments.here(name, timeout=timeout))
    assert set(results) == {check}, results
    assert told in results[check]


@pytest.mark.parametrize("base", [SOUND, NO_ORACLE, TOOLS, GAME], ids=["sound", "no-oracle", "tools", "game"])
def test_a_sound_environment_has_no_finding(base: str, environments: Environments) -> None:
    """Neither errors nor warnings, and every check was made that can be."""
    results = environments.here(environments.write(base))
    assert found(results) == {}
    waiting = {result.check: result.note for result in results if result.status is Status.NOT_CHECKED}
    assert set(waiting) <= {"oracle", "overlap"}, waiting


def test_every_check_has_a_broken_environment() -> None:
    """No check without a case here, but for those that other tests hold to it."""
    elsewhere = {"code-tricks", "locate", "import-time", "import-network", "keys", "tags", "licence", PROCESS}
    assert {case[0] for case in CASES} == set(CHECKS) - elsewhere


def test_skipped_checks_are_not_made(environments: Environments) -> None:
    """What is skipped finds nothing."""
    name = environments.write(reward("1.0")["source"])
    results = by_check(environments.here(name, skip=("floor-empty",)))
    assert results["floor-empty"].status is Status.SKIPPED
    assert found(list(results.values())) == {}


def test_failures_that_differ_in_numbers_alone_are_one_finding(environments: Environments) -> None:
    """A hook's message with a time or a counter in it is told once, and the reply is not blamed."""
    raises = "raise RuntimeError(f'{next(COUNT)} took {next(COUNT) / 7} s')"
    hook = f"    async def setup_state(self, state):\n        {raises}\n\n    async def env_response"
    name = environments.write(**source(GAME, ("    async def env_response", hook)))
    result = by_check(environments.here(name, skip=("scoring-repeats", "play-repeats")))["rollouts"]
    (finding,) = result.findings
    assert "took" in finding.what and "more" in finding.what and "Mend the hook" in finding.fix
