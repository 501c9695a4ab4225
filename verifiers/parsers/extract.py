"""Functions that take the final answer out of a model's text.

They find the answer; whether it is right is the business of `verifiers.grading`. `extract_boxed_answer` and
`extract_hash_answer` keep the manners of v0 (text without a mark passes through); `extract_final_answer`,
`extract_code` and `extract_choice` return None where there is no answer, so that a grader can tell "none" from "wrong":

    grade_math(extract_final_answer(reply), gold)
"""

from __future__ import annotations

import re

from verifiers.parsers.think_parser import CLOSE, OPEN

BOXED_SYSTEM_PROMPT = "Please reason step by step, and put your final answer within \\boxed{}."
# The five spaces are part of it: prompts are part of results.
THINK_BOXED_SYSTEM_PROMPT = (
    "Think step-by-step inside <think>...</think> tags.     Then, give your final answer inside \\boxed{}."
)

_BOX = "\\boxed{"


def extract_boxed_answer(text: str, strict: bool = False) -> str:
    r"""The content of the last `\boxed{…}`, up to its matching brace, not stripped.

    Braces are counted without regard to escapes. Without a box, or if the last one is not closed: the text itself,
    or "" if `strict`.
    """
    start = text.rfind(_BOX)
    if start >= 0:
        start += len(_BOX)
        depth = 1
        for brace in re.finditer(r"[{}]", text[start:]):
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                return text[start : start + brace.start()]
    return "" if strict else text


def extract_hash_answer(text: str) -> str:
    """The stripped text between the first and the second `####` (GSM8K's mark), or the text itself without one."""
    parts = text.split("####")
    return parts[1].strip() if len(parts) > 1 else text


def strip_non_numeric(text: str) -> str:
    """Only the digits and dots of a text."""
    return "".join(character for character in text if character.isdigit() or character == ".")


def after_thinking(text: str) -> str | None:
    """The text after the last `</think>`; None while thinking that was opened is not closed."""
    rest = text.rpartition(CLOSE)[2]
    return None if OPEN in rest else rest


def extract_final_answer(text: str) -> str | None:
    r"""The stripped content of the last balanced `\boxed{…}` after the thinking.

    None if thinking is not closed, nothing is boxed, or the last balanced box is empty. `\{` and `\}` are no
    braces here, `\boxed 5` is no box, and of nested boxes the inner one is taken.
    """
    rest = after_thinking(text)
    if rest is None or _BOX not in rest:
        return None
    content = _last_balanced_box(rest)
    return (content or "").strip() or None


def _last_balanced_box(text: str) -> str | None:
    """One pass over the braces, so that thousands of unclosed boxes cost no more than one."""
    open_boxes: list[
        int | None
    ] = []  # per open brace, where its box's content starts; None for a plain brace
    last: tuple[int, int] | None = None
    for mark in re.finditer(r"\\boxed\{|\\.|[{}]", text, re.DOTALL):
        if mark[0] == _BOX:
            open_boxes.append(mark.end())
        elif mark[0] == "{":
            open_boxes.append(None)
        elif mark[0] == "}" and open_boxes:
            start = open_boxes.pop()
            # A box that closes later but opened earlier is the outer one of a nested pair.
            if start is not None and (last is None or start > last[0]):
                last = (start, mark.start())
    return text[last[0] : last[1]] if last else None


# --- code -----------------------------------------------------------------------------------------------------

_LANGUAGES = {"python": {"python", "python3", "py", "py3", "pycon"}, "bash": {"bash", "sh", "shell", "zsh"}}
_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*([^`\n]*)")


def extract_code(text: str, language: str = "python") -> str | None:
    """The last fenced block after the thinking that is in this language, or in none that is named.

    A block that the end of the text cuts off counts; blocks in other languages (a shell command after the program) do
    not. None if thinking is not closed, or there is no such block, or it is empty. The code keeps its indentation,
    less that of the fence.
    """
    rest = after_thinking(text)
    if rest is None:
        return None
    wanted = {"", language.lower()} | _LANGUAGES.get(language.lower(), set())
    code = next((code for name, code in reversed(_fenced_blocks(rest)) if name in wanted), "")
    return code if code.strip() else None


def _fenced_blocks(text: str) -> list[tuple[str, str]]:
    """Language and content of each block between fences, in order; of fences as CommonMark has them."""
    blocks: list[tuple[str, str]] = []
    inside: list[str] | None = None
    indent = mark = name = ""
    for line in text.splitlines(keepends=True):
        fence = _FENCE.match(line.rstrip())
        if inside is None:
            if fence is not None:
                indent, mark, inside = fence[1], fence[2], []
                name = re.split(r"[\s:,}]", fence[3].strip().lstrip("{."), maxsplit=1)[0].lower()
        elif fence is not None and fence[2].startswith(mark) and not fence[3]:
            blocks.append((name, "".join(inside)))
            inside = None
        else:
            inside.append(line.removeprefix(indent))
    if inside:
        blocks.append((name, "".join(inside)))
    return blocks


# --- multiple choice ------------------------------------------------------------------------------------------

# What announces an answer, in the languages that evaluation replies come in. Scripts without spaces have no word ends.
_WORDS = (
    "answers?|antwort(?:en)?|lösung|r[eé]ponses?|respuestas?|respostas?|rispost[ae]|antwoord|odpowied[źz]|svar|"
    "ответ|jawaban|cevap|yanıt|(?:options?|choices?)(?=\\s*(?:is|:|=))"
)
_UNSPACED_WORDS = "答案|答え|回答|정답|답|उत्तर|الإجابة"
_LINKS = (
    "is|are|was|be|seems|appears|to|would|should|must|will|could|might|may|therefore|thus|then|clearly|likely|"
    "probably|most|definitely|the|correct|right|best|final|letter|option|choice|answer|ist|lautet|est|es|é|è|jest|är"
)
_DECLARATION = re.compile(
    rf"(?:(?<![^\W\d_])(?:{_WORDS})(?![^\W\d_])|{_UNSPACED_WORDS})"
    rf"(?:(?:{_LINKS})(?![^\W\d_])|[是为應应該该選选는은はが]|[\s*_:：=\-])*"
    r"(?:\\[a-z]+\s*\{|\\|[\s*_`\"'“”‘’(\[{<$])*"  # Markdown, LaTeX and brackets around the letter
    r"(?=(?P<rest>.{0,80}))",
    re.IGNORECASE | re.DOTALL,
)
_LETTER = re.compile(
    r"([A-Za-z])(?![A-Za-zÀ-ÿ0-9_'’])"
)  # scripts without spaces may follow a letter directly
_LETTER_ENDS = re.compile(r"[\s.)\]}*_,;!?`\"'$]*(?:$|\n)|[.)\]}*:]")
_ALTERNATIVE = re.compile(
    r"[\s)\]}*.$]*(?:(?:,\s*)?\b(?:or|and|oder|und|ou|o|y|et)\b|/|&|,(?=[\s(\[{*$]*[A-Z][\s)\]}*$]*(?:[,./&;]|$|or\b|and\b)))"
    r"[\s(\[{*$]*(?:(?:option|choice)\s+)?([A-Z])(?![\w'’])"
)
_DENIED = re.compile(
    r"\b(?:not|isn['’]t|never|except|rather than|instead of|unlike|incorrect:?|wrong:?)\s+"
    r"(?:(?:is|the|an?|option|choice|answer|letter)\s+)*\(?[A-Z]\)?(?![\w'’])"
    r"|\(?\b[A-Z]\)?\s+(?:is|are|was|can be|must be)\s+(?:clearly\s+|definitely\s+)?"
    r"(?:not|wrong|incorrect|false|out|eliminated|ruled out|excluded|impossible)\b"
)
_BOXED_LETTER = re.compile(
    r"(?:\\[a-zA-Z]+\s*\{|\\[ ,;:!]|[\s${(\[*])*([A-Za-z])(?=[\s}$)\].*:,/&]|\\|$)(.*)", re.DOTALL
)
_MARKED = re.compile(r"[(\[*]\s*([A-Z])\s*[)\]*]|\b(?:[Oo]ption|[Cc]hoice)\s+\(?([A-Z])\b")


def extract_choice(text: str, options: str = "ABCDEFGHIJ") -> str | None:
    """The option letter that a reply settles on, in upper case, or None.

    In this order, on the text after the thinking: the last declaration ("the answer is C", "Antwort: C", a boxed
    letter), the letter that the reply opens with ("C because …", "(C) 12"), the last letter that is marked as an
    option ("so (B)"), the only capital that stands alone. A reply whose answer names several letters ("A or B") has
    none, and a letter that is denied ("not A", "A is wrong") is no answer.

    Args:
        text: the model's reply.
        options: the letters on offer, in upper case.
    """
    rest = after_thinking(text)
    if rest is None:
        return None
    rest = _DENIED.sub(" ", rest).strip()
    for read in (_declared, _leading, _marked, _alone):
        letter = read(rest, options)
        if letter is not None:
            return letter or None
    return None


# Each reader returns a letter, None if it finds nothing, or "" if it finds several where one is due.


def _declared(text: str, options: str) -> str | None:
    found = [(match.start(), _letter_at(match["rest"], options)) for match in _DECLARATION.finditer(text)]
    found = [(position, letter) for position, letter in found if letter is not None]
    box = _last_balanced_box(text) if _BOX in text else None
    match = _BOXED_LETTER.fullmatch(box.strip()) if box is not None else None
    if match and match[1].upper() in options:
        found.append((text.rfind(_BOX), "" if _offers_more(match[2], options) else match[1].upper()))
    return max(found)[1] if found else None


def _leading(text: str, options: str) -> str | None:
    rest = re.sub(r"^[\s*_`\"'(\[{$<]*(?:(?:option|choice)\s+)?[(\[*]*", "", text, flags=re.IGNORECASE)
    # "A" and "I" also open ordinary sentences.
    if re.match(r"[AI]\s+(?!(?:because|since|as|is|due|for|or|and)\b)\w", rest):
        return None
    return _letter_at(rest, options)


def _marked(text: str, options: str) -> str | None:
    found = [(match.end(), match[1] or match[2]) for match in _MARKED.finditer(text)]
    found = [(end, letter) for end, letter in found if letter in options]
    if not found:
        return None
    if len(found) > 1 and found[-1][1] != found[-2][1] and _offers_more(text[found[-2][0] :], options):
        return ""
    return found[-1][1]


def _alone(text: str, options: str) -> str | None:
    letters = {
        match[0]
        for match in re.finditer(r"(?<![\w'’\\])[A-Z](?![\w'’])", text)
        if match[0] in options and not re.match(r"[AI]\s+[a-z]", text[match.start() :])
    }
    return letters.pop() if len(letters) == 1 else None


def _letter_at(text: str, options: str) -> str | None:
    match = _LETTER.match(text)
    if match is None or match[1].upper() not in options:
        return None
    after = text[match.end() :]
    # A small letter before a word is an article or a variable ("the answer is a triangle").
    if match[1].islower() and not _LETTER_ENDS.match(after):
        return None
    return "" if _offers_more(after, options) else match[1].upper()


def _offers_more(after: str, options: str) -> bool:
    """Whether a further letter is offered right behind the first: "A or B", "A, B and C", "A/B"."""
    match = _ALTERNATIVE.match(after)
    return bool(match and match[1] in options)
