"""What a request may ask of an engine: sampling arguments, read strictly. No torch here.

    wish = read_sampling({"temperature": 0.7, "max_tokens": 64, "seed": 3})

Logprobs are those of the policy over its whole vocabulary. Whatever samples from something else (top-p, top-k, min-p,
penalties, biases) would make them wrong, silently (huggingface/trl#6789), and is refused.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verifiers.errors import ConfigError

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "typical_p": (1,),
    "repetition_penalty": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "length_penalty": (1,),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
}
"""Arguments that change what is sampled from, with the values that do not."""

ONE_REPLY: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "stream": (False,),
    "echo": (False,),
}
"""Arguments that ask for something else than one whole reply, with the values that do not."""

IGNORED = frozenset(
    ("logprobs", "top_logprobs", "return_token_ids", "return_tokens_as_token_ids", "cache_salt", "priority", "user")
    + ("metadata", "store", "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output")
    + ("truncate_prompt_tokens", "add_special_tokens", "detokenize", "timeout", "extra_headers", "extra_query")
    + ("request_id", "suffix", "stream_options", "service_tier", "return_routed_experts")
)
"""Arguments without an effect on what is sampled: evidence is always complete here."""

READ = ("temperature", "max_tokens", "max_completion_tokens", "seed", "stop", "stop_token_ids", "ignore_eos")


_HARMLESS = IGNORED.union(READ)


@dataclass(frozen=True, slots=True)
class Sampling:
    """A request's wishes. temperature 0 takes the likeliest token, and logprobs are those at temperature 1.

    max_tokens: None fills the context. seed: None takes the engine's own. stop: texts that end a reply.
    """

    temperature: float = 1.0
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False


def read_sampling(params: Mapping[str, Any]) -> Sampling:
    """The wishes in sampling arguments; `extra_body` is read too. ConfigError for what cannot be kept."""
    body = {name: value for name, value in params.items() if value is not None}
    body.update(body.pop("extra_body", None) or {})
    for name, value in body.items():
        if name not in _HARMLESS:
            _check(name, value)
    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    stop = body.get("stop") or ()
    return Sampling(
        temperature=_number("temperature", body.get("temperature", 1.0)),
        max_tokens=None if limit is None else _whole("max_tokens", limit, least=1),
        seed=None if body.get("seed") is None else _whole("seed", body["seed"]),
        stop=(stop,) if isinstance(stop, str) else tuple(map(str, stop)),
        stop_token_ids=frozenset(_whole("stop_token_ids", token) for token in body.get("stop_token_ids") or ()),
        ignore_eos=bool(body.get("ignore_eos", False)),
    )


def _check(name: str, value: Any) -> None:
    whys = {"logprobs have to be those of the whole policy": NEUTRAL, "an engine gives one whole reply": ONE_REPLY}
    for why, harmless in whys.items():
        if name in harmless:
            if value not in harmless[name]:
                raise ConfigError(
                    f"the sampling argument {name}={value!r} is refused: {why}",
                    hint=f"Leave {name} out, or set it to {harmless[name][0]!r}.",
                )
            return
    near = difflib.get_close_matches(name, [*READ, *NEUTRAL, *ONE_REPLY], n=1)
    raise ConfigError(
        f"the engine has no sampling argument {name!r}",
        hint=f"Did you mean {near[0]}?" if near else f"It reads {', '.join(READ)}.",
    )


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ConfigError(f"the sampling argument {name} is {value!r}", hint="Give a finite number of at least 0.")
    return float(value)


def _whole(name: str, value: Any, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(
            f"the sampling argument {name} is {value!r}", hint=f"Give a whole number of at least {least}."
        )
    return value
