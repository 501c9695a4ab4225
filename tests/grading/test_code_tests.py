"""Reading tests: the forms of published data sets as they are, and asserts taken apart."""

import json
from typing import Any

import pytest

from verifiers.errors import GraderError
from verifiers.grading.code_asserts import AssertTest, assert_test
from verifiers.grading.code_tests import CallTest, CodeTests, ScriptTest, StdinTest, read_tests


@pytest.mark.parametrize(
    ("source", "calls", "right", "wrong"),
    [
        ("assert f(1) == 2", ["f(1)"], [2], [3]),
        ("assert 2 == f(1), 'why'", ["f(1)"], [2], [None]),
        ("assert f('a')", ["f('a')"], [True], [0]),
        ("assert not f(x)", ["f(x)"], [0], ["a"]),
        ("assert f(1) is None", ["f(1)"], [None], [0]),
        ("assert abs(f(2) - 12.5) < 1e-2", ["f(2)"], [12.501], [12.6]),
        ("assert math.isclose(f(2), 1/3, rel_tol=1e-3)", ["f(2)"], [0.33333], [0.4]),
        ("assert set(f([1, 2])) == {1, 2}", ["f([1, 2])"], [[2, 1]], [[1]]),
        ("assert f(1)[0] == 5 and len(f(2)) == 2", ["f(1)", "f(2)"], [[5], "ab"], [[5], "a"]),
        ("assert f(g(1)) == f(2)", ["f(g(1))", "f(2)"], [7, 7], [7, 8]),
        ("assert Stack().push(1).size == 1", ["Stack().push(1).size"], [1], [2]),
        ("assert f(1) == 10**9 + 7", ["f(1)"], [10**9 + 7], [7]),
        ("assert sum(10, 15) == 6", ["sum(10, 15)"], [6], [25]),
        ("assert f(1) * 2 == 6 and round(f(2), 1) == -0.5 // 1 + 1", ["f(1)", "f(2)"], [3, 0.01], [3, 0.2]),
        ("assert isinstance(f(1), int)", ["f(1)"], [1], ["1"]),
    ],
)
def test_simple_asserts_are_taken_apart(source: str, calls: list[str], right: list[Any], wrong: list[Any]):
    """The submission is told the calls only; the condition is decided here."""
    test = assert_test(source)
    assert test is not None and list(test.calls) == calls
    assert test.holds(right) and not test.holds(wrong)
    assert not any(str(right[0]) in call for call in calls if right[0] == 2)


@pytest.mark.parametrize(
    "source",
    [
        "x = 1", "assert 1 == 1", "assert [f(i) for i in (1, 2)] == [1, 2]", "assert (lambda: f(1))() == 1",
        "assert f(1) == 9**9**9", "assert f(1) == [0] * 10**9", "assert f(1) == 'a' * 100 * 100",
        "assert f(1) % 2 == 0", "assert f(1) * 1000 == 2", "assert f(1) // f(2) == 1", "assert sum(f(1), []) == []",
        "assert round(f(1), f(2)) == 1", "assert dict(f(1)) == {}", "assert f(1) == math.factorial(10**8)",
        "assert hasattr(f(1), 'x')", "assert type(f(1)) == int", "assert all(map(f, [1]))",
        "assert f(1) == ().__class__", "assert f(1) == math.__loader__", "for i in range(3): assert f(i) == i",
    ],
)  # fmt: skip
def test_other_code_is_left_to_a_judge(source: str):
    """Loops, comprehensions, attributes and bombs are never evaluated in this process."""
    assert assert_test(source) is None


def test_names_of_the_test_are_those_of_the_submission():
    """With a table of names only these are the submission's, under the names that they have there."""
    test = assert_test("assert candidate(candidate(1)) == 3", {"candidate": "add"})
    assert test is not None and test.calls == ("add(add(1))",)
    assert assert_test("assert helper(candidate(1)) == 3", {"candidate": "add"}) is None


HUMAN_EVAL = {
    "prompt": "def add(a, b):\n    '''Add.'''\n",
    "entry_point": "add",
    "test": "META = {}\ndef check(candidate):\n    '''doc'''\n    assert True, 'ok'\n    assert candidate(1, 2) == 3\n",
}
STDIN = (StdinTest("1 2\n", "3\n"),)
CALL = (CallTest("add", (1, 2), (3,)),)


@pytest.mark.parametrize(
    ("form", "cases"),
    [
        ([{"input": "1 2\n", "output": "3\n"}], STDIN),
        ({"input": "1 2\n", "output": "3\n"}, STDIN),
        ({"inputs": ["1 2\n"], "outputs": ["3\n"]}, STDIN),
        ({"inputs": [["1 2"]], "outputs": [["3"]]}, STDIN),
        ({"input_output": '{"inputs": ["1 2\\n"], "outputs": ["3\\n"]}'}, STDIN),
        ({"test_cases": [{"type": "stdin_stdout", "input": "1 2\n", "output": "3\n"}]}, STDIN),
        ([{"testtype": "stdin", "input": "1 2\n", "output": "3\n"}], STDIN),
        ({"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]}, CALL),
        ({"fn_name": "add", "inputs": [[1, 2]], "outputs": [[3]]}, (CallTest("add", (1, 2), ([3], 3)),)),
        ([{"name": "add", "args": [1, 2], "expected": 3}], CALL),
        ({"fn_name": "add", "tests": [{"testtype": "functional", "input": "1\n2", "output": "3"}]}, CALL),
        ([{"type": "function_call", "fn_name": "add", "input": [1, 2], "output": 3}], CALL),
    ],
    ids=range(12),
)
def test_published_forms(form: Any, cases: Any):
    """Each form gives the same tests, and so does its JSON text."""
    assert read_tests(form).cases == read_tests(json.dumps(form)).cases == cases


def test_human_eval_rows():
    """A row of HumanEval gives its asserts one by one, or all of its test code to a judge with the prompt's helpers."""
    tests = read_tests(HUMAN_EVAL)
    assert [test.calls for test in tests.cases if isinstance(test, AssertTest)] == [("add(1, 2)",)]
    assert tests.prompt == HUMAN_EVAL["prompt"] and tests.entry_point == "add"
    looped = "def check(candidate):\n    for i in range(3):\n        assert candidate(i, i) == 2 * i\n"
    (script,) = read_tests({**HUMAN_EVAL, "test": looped}).cases
    assert script == ScriptTest(looped, {"candidate": "add"}, HUMAN_EVAL["prompt"], "check(candidate)")


def test_mbpp_rows():
    """A row of MBPP gives its asserts; its set-up, and the imports of the sanitised set, run with the submission."""
    asserts = ["assert f(1) == 2", "assert f(2) == 3"]
    tests = read_tests({"test_list": asserts, "test_setup_code": "x = 1", "test_imports": ["import math"]})
    assert len(tests.cases) == 2 and tests.setup == "import math\nx = 1"


def test_free_names_are_the_submissions():
    """Of test code that a judge runs, the names that nobody gives are stand-ins for the submission's."""
    code = "import re\ndef inc(n):\n    return n\nfor i in range(3):\n    assert add(i, 1) == inc(i) + 1\nbox = Box()"
    (script,) = read_tests(code).cases
    assert isinstance(script, ScriptTest) and script.names == {"add": "add", "Box": "Box"}


@pytest.mark.parametrize(
    "form",
    [None, 3, [], "", {}, {"a": 1}, "assert f(", '{"inputs": [1]', {"inputs": ["1"], "outputs": []}, [{"input": "1"}],
     [{"testtype": "functional", "input": "1", "output": "2"}], [{"input": 1, "output": "2"}]],
    ids=str,
)  # fmt: skip
def test_what_is_no_test_is_an_error(form: Any):
    """Tests that cannot be read are no score: the error says so."""
    with pytest.raises(GraderError, match="cannot be read"):
        read_tests(form)


def test_tests_are_taken_as_they_are():
    """`CodeTests` pass through."""
    tests = CodeTests(CALL)
    assert read_tests(tests) is tests


@pytest.mark.parametrize(
    ("code", "setup"),
    [
        ("assert f(1) == WANT", "WANT = 2"),
        ("assert near(f(1), 2)", "def near(a, b): return abs(a - b) < 1"),
        ("assert cmath.isclose(f(1), 2)", "import cmath"),
        ("assert cmath.isclose(f(1), 2)", ""),
        ("assert f('aab') == Counter('aab')", "from collections import Counter"),
        ("assert f('aab') == Counter('aab')", ""),
        ("assert f(1) == pytest.approx(2)", ""),
        ("assert f('aab').startswith('abc')", ""),
    ],
)
def test_what_a_result_is_compared_with_is_not_the_submissions(code: str, setup: str):
    """Names that the tests or libraries give are the judge's, and no code of the setup goes to the submission then."""
    tests = read_tests({"test_list": [code], "test_setup_code": setup})
    assert isinstance(tests.cases[0], ScriptTest)
    assert list(tests.cases[0].names) == ["f"]
    assert tests.setup == (setup if setup.startswith(("import", "from")) else "")


def test_a_class_under_test_may_have_a_known_name_and_methods_of_texts():
    """What tests use alone is what they ask for, and an object of a class under test answers for itself."""
    for code in ("assert Counter([1]).total() == 1", "assert Trie(['a']).startswith('a')"):
        assert isinstance(read_tests({"test_list": [code]}).cases[0], AssertTest)
