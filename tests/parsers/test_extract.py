import pytest
from hypothesis import given, strategies as st

from verifiers.parsers.extract import (
    BOXED_SYSTEM_PROMPT,
    THINK_BOXED_SYSTEM_PROMPT,
    extract_boxed_answer,
    extract_choice,
    extract_code,
    extract_final_answer,
    extract_hash_answer,
    strip_non_numeric,
)


def test_prompts_are_kept_byte_for_byte() -> None:
    """Prompts are part of results, five spaces included."""
    assert BOXED_SYSTEM_PROMPT == "Please reason step by step, and put your final answer within \\boxed{}."
    assert THINK_BOXED_SYSTEM_PROMPT == (
        "Think step-by-step inside <think>...</think> tags.     Then, give your final answer inside \\boxed{}."
    )


@pytest.mark.parametrize(
    ("text", "lenient", "strict"),
    [
        (r"so \boxed{42}.", "42", "42"),
        (r"\boxed{ 42 }", " 42 ", " 42 "),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", r"\frac{1}{2}"),
        (r"\boxed{1} and \boxed{2}", "2", "2"),
        (r"\boxed{1} then \boxed{2", r"\boxed{1} then \boxed{2", ""),
        (r"\boxed{}", "", ""),
        (r"\fbox{3}", r"\fbox{3}", ""),
        (r"\boxed 1", r"\boxed 1", ""),
        ("none", "none", ""),
        ("", "", ""),
        (r"\boxed{\}}", r"\\"[:1], r"\\"[:1]),
    ],
)
def test_boxed_answers_keep_v0s_manners(text: str, lenient: str, strict: str) -> None:
    """The last box up to its matching brace; without one, the text itself, or "" if strict."""
    assert extract_boxed_answer(text) == lenient
    assert extract_boxed_answer(text, strict=True) == strict


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("a #### 42", "42"),
        ("a #### 1 #### 2", "1"),
        ("plain", "plain"),
        ("####", ""),
        ("x ####\n 1,000 ", "1,000"),
    ],
)
def test_hash_answers(text: str, answer: str) -> None:
    """The stripped text between the first two marks, or the text itself."""
    assert extract_hash_answer(text) == answer


def test_strip_non_numeric() -> None:
    """Digits and dots only."""
    assert strip_non_numeric("$1,234.50 each") == "1234.50"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        pytest.param(r"\boxed{840} so \boxed{840}", "840", id="Math-Verify#44"),
        pytest.param(r"\boxed{1}, then \boxed{2}", "2", id="Math-Verify#57"),
        pytest.param(r"first \boxed{3} then \boxed{4}", "4", id="lmms-eval#1511"),
        pytest.param(r"bare \boxed", None, id="lm-eval#3477"),
        pytest.param(r"\boxed", None, id="lm-eval#3477-only"),
        (r"\boxed{ 7 }", "7"),
        (r"\boxed{}", None),
        (r"\boxed{1} then \boxed{2", "1"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{\left\{1,2\right\}}", r"\left\{1,2\right\}"),
        (r"\boxed{\{1}", r"\{1"),
        (r"\boxed 5", None),
        ("no box 5", None),
        ("", None),
        (r"<think>\boxed{1}</think> \boxed{2}", "2"),
        (r"<think>\boxed{1}</think> done", None),
        (r"<think>\boxed{1}", None),
        (r"<think>a</think>\boxed{1}<think>\boxed{2}", None),
        (r"thought aloud</think>\boxed{3}", "3"),
        (r"<think>a</think>b</think>\boxed{3}", "3"),
        (r"} \boxed{3}", "3"),
    ],
)
def test_final_answers(text: str, answer: str | None) -> None:
    """The last balanced box after the thinking; None where there is none."""
    assert extract_final_answer(text) == answer


REPORTED_CHOICES = [
    pytest.param("Antwort: C", "C", id="simple-evals#33"),
    pytest.param("Answer seems to be A", "A", id="openbench#348"),
    pytest.param("C because I computed", "C", id="omlx#3668"),
    pytest.param("The field is \\boxed{E = mc^2}.\n\nAnswer: D", "D", id="NeMo-Skills#1526"),
    pytest.param(r"\boxed{\text{E}}", "E", id="NeMo-Gym#1844"),
    pytest.param("answer is d.", "D", id="OPD-V#2"),
    pytest.param("A or B or C", None, id="Visual-RFT#79"),
    pytest.param(r"\boxed", None, id="lm-eval#3477"),
]


@pytest.mark.parametrize(("text", "letter"), REPORTED_CHOICES)
def test_reported_choices(text: str, letter: str | None) -> None:
    """Each public report on letter extraction."""
    assert extract_choice(text) == letter


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("C", "C"), ("c", "C"), ("(c)", "C"), ("**C**", "C"), ("C.", "C"), ("C) 12 apples", "C"), ("(C) 12", "C"),
        ("Option C", "C"), ("The answer is C", "C"), ("The answer is (C).", "C"), ("**Answer: C**", "C"),
        ("Answer: $C$", "C"), ("Answer:\n\nC", "C"), ("ANSWER: C", "C"), ("The correct option is **C**.", "C"),
        ("The best answer is option C", "C"), (r"The answer is \( \boxed{C} \)", "C"), (r"$\boxed{C}$", "C"),
        (r"\boxed{(C)}", "C"), (r"\boxed{\text{(C) } 12}", "C"), (r"\boxed{\textbf{(C)}\ 5}", "C"),
        (r"Therefore, the answer is $\text{(C)}$.", "C"), ("La réponse est C", "C"), ("La respuesta es C.", "C"),
        ("Die richtige Antwort ist C.", "C"), ("答案是C", "C"), ("答えはCです", "C"), ("정답: C", "C"),
        ("Ответ: C", "C"), ("A resposta é C", "C"), ("I think it's C.", "C"), ("So (B) is out, (C) it is", "C"),
        ("Answer: A ... no, wait. Answer: C", "C"), ("The answer is not A. It is C", "C"),
        ("Option A is wrong. Option C is right.", "C"), ("A, because it is", "A"), ("A. 12", "A"),
        ("Both A and B are plausible, so the answer is (C)", "C"), ("The answer is C, B is wrong", "C"),
        ("Among A, B, C and D the answer is clearly C", "C"), ("<think>Answer: A</think>C", "C"),
        ("<answer>C</answer>", "C"), ("final answer: **C) 5 meters**", "C"), ("It must be C", "C"),
        ("<think>Answer: C", None), ("", None), ("A triangle has three sides", None), ("I would say so", None),
        ("the answer is a triangle", None), ("answer: Apple", None), (r"\boxed{42}", None),
        ("Answer: A or B", None), ("The answers are A and C", None), (r"\boxed{A, B}", None), ("(A) or (B)", None),
        ("The answer is A/B", None), ("no idea", None), ("Z", None),
    ],
)  # fmt: skip
def test_choices(text: str, letter: str | None) -> None:
    """Written replies of every form, and what is no answer."""
    assert extract_choice(text) == letter


def test_only_offered_letters_count() -> None:
    """`options` says which letters there are."""
    assert extract_choice("Answer: E", options="ABCD") is None
    assert extract_choice("Answer: J") == "J"


@given(
    st.sampled_from("ABCDEFGHIJ"),
    st.sampled_from(["Answer: {}", "The answer is ({}).", r"\boxed{{{}}}", "{}", "**{}**"]),
)
def test_every_letter_in_every_frame(letter: str, frame: str) -> None:
    """A plain declaration of any letter is found."""
    assert extract_choice(frame.format(letter)) == letter


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nx = 1\n```", "x = 1\n"),
        ("```py\nx = 1\n```\nand\n```python3\ny = 2\n```", "y = 2\n"),
        ("```python\nx = 1\n```\nRun it:\n```bash\npython x.py\n```\n```text\n1\n```", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("```Python title=a.py\nx = 1\n```", "x = 1\n"),
        ("```{.python .numberLines}\nx = 1\n```", "x = 1\n"),
        ("~~~python\nx = '```'\n~~~", "x = '```'\n"),
        ("````python\n```\nx\n```\n````", "```\nx\n```\n"),
        ("1. So:\n   ```python\n   if x:\n       y\n   ```", "if x:\n    y\n"),
        ("```python\n    return 1\n```", "    return 1\n"),
        ("```python\nx = 1", "x = 1"),
        ("<think>```python\nx = 1\n```</think>```python\ny = 2\n```", "y = 2\n"),
        ("<think>```python\nx = 1\n```", None),
        ("```python\n\n```", None),
        ("```cpp\nint x;\n```", None),
        ("x = 1", None),
        ("`x = 1`", None),
        ("", None),
    ],
)
def test_code(text: str, code: str | None) -> None:
    """The last fenced block in the language, or in none that is named."""
    assert extract_code(text) == code


def test_code_in_another_language() -> None:
    """Aliases of a language are the language."""
    assert extract_code("```sh\nls\n```\n```python\nx\n```", "bash") == "ls\n"


PIECES = [*"ABcd 1{}()<>/*:$.,", "\n", "\\", "\\boxed{", "Answer", "is", "or", "</think>"]


@given(st.lists(st.sampled_from(PIECES), max_size=100).map("".join))
def test_any_text_extracts_without_error(text: str) -> None:
    """No text raises; a letter comes from the options, and a final answer is stripped and not empty."""
    letter, final = extract_choice(text), extract_final_answer(text)
    assert letter is None or letter in "ABCDEFGHIJ"
    assert final is None or (final and final == final.strip())


@pytest.mark.parametrize(
    "piece", ["\\boxed{", "{", "}", "answer ", "answer is ", "(", "A or ", "not ", "\\text {", "* "]
)
def test_hostile_repetition_stays_quick(piece: str) -> None:
    """A hundred thousand characters of one piece are scanned in one go; the suite's time limit is the judge."""
    text = piece * (100_000 // len(piece))
    assert extract_choice(text) in (None, "A")
    assert extract_final_answer(text) is None
    assert extract_boxed_answer(text) == text
    assert extract_code(text) is None
