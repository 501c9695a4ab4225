"""What no sandbox, program or file can be given is refused before it is asked for."""

from typing import Any

import pytest

from verifiers.errors import ConfigError
from verifiers.sandboxes.spec import Mount, SandboxSpec, Secret, command

TEXTS = ("a\0b", "half \ud800")


@pytest.mark.parametrize(
    "fields",
    [
        *({"memory": value} for value in (0, -1, 1.5, float("nan"), float("inf"), "1g")),
        *({"lifetime": value} for value in (0, float("nan"), float("inf"))),
        *({"workdir": f"/{text}"} for text in TEXTS),
        *({"image": f"/{text}"} for text in TEXTS),
        *({"mounts": (Mount("/usr", f"/{text}"),)} for text in TEXTS),
        *({"env": {"A": text}} for text in TEXTS),
        *({"secrets": {"A": Secret(text)}} for text in TEXTS),
        {"workdir": "relative"},
        {"env": {"": "x"}},
        {"env": {"A=B": "x"}},
        {"env": {"A": 1}},
        {"secrets": {"A": "hidden"}},
    ],
)
def test_no_sandbox_can_be_given_it(fields: dict[str, Any]):
    """Limits that are none, and text that no system call takes; a secret's value is not in the message."""
    with pytest.raises(ConfigError) as refused:
        SandboxSpec(**fields)
    assert "secrets" not in fields or "hidden" not in str(refused.value) + str(refused.value.hint)


@pytest.mark.parametrize(
    ("line", "options"),
    [
        *((text, {}) for text in ("", *TEXTS)),
        *((words, {}) for words in ((), ("",), ("a", 1), ("a", TEXTS[1]))),
        *(("true", {"env": env}) for env in ({"": "x"}, {"A=": "x"}, {"A": TEXTS[0]}, {"A": 1})),
        *(("true", {"timeout": value}) for value in (0, float("inf"), float("nan"), "1")),
        ("true", {"cwd": TEXTS[0]}),
        ("cat", {"stdin": TEXTS[1]}),
    ],
)
def test_no_program_can_be_given_it(line: Any, options: dict[str, Any]):
    """Empty names, NUL characters, halves of characters, deadlines that are none."""
    with pytest.raises(ConfigError):
        command(line, **options)
