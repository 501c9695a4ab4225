"""The token evidence of a rollout, read from a live state or a saved record, and checked turn by turn.

Nothing is repaired here: evidence that contradicts itself is an EvidenceError, evidence that is not the engine's own
an InexactEvidenceError, and both say what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from verifiers.clients.routes import check_routes
from verifiers.errors import EvidenceError, InexactEvidenceError
from verifiers.train.rows import are_ids, are_logprobs, is_logprob
from verifiers.types import Exactness, SamplingArgs, exactness_of, message_text

RANKS: dict[Exactness, int] = {"none": 0, "rendered": 1, "exact": 2}


@dataclass(slots=True)  # not frozen: that would double what making one costs, and each rollout has some
class Turn:
    """One model call as evidence. `logprobs` is empty where the engine reported none."""

    number: int
    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    exactness: Exactness
    truncated: bool = False
    overlong: bool = False
    finish_reason: str | None = None
    sampling: SamplingArgs | None = None
    """What was asked for; None where the rollout does not say."""
    prompt: Any = None
    completion: Any = None
    reply: Any = None
    """The message's content as it was delivered, before the environment made a completion of it."""
    routed_experts: Any = None

    @property
    def conversation(self) -> Any:
        """The messages sent and those that came back; in completion mode one text."""
        return None if self.prompt is None else self.prompt + self.completion


@dataclass(frozen=True, slots=True)
class Checks:
    """What the evidence is held against, as far as the caller knows it.

    vocabulary: number of ids the model has. stop_ids: ids that end every reply.
    decode: ids to text; for `decode_share` of the turns the text must hold the message that was delivered, which may
    leave out `special_ids`.
    """

    vocabulary: int | None = None
    stop_ids: Collection[int] = ()
    decode: Callable[[list[int]], str] | None = None
    decode_share: float = 0.01
    special_ids: Collection[int] = ()


def checks_with(
    tokenizer: Any, *, vocabulary: int | None = None, stop_ids: Collection[int] = (), decode_share: float = 0.01
) -> Checks:
    """What to hold evidence against for a model with this tokenizer of Hugging Face's.

    vocabulary: None takes the tokenizer's, which has no more ids than the model. stop_ids: all that may end a reply;
    without them no ending is held against its last id.
    """
    return Checks(
        vocabulary or len(tokenizer), stop_ids, partial(_decoded, tokenizer), decode_share, special_ids_of(tokenizer)
    )


def special_ids_of(tokenizer: Any) -> frozenset[int]:
    """The ids that stand for no text: chat routes leave them out of messages."""
    added = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(added | set(tokenizer.all_special_ids))


def _decoded(tokenizer: Any, ids: list[int]) -> str:
    return str(tokenizer.decode(ids))


def turns_of(rollout: Mapping[str, Any], version: int = 0) -> list[Turn]:
    """The turns of a state or record, in order. `version` is the policy's where the evidence names none.

    EvidenceError if the record was saved without its turns.
    """
    steps = rollout.get("trajectory")
    if steps is None:
        raise EvidenceError(
            "the record holds no turns, so there is no token evidence",
            hint='Save the turns with the records: state_columns=["trajectory"] (-C trajectory).',
        )
    asked = rollout.get("sampling_args")
    return [_turn(number, step, version, asked) for number, step in enumerate(steps)]


def _turn(number: int, step: Mapping[str, Any], version: int, asked: SamplingArgs | None) -> Turn:
    tokens = step.get("tokens") or {}
    response = step.get("response") or {}
    message = response.get("message") or {}
    completion_ids = list(tokens.get("completion_ids") or ())
    return Turn(
        number=number,
        prompt_ids=list(tokens.get("prompt_ids") or ()),
        completion_ids=completion_ids,
        logprobs=list(tokens.get("completion_logprobs") or ()),
        versions=list(tokens.get("completion_versions") or [version] * len(completion_ids)),
        exactness=exactness_of(tokens),
        truncated=bool(step.get("is_truncated")),
        overlong=bool(tokens.get("overlong_prompt")) or (bool(tokens) and not completion_ids),
        finish_reason=message.get("finish_reason"),
        sampling=response.get("sampling_args", asked),
        prompt=step.get("prompt"),
        completion=step.get("completion"),
        reply=message.get("content"),
        routed_experts=tokens.get("routed_experts"),
    )


def require(turn: Turn, accept: Exactness) -> None:
    """Raise InexactEvidenceError unless the turn is labelled at least `accept`, or cannot make a row at all."""
    if not turn.completion_ids:
        raise InexactEvidenceError(
            f"turn {turn.number} has no token ids: the endpoint reported none, or fewer than it sampled",
            hint="Ask for them (vLLM: logprobs and return_token_ids), or use the client type "
            "openai_chat_completions_token, which works with llama.cpp and vLLM.",
        )
    if not turn.prompt_ids:
        raise InexactEvidenceError(
            f"turn {turn.number} has no prompt ids: the endpoint reports only those it sampled",
            hint="Use the client type openai_chat_completions_token, which knows the prompt ids it sends.",
        )
    if RANKS[turn.exactness] < RANKS[accept]:
        why = "its prompt ids were rebuilt" if turn.logprobs else "it has no logprobs"
        raise InexactEvidenceError(
            f"turn {turn.number} is labelled {turn.exactness!r}, not {accept!r}: {why}",
            hint="Have the endpoint report logprobs and token ids, use the client type "
            'openai_chat_completions_token, or accept it with accept="rendered" (not for policy gradients).',
        )


def check_turn(turn: Turn, checks: Checks, seen: int = 0) -> None:
    """Raise EvidenceError if what the engine reported for a turn contradicts itself.

    seen: how many ids its prompt begins with that have been looked at, as those of an earlier turn.
    """
    sampled = len(turn.completion_ids)
    for name, values in (("logprobs", turn.logprobs), ("versions", turn.versions)):
        if values and len(values) != sampled:
            raise _contradiction(turn, f"{len(values)} {name} for {sampled} sampled tokens")
    if not are_logprobs(turn.logprobs):
        for value in turn.logprobs:
            if not is_logprob(value):
                raise _contradiction(turn, f"{value} is no logprob")
    for ids in (turn.prompt_ids[seen:], turn.completion_ids):
        if not are_ids(ids, checks.vocabulary):
            raise _contradiction(turn, "a token is no id of the vocabulary")
    if turn.routed_experts is not None:
        try:  # here such a report costs one rollout, in the trainer it would cost the run
            check_routes(turn.routed_experts, len(turn.prompt_ids) + sampled)
        except EvidenceError as error:
            raise _contradiction(turn, str(error)) from error
    _check_ending(turn, checks)


def _check_ending(turn: Turn, checks: Checks) -> None:
    if turn.finish_reason == "length" and not turn.truncated:
        raise _contradiction(turn, "it ended by its length but is not marked as truncated")
    if turn.sampling is None:
        return
    asked = {**turn.sampling, **(turn.sampling.get("extra_body") or {})}
    limit = asked.get("max_completion_tokens") or asked.get("max_tokens")
    if limit and len(turn.completion_ids) > limit:
        raise _contradiction(turn, f"{len(turn.completion_ids)} tokens where at most {limit} were asked for")
    if not checks.stop_ids or turn.truncated or turn.finish_reason in (None, "length") or asked.get("stop"):
        return  # at its limit a reply may end in a stop token, and engines name either
    last = turn.completion_ids[-1]
    if last not in checks.stop_ids and last not in (asked.get("stop_token_ids") or ()):
        raise _contradiction(turn, f"it ended by {turn.finish_reason!r}, but not in a stop token")


def check_text(turn: Turn, checks: Checks, seed: str) -> None:
    """For a share of the turns, chosen by `seed`: raise EvidenceError unless the ids say what was delivered."""
    if checks.decode is None or turn.truncated or not _is_chosen(turn, checks, seed):
        return
    delivered = [turn.reply] if turn.reply else turn.completion or []
    text = checks.decode(turn.completion_ids)
    plain = checks.decode([token for token in turn.completion_ids if token not in checks.special_ids])
    for message in [delivered] if isinstance(delivered, str) else delivered:
        said = _letters(message_text(message))
        if said not in _letters(text) and said not in _letters(plain):
            raise _contradiction(turn, f"its ids say {text[:80]!r}, its message {message_text(message)[:80]!r}")


def _letters(text: str) -> str:
    """The text without what decoders do not agree on: white space, and the mark for bytes that are no character."""
    return "".join(text.replace("\ufffd", "").split())


def _is_chosen(turn: Turn, checks: Checks, seed: str) -> bool:
    import zlib

    return zlib.crc32(f"{seed}/{turn.number}".encode()) < checks.decode_share * 2**32


def _contradiction(turn: Turn, what: str) -> EvidenceError:
    return EvidenceError(f"the evidence of turn {turn.number} contradicts itself: {what}")
