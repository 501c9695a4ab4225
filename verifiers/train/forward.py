"""One forward pass over a micro-batch: the logprobs of its sampled tokens, as the sampler would report them.

    head = SampledHead(model)                      # once a model
    tensors = on_device(micro, device)
    logprobs, entropy = head.logprobs(tensors)     # [N], [N]; N = sampled tokens, in the order of the flat arrays

Logits are computed where a sampled token follows and nowhere else: at 4 sampled of 1,000 tokens that is 4 rows of the
vocabulary's width instead of 1,000.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any

import numpy as np
import torch

from verifiers.errors import ConfigError
from verifiers.train import attention
from verifiers.train.lean import Lean, suits
from verifiers.train.losses.logprobs import token_logprobs
from verifiers.train.packing import MicroBatch, pack
from verifiers.train.rows import Row
from verifiers.train.sharing import Sharing

SLOWER = 3.0
"""How much longer an operation of attention under a mask takes than one of a linear layer, on a CPU."""


@dataclass(frozen=True, slots=True)
class Tensors:
    """A micro-batch on a device; N sampled tokens.

    tokens, positions: int64 [B, T]. segments: int64 [B·T]. at, before: int64 [N], flat places of the sampled tokens
    and of those before them in their rows, which predict them. The rest is [N]. sequence: int64, rows numbered 0..S-1,
    every number used.
    """

    tokens: Any
    positions: Any
    segments: Any
    at: Any
    before: Any
    sequence: Any
    temperatures: Any
    sampler_logprobs: Any
    advantages: Any
    weights: Any
    lengths: list[int]
    """Of the rows of a single sequence and the padding behind them; empty where each row has a sequence of its own."""
    routes: Any = None
    prompts: Any = None
    """int64 [B, T, 2]: from where to where in its sequence the prompt of a place's row stands, if it is another row's,
    else (0, 0). None if every row is whole."""
    ranges: list[tuple[int, int]] = field(default_factory=list)
    """The same for each of `lengths`; empty if every row is whole."""


def on_device(micro: MicroBatch, device: Any) -> Tensors:
    """The arrays as tensors; those of single tokens for the sampled ones alone."""
    at = np.flatnonzero(micro.mask)
    lengths = _lengths(micro)

    def of_sampled(values: Any) -> Any:
        return torch.from_numpy(values.reshape(-1)[at]).to(device)

    segments = micro.segments.reshape(-1)[at]  # in order
    sequence = np.cumsum(np.diff(segments, prepend=segments[:1]) > 0)
    return Tensors(
        tokens=torch.from_numpy(micro.tokens).to(device),
        positions=torch.from_numpy(micro.positions).to(device),
        segments=torch.from_numpy(micro.segments.reshape(-1)).to(device),
        at=torch.from_numpy(at).to(device),
        before=torch.from_numpy(_before(micro, at)).to(device),
        sequence=torch.from_numpy(sequence).to(device),
        temperatures=of_sampled(micro.temperatures),
        sampler_logprobs=of_sampled(micro.logprobs),
        advantages=of_sampled(micro.advantages),
        weights=of_sampled(micro.weights),
        lengths=lengths,
        routes=None if micro.routes is None else _flat_routes(micro.routes, device),
        **_prompts(micro, lengths, device),
    )


def _prompts(micro: MicroBatch, lengths: list[int], device: Any) -> dict[str, Any]:
    if micro.prompts is None:
        return {}
    begins, prompts, sizes = micro.prompts.T
    prompts = prompts % micro.tokens.shape[1]
    of_segment = np.zeros((len(micro.source) + 1, 2), np.int64)
    of_segment[micro.segments.reshape(-1)[begins]] = np.stack([prompts, prompts + sizes], 1)
    of_place = of_segment[micro.segments]
    ranges = [tuple(of_place[0, begin].tolist()) for begin in accumulate(lengths[:-1], initial=0)] if lengths else []
    return {"prompts": torch.from_numpy(of_place).to(device), "ranges": ranges}


def _before(micro: MicroBatch, at: Any) -> Any:
    """[N] places of the tokens before those at these places: the one before, or the last one of a shared prompt."""
    if micro.prompts is None:
        return at - 1
    before = np.arange(-1, micro.tokens.size - 1)
    begins, prompts, lengths = micro.prompts.T
    before[begins] = prompts + lengths - 1
    return before[at]


def _lengths(micro: MicroBatch) -> list[int]:
    if micro.isolated or len(micro.tokens) > 1:
        return []
    begins = np.flatnonzero(micro.positions[0] == 0)
    if micro.prompts is not None:
        begins = np.union1d(begins, micro.prompts[:, 0])
    lengths: list[int] = np.diff(begins, append=micro.tokens.shape[1]).tolist()
    return lengths


def _flat_routes(routes: Any, device: Any) -> Any:
    return torch.from_numpy(routes.reshape(-1, *routes.shape[2:]).astype(np.int64)).to(device)


class SampledHead:
    """A model whose output layer sees the places before sampled tokens only.

    lean: compute shared prompts by `verifiers.train.lean`, where the model is one that it knows. For parameters that
    are whole, without autocast and checkpointing.
    """

    def __init__(self, model: Any, *, lean: bool = False) -> None:
        self.model = model
        self._lean = Lean(model) if lean and suits(model) else None
        self._at: Any = None
        self.by_segments = model.config._attn_implementation == attention.NAME
        model.get_output_embeddings().register_forward_pre_hook(self._select)

    def logprobs(self, tensors: Tensors, *, entropy_gradient: bool = False) -> tuple[Any, Any]:
        """[N] logprobs at each row's temperature, and [N] entropies in nats; float32, or float64 for such a model.

        Rows do not see each other: transformers makes the mask (or the segments of flash-attn) from positions that
        start again; attention by segments is told their lengths. Where a prompt is shared the mask is made here.
        """
        targets = tensors.tokens.view(-1)[tensors.at]
        return token_logprobs(self._logits(tensors), targets, tensors.temperatures, entropy_gradient=entropy_gradient)

    def _logits(self, tensors: Tensors) -> Any:
        """[N, V] of the places before sampled tokens."""
        if self._lean is not None and tensors.prompts is not None:
            return self._lean(tensors.tokens, tensors.positions, _visible(tensors), tensors.before)
        self._at = tensors.before
        try:
            options = self._options(tensors)
            output = self.model(input_ids=tensors.tokens, position_ids=tensors.positions, use_cache=False, **options)
        finally:
            self._at = None
        return output.logits[0]

    def _options(self, tensors: Tensors) -> dict[str, Any]:
        if self.by_segments:
            return {"segment_lengths": tensors.lengths or None, "segment_prompts": tensors.ranges or None}
        return {} if tensors.prompts is None else {"attention_mask": _visible(tensors)}

    def _select(self, _head: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self._at is None:
            return None
        hidden = inputs[0]
        return (hidden.reshape(-1, hidden.shape[-1])[self._at].unsqueeze(0), *inputs[1:])


def _visible(tensors: Tensors) -> Any:
    """[B, 1, T, T] bool: what each place sees. Its own row up to itself, and the prompt of that row."""
    count, width = tensors.tokens.shape
    segments = tensors.segments.view(count, width)
    own = (segments[:, :, None] == segments[:, None, :]).tril_()
    at = torch.arange(width, device=segments.device)
    begin, end = tensors.prompts.unsqueeze(-1).unbind(2)
    return (own | (at >= begin) & (at < end))[:, None]


def check_isolation(head: SampledHead, device: Any) -> None:
    """Raise ConfigError if a row sees the one before it in its sequence, after two passes over a few tokens.

    Some models of transformers make their masks without positions (gpt-oss in 5.24): rows would be trained in the
    context of others, and nothing would show it.
    """
    with _probing(head.model):
        first, second = (_second_of_two(head, device, other) for other in (1, 9))
    if not _same(head, first, second):
        raise ConfigError(
            f"packed rows would see each other: {head.model.config.model_type} does not keep them apart "
            f"(attention {head.model.config._attn_implementation})",
            hint="Set trainer.packing = false, or another model.attention.",
        )


def sharing_of(head: SampledHead, device: Any) -> Sharing | None:
    """What a pass of this model costs, if its rows may share prompts; None where that would be another computation.

    It would be with dropout, which is drawn a row, with windows and chunks that transformers makes masks for, with
    layers that read a sequence in order, and with kernels that take no mask. What the configuration does not show, two
    passes over a few tokens do.
    """
    config = head.model.config.get_text_config()
    if config._attn_implementation not in ("sdpa", attention.NAME) or _drops(head.model, config):
        return None
    kinds = set(getattr(config, "layer_types", None) or ())
    kinds |= {"sliding_attention"} if getattr(config, "sliding_window", None) else set()
    if kinds - {"full_attention", *(("sliding_attention",) if head.by_segments else ())}:
        return None
    rows = [_probe_row([*range(8), *own]) for own in (range(8), range(9, 17))]
    with _probing(head.model):
        try:
            shared, whole = (_all_of(head, device, rows, sharing) for sharing in (Sharing(1, 0), None))
        except (TypeError, ValueError, RuntimeError):  # boundary: a model's own code, which may not take such a mask
            return None
    return _costs(head, config) if _same(head, shared, whole) else None


def _costs(head: SampledHead, config: Any) -> Sharing:
    """Operations forward: two a weight and token; a pair of places takes four a number of a query in each layer."""
    model = head.model
    unseen = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
    weights = sum(value.numel() for value in model.parameters() if id(value) not in unseen)
    heads = config.num_attention_heads
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    return Sharing(2.0 * weights, 0.0 if head.by_segments else SLOWER * 4.0 * width * config.num_hidden_layers)


def _drops(model: Any, config: Any) -> bool:
    settings = (value for name, value in config.to_dict().items() if "drop" in name)
    modules = (module.p for module in model.modules() if isinstance(module, torch.nn.Dropout))
    return any(isinstance(rate, float) and rate > 0 for rate in chain(settings, modules))


@contextmanager
def _probing(model: Any) -> Iterator[None]:
    was_training = model.training
    model.eval()  # dropout would differ between the passes
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def _second_of_two(head: SampledHead, device: Any, begin: int) -> Any:
    """[7] logprobs of a row of 8 tokens behind another one, whose ids count from `begin`."""
    rows = [_probe_row(list(ids), prompt=1) for ids in (range(begin, begin + 8), range(8))]
    return _all_of(head, device, rows, None, width=16)[7:]


def _all_of(
    head: SampledHead, device: Any, rows: list[Row], sharing: Sharing | None, width: int | None = None
) -> Any:
    (micro,) = pack(rows, 32, width=width, sharing=sharing).batches
    return head.logprobs(on_device(micro, device))[0]


def _probe_row(tokens: list[int], prompt: int = 8) -> Row:
    size = len(tokens)
    return Row(tokens, [place >= prompt for place in range(size)], [0.0] * size, [0] * size, None)


def _same(head: SampledHead, one: Any, other: Any) -> bool:
    return bool((one - other).abs().max() <= (1e-4 if _exact(head.model) else 2e-2))


def _exact(model: Any) -> bool:
    return next(model.parameters()).dtype in (torch.float32, torch.float64)
