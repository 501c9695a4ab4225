"""A row keeps its guarantees, as an object and as JSON."""

import json
import math
from typing import Any

import pytest

from verifiers.errors import EvidenceError
from verifiers.train.engines.sampling import read_sampling
from verifiers.train.rows import EnvRef, Row, check_row, row_from_dict, row_to_dict


def row(**changes: Any) -> Row:
    """A good row of four tokens, changed."""
    fields: dict[str, Any] = {
        "tokens": [1, 2, 3, 4],
        "mask": [False, True, True, False],
        "logprobs": [0.0, -0.5, -1e-9, 0.0],
        "versions": [1, 1, 2, 2],
        "reward": 1.0,
        "env": EnvRef("me/env", "1.0.0", "sha256:ab"),
    }
    return Row(**{**fields, **changes})


def test_a_good_row_passes_and_counts() -> None:
    """Two of four tokens are trainable; unscored is fine, as is a logprob that rounding put a little above 0."""
    good = row(reward=None, logprobs=[0.0, 1e-6, -1.0, 0.0])
    check_row(good)
    check_row(row(replies=[[0, 1, 2], [4, 2, 3]]))
    assert good.trainable == 2
    assert row(mask=[True] * 4).trainable == 3  # nothing predicts the first token


@pytest.mark.parametrize(
    ("sampling", "temperature"),
    [
        ({}, 1.0),
        ({"temperature": None}, 1.0),
        ({"temperature": 0.7}, 0.7),
        ({"temperature": 0}, 0.0),
        ({"temperature": 1.0, "extra_body": {"temperature": 0.6}}, 0.6),
        ({"temperature": 0.7, "extra_body": None}, 0.7),
    ],
)
def test_its_temperature_is_what_a_sampler_reads(sampling: dict[str, Any], temperature: float) -> None:
    """The trainer divides by it: where it is not said it is 1, and never 0."""
    assert row(sampling=sampling).temperature == read_sampling(sampling).temperature == temperature


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mask": [True]}, "mask has 1 entries for 4 tokens"),
        ({"advantages": [0.5]}, "advantages has 1 entries"),
        ({"mask": [False] * 4}, "no token is trainable"),
        ({"mask": [True] + [False] * 3}, "no token is trainable"),
        ({"logprobs": [0.0, math.nan, -1.0, 0.0]}, "logprob of token 2 is nan"),
        ({"logprobs": [0.0, -9999.0, -1.0, 0.0]}, "logprob of token 2 is -9999"),
        ({"logprobs": [0.0, 0.5, -1.0, 0.0]}, "logprob of token 2 is 0.5"),
        ({"tokens": [1, -2, 3, 4]}, "a token is no id"),
        ({"tokens": [1, 2.0, 3, 4]}, "a token is no id"),
        ({"tokens": [1, True, 3, 4]}, "a token is no id"),
        ({"reward": math.nan}, "its reward is nan"),
        ({"weight": 0.0}, "its weight is 0.0"),
        ({"replies": [[0, 1, 2]]}, "its replies are not where its trainable tokens are"),
        ({"replies": [[0, 1, 3], [1, 2, 3]]}, "its replies are not where its trainable tokens are"),
        ({"replies": [[0, 1, 9]]}, "its replies are not where its trainable tokens are"),
    ],
)
def test_a_broken_guarantee_is_named(changes: dict[str, Any], said: str) -> None:
    """Each guarantee has its message."""
    with pytest.raises(EvidenceError, match=said.replace(".", r"\.")):
        check_row(row(**changes))


def test_json_keeps_what_is_not_reported() -> None:
    """A rendered row without logprobs has NaN there, null in JSON, and NaN again: never a made-up number."""
    given = row(exactness="rendered", logprobs=[0.0, math.nan, -1.0, 0.0])
    data = json.loads(json.dumps(row_to_dict(given), allow_nan=False))
    assert data["logprobs"] == [0.0, None, -1.0, 0.0] and data["env"]["digest"] == "sha256:ab"
    back = row_from_dict(data)
    assert math.isnan(back.logprobs[1]) and back.env == given.env and back.tokens == given.tokens


@pytest.mark.parametrize("damage", [{"tokens": None}, {"colour": "red"}, {"env": {"sort": 1}}, {"mask": [1, 1]}])
def test_json_that_is_no_row(damage: dict[str, Any]) -> None:
    """Missing and unknown fields and broken guarantees are EvidenceErrors."""
    with pytest.raises(EvidenceError):
        row_from_dict({**row_to_dict(row()), **damage})
