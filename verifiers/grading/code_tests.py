r"""Tests of programs, and how published data sets write them: `read_tests` takes each form as it is.

    read_tests({"prompt": …, "test": "def check(candidate): …", "entry_point": "add"})       # HumanEval
    read_tests({"test_list": ["assert add(1, 2) == 3"], "test_setup_code": ""})              # MBPP
    read_tests([{"input": "1 2\n", "output": "3\n"}])                                          # stdin and stdout
    read_tests({"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]})                       # calls of a function
    read_tests("assert add(1, 2) == 3")                                                      # test code

JSON text of any of them is read too. Expected values stay in these records: a submission never gets them.
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from verifiers.errors import GraderError
from verifiers.grading import code_names
from verifiers.grading.code_asserts import AssertTest, assert_test


@dataclass(frozen=True)
class StdinTest:
    """The program is given `input` and prints `output`."""

    input: str
    output: str


@dataclass(frozen=True)
class CallTest:
    """`name(*args, **kwargs)` returns one of `expected`, which usually holds one value.

    A name that the submission does not define is looked for as a method of its class `Solution`.
    """

    name: str
    args: tuple[Any, ...]
    expected: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ScriptTest:
    """Test code that runs in a judge's sandbox and calls the submission through plain data.

    setup: code that the judge runs first. names: what the code calls the functions of the submission, and what they
    are called there. call: an expression to evaluate at the end.
    """

    code: str
    names: Mapping[str, str]
    setup: str = ""
    call: str = ""


Test = StdinTest | CallTest | AssertTest | ScriptTest


@dataclass(frozen=True)
class CodeTests:
    """All tests of one task.

    prompt: the beginning of a program (imports, helpers, the head of a function) that a submission continues or
    repeats. setup: code that runs after the submission, in its process: no expected values in it.
    """

    cases: tuple[Test, ...]
    prompt: str = ""
    setup: str = ""
    entry_point: str | None = None


_KEYS = ("tests", "test_list", "test_cases", "input_output", "inputs", "outputs", "output", "expected")
"""By which forms are known."""


def read_tests(form: Any) -> CodeTests:
    """The tests that a task's data hold. Raises GraderError for what is no form of tests, or holds none."""
    try:
        with warnings.catch_warnings():  # published test code has invalid escapes, and compares with `is`
            warnings.simplefilter("ignore")
            tests = _read(form)
    except (SyntaxError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(f"{type(error).__name__}: {error}") from error
    if not tests.cases:
        raise _unreadable("there is no test in them")
    return tests


def _unreadable(why: str) -> GraderError:
    hint = "docs/guides/code-grading.md has the forms."
    return GraderError(f"the tests of the task cannot be read: {why}", hint=hint)


def _read(form: Any) -> CodeTests:
    if isinstance(form, CodeTests):
        return form
    if isinstance(form, str):
        return _read(json.loads(form)) if form.lstrip()[:1] in ("[", "{") else CodeTests(tuple(_read_code(form)))
    if isinstance(form, Mapping):
        return _read_mapping(form)
    if isinstance(form, Sequence) and not isinstance(form, bytes):
        return CodeTests(tuple(test for one in form for test in _read_one(one)))
    raise TypeError(f"{type(form).__name__} is no form of tests")


def _read_mapping(form: Mapping[str, Any]) -> CodeTests:
    if form.get("test") and form.get("entry_point"):
        return _human_eval(str(form.get("prompt") or ""), form["test"], form["entry_point"])
    if form.get("test_list"):
        return _asserts_with_setup(form)
    if "inputs" in form and "outputs" in form:
        return CodeTests(tuple(_input_output(form)))
    for key in ("tests", "test_cases", "input_output"):
        if form.get(key):
            return _read(_with_name(form[key], form.get("fn_name")))
    if "output" in form or "expected" in form:
        return CodeTests(tuple(_read_one(form)))
    raise ValueError(f"no form of tests has the keys {', '.join(map(str, form))}"[:200] + _meant(form))


def _meant(form: Mapping[str, Any]) -> str:
    """What a key was likely meant to be; empty where nothing is near."""
    near = [close for key in form for close in get_close_matches(str(key), _KEYS, n=1) if close != key]
    also = " ('test' is HumanEval's, which has 'entry_point' too)" if form.get("test") else ""
    return f"; did you mean {near[0]!r}?{also}" if near else ""


def _with_name(tests: Any, name: str | None) -> Any:
    """The same tests; those without a function's name get this one."""
    if isinstance(tests, str) and name:
        tests = json.loads(tests)
    if not name or not isinstance(tests, list):
        return tests
    return [{"fn_name": name, **test} if isinstance(test, Mapping) else test for test in tests]


# --- cases ------------------------------------------------------------------------------------------------------


def _read_one(form: Any) -> Iterator[Test]:
    """One entry of a list: test code, input and output, or a call."""
    if isinstance(form, str):
        yield from _read_code(form)
        return
    name = form.get("fn_name") or form.get("name")
    if not name:
        if form.get("testtype") == "functional":
            raise KeyError("fn_name")
        yield StdinTest(_text(form["input"]), _text(form["output"]))
    elif form.get("testtype") == "functional":  # LiveCodeBench: JSON, an argument a line
        args = tuple(json.loads(line) for line in form["input"].splitlines() if line.strip())
        yield CallTest(name, args, (json.loads(form["output"]),))
    elif "expected" in form:
        yield CallTest(name, tuple(form.get("args") or ()), (form["expected"],), dict(form.get("kwargs") or {}))
    else:
        yield _published_call(name, form["input"], form["output"])


def _input_output(form: Mapping[str, Any]) -> Iterator[Test]:
    """APPS and TACO: lists of inputs and of outputs, of a function if one is named."""
    for given, expected in zip(form["inputs"], form["outputs"], strict=True):
        if form.get("fn_name"):
            yield _published_call(form["fn_name"], given, expected)
        else:
            yield StdinTest(_text(given), _text(expected))


def _published_call(name: str, args: Any, expected: Any) -> CallTest:
    # In these data sets a result may be wrapped in a list of its own; their own harnesses accept both, too.
    wrapped = isinstance(expected, list) and len(expected) == 1
    return CallTest(name, tuple(args), (expected, expected[0]) if wrapped else (expected,))


def _text(lines: Any) -> str:
    if isinstance(lines, list):  # some rows give lines
        return "\n".join(map(str, lines)) + "\n"
    if not isinstance(lines, str):
        raise TypeError(f"the input or output of a program is {type(lines).__name__}, not text")
    return lines


# --- test code --------------------------------------------------------------------------------------------------


def _human_eval(prompt: str, code: str, entry_point: str) -> CodeTests:
    names = {"candidate": entry_point}
    checks = [node for node in ast.parse(code).body if isinstance(node, ast.FunctionDef) and node.name == "check"]
    cases = _all_asserts(checks[-1].body, names) if checks else None
    script = ScriptTest(code, names, prompt, "check(candidate)")
    return CodeTests(tuple(cases or [script]), prompt, entry_point=entry_point)


def _asserts_with_setup(form: Mapping[str, Any]) -> CodeTests:
    """MBPP: asserts, and code that makes what they need. If a condition needs it, it is the judge's, else it runs with
    the submission; imports do in any case, since solutions rely on them."""
    imports = "\n".join(form.get("test_imports") or ())
    setup = f"{imports}\n{form.get('test_setup_code') or ''}".strip()
    given = code_names.bound(ast.parse(setup))
    cases = [test for code in form["test_list"] for test in _read_code(code, setup)]
    if not any(isinstance(test, ScriptTest) for test in cases):
        return CodeTests(tuple(cases), setup=setup)
    lines = [ast.unparse(node) for node in ast.parse(setup).body if isinstance(node, ast.Import | ast.ImportFrom)]
    if "\n".join(lines) != setup:
        cases = [
            _script(test.source, setup)
            if isinstance(test, AssertTest) and code_names.used(ast.parse(test.source)) & given
            else test
            for test in cases
        ]
    return CodeTests(tuple(cases), setup="\n".join(lines))


def _read_code(code: str, setup: str = "") -> list[Test]:
    """Test code: its asserts one by one if they are simple, else the code as a whole, for a judge."""
    tree = ast.parse(code)
    whole = ast.parse(f"{setup}\n{code}")
    asserts = _all_asserts(tree.body, None, code_names.bound(ast.parse(setup)) | code_names.imports(whole).keys())
    return [_script(code, setup)] if asserts is None else list(asserts)


def _script(code: str, setup: str) -> ScriptTest:
    whole = ast.parse(f"{setup}\n{code}")
    imports = code_names.imports(whole)
    names = sorted(code_names.free(whole) - imports.keys())
    return ScriptTest(code, {name: name for name in names}, "\n".join([*imports.values(), setup]))


def _all_asserts(
    body: Sequence[ast.stmt], names: dict[str, str] | None, tests: Collection[str] = ()
) -> list[AssertTest] | None:
    """The asserts that a piece of code consists of; None if it does anything else."""
    found = []
    for node in body:
        if isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue
        test = assert_test(node, names, tests) if isinstance(node, ast.Assert) else None
        if test is not None:
            found.append(test)
        elif not (isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant) and node.test.value):
            return None  # `assert True` is in published tests, and says nothing
    return found
