"""Environments whose rewards are programs that were run: vf-validate tries the tricks on their graders."""

import pytest

from tests.support.toy_environments import by_check, found
from verifiers.grading.code_tests import read_tests
from verifiers.sandboxes.local import probe
from verifiers.validation import check_tricks
from verifiers.validation.check_tricks import names_of
from verifiers.validation.findings import Status
from verifiers.validation.tricks import tricks

CODE = """
import verifiers as vf

TEST = "assert add_N(2) == N + 2"
{RUBRIC}

def tasks(first, last):
    return [
        {"question": f"Write add_{n}(x), which adds {n}.", "info": {"n": n, "tests": TEST.replace("N", str(n))}}
        for n in range(first, last)
    ]


def load_environment(count: int = 8):
    return vf.SingleTurnEnv(dataset=tasks(100, 100 + count), eval_dataset=tasks(200, 200 + count), rubric=Rubric())


def oracle(task, messages, state):
    n = task["info"]["n"]
    return f"```python\\ndef add_{n}(x):\\n    return x + {n}\\n```"
"""
OURS = "Rubric = vf.CodeRubric"
TRUSTING = '''
from verifiers.grading.code import CodeGrade
from verifiers.grading.verdict import Verdict
from verifiers.rubrics.code_rubric import in_sandboxes


class Rubric(vf.CodeRubric):
    """Runs the asserts behind the program and believes the exit code."""

    async def grade(self, source, tests):
        from verifiers.sandboxes.default import default_provider

        asserts = "\\n".join(test.source for test in tests.cases)
        async with in_sandboxes(await default_provider())(1) as (place,):
            ended = await place.exec(["python3", "-c", f"{source}\\n{asserts}"], timeout=10)
        return CodeGrade(Verdict.RIGHT if source and ended.exit_code == 0 else Verdict.WRONG)
'''
FEW = ("exit with 0", "an int equal to everything", "patched json")


def written(environments, rubric):
    return environments.write(CODE.replace("{RUBRIC}", rubric))


@pytest.mark.slow
def test_an_environment_with_a_code_rubric_is_sound(environments):
    """The whole pack earns nothing, the oracle's program earns the maximum, and nothing else is found."""
    results = environments.here(written(environments, OURS), num_examples=2)
    assert found(results) == {}
    assert by_check(results)["code-tricks"].status is Status.OK


def test_a_grader_that_believes_the_exit_code_is_found(environments, monkeypatch):
    """The finding names the trick that was paid for."""
    monkeypatch.setattr(check_tricks, "tricks", lambda: [trick for trick in tricks() if trick.name in FEW])
    results = environments.here(written(environments, TRUSTING), num_examples=1)
    told = found(results)
    assert list(told) == ["code-tricks"] and "the trick 'exit with 0' earned 1, and so did" in told["code-tricks"]


@pytest.mark.parametrize(
    ("right", "wrong", "check", "told", "fix"),
    [
        ("N + 2", "N + 3", "oracle", " + 3' (wrong)", "Compare that test"),
        ("add_N", "adds_N", "oracle", "(error): \"NameError: name 'adds_", "Compare that test"),
        ('"tests"', '"test"', "rewards", "no form of tests has the keys n, test; did you mean 'tests'?", "the forms"),
    ],
    ids=["value", "name", "key"],
)
def test_a_wrong_test_is_named(environments, monkeypatch, right, wrong, check, told, fix):
    """A right program that fails is told with the test and its reason, and tests in no known form with the near one."""
    monkeypatch.setattr(check_tricks, "tricks", list)
    before, tests, after = CODE.replace("{RUBRIC}", OURS).partition(right)
    assert tests
    results = by_check(environments.here(environments.write(before + wrong + after), num_examples=1))
    finding = results[check].findings[0]
    assert told in finding.what and fix in finding.fix


def test_a_machine_without_sandboxes_leaves_the_checks_open(environments, monkeypatch):
    """What is missing is no fault of the oracle, and the note says how to get it."""
    missing = probe.Check("bubblewrap", False, "not installed", fix="Install it: pip install 'verifiers[sandbox]>=1'.")
    monkeypatch.setattr(probe, "failed", lambda level: [missing] if level == "namespace" else [])
    results = environments.here(written(environments, OURS), num_examples=1)
    assert found(results) == {}
    for name in ("oracle", "code-tricks"):
        result = by_check(results)[name]
        assert result.status is Status.NOT_CHECKED
        assert "bubblewrap: not installed. Install it: pip install 'verifiers[sandbox]>=1'" in result.note


def test_tests_that_can_not_be_read_leave_the_check_open(environments, monkeypatch):
    """Nothing is told of a grader that has no tests."""
    source = CODE.replace("{RUBRIC}", OURS).replace('"assert', '"asert')
    (result,) = (one for one in environments.here(environments.write(source)) if one.check == "code-tricks")
    assert result.status is Status.NOT_CHECKED and "cannot be read" in result.note


def test_names_that_tests_ask_for():
    """Functions are known from every kind of test."""
    call = [{"name": "f", "args": [], "expected": 1}]
    forms = ["assert abs(area(2) - 1) < 3", "for i in (1, 2): assert side(i)", call]
    assert [names_of(read_tests(form)) for form in forms] == [["area"], ["side"], ["f"]]


def test_every_trick_is_a_program():
    """Each compiles under any names, has a name of its own, and holds no piece that was not filled in."""
    pack = tricks()
    assert len(pack) >= 25 and len({trick.name for trick in pack}) == len(pack)
    for trick in pack:
        source = trick.source(["first", "second"])
        compile(source, trick.name, "exec", dont_inherit=True)
        assert "ENTRY" not in source and "{{EQ" not in source and "second = first" in source
