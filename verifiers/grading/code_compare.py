"""When a result is the expected one. Everything here is plain data: exact built-in types, see `code_data`.

`same` compares values of function calls, `same_output` what programs print. Both are stated rules, not guesses:

- Types come first. True is not 1. A list and a tuple are alike (JSON knows one of them only); a set, a text, a dict and
  None are like their own kind only.
- Integers are exact. Where either number is a float they are equal within 1e-6, relative or absolute. NaN equals NaN.
- Of printed text, white space at the ends of lines and empty lines at the end do not count, nor how many blanks are
  between words. A word that is written as a decimal number is compared as one; any other is compared exactly.
"""

from __future__ import annotations

import cmath
import math
import re
from typing import Any

TOLERANCE = 1e-6
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_LONGEST_NUMBER = 400


def same(given: Any, expected: Any) -> bool:
    """Whether a plain value is the expected one."""
    if isinstance(expected, bool) or isinstance(given, bool):
        return given is expected
    if isinstance(expected, int | float | complex):
        return isinstance(given, int | float | complex) and _same_number(given, expected)
    if isinstance(expected, list | tuple):
        return (
            isinstance(given, list | tuple)
            and len(given) == len(expected)
            and all(same(one, other) for one, other in zip(given, expected, strict=True))
        )
    if isinstance(expected, dict):
        return (
            isinstance(given, dict)
            and given.keys() == expected.keys()
            and all(same(given[key], item) for key, item in expected.items())
        )
    if isinstance(expected, set | frozenset):
        return isinstance(given, set | frozenset) and given == expected
    return type(given) is type(expected) and bool(given == expected)


def _same_number(given: complex, expected: complex) -> bool:
    if isinstance(given, int) and isinstance(expected, int):
        return given == expected
    if given != given or expected != expected:
        return given != given and expected != expected
    try:
        return given == expected or cmath.isclose(given, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    except OverflowError:  # an integer beyond every float
        return False


def same_output(given: str, expected: str) -> bool:
    """Whether a program printed what is expected."""
    left, right = _lines(given), _lines(expected)
    return len(left) == len(right) and all(_same_line(*pair) for pair in zip(left, right, strict=True))


def _lines(text: str) -> list[str]:
    # Not `splitlines`: it also splits at characters that a program may print within a line.
    return text.replace("\r\n", "\n").rstrip().split("\n")


def _same_line(given: str, expected: str) -> bool:
    left, right = given.split(), expected.split()
    return left == right or (len(left) == len(right) and all(map(_same_word, left, right)))


def _same_word(given: str, expected: str) -> bool:
    if given == expected:
        return True
    if len(given) > _LONGEST_NUMBER or not (_NUMBER.fullmatch(given) and _NUMBER.fullmatch(expected)):
        return False
    if not (set(given) | set(expected)) & set(".eE"):
        return False  # integers are exact; "007" is another text than "7"
    return math.isclose(float(given), float(expected), rel_tol=TOLERANCE, abs_tol=TOLERANCE)
