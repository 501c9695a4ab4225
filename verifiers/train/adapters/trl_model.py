"""The model of a `GRPOTrainer`: a copy of it that samples, its present weights, its logprobs beside a sampler's."""

from __future__ import annotations

import copy
from typing import Any

from verifiers.errors import MissingExtraError
from verifiers.train.evidence import Checks, checks_with
from verifiers.train.learner import Weights
from verifiers.train.rows import Row
from verifiers.train.weights import WeightFolders

try:
    import torch

    from verifiers.train.engines.torch_engine import TorchEngine, stop_tokens
except ImportError as error:
    raise MissingExtraError("trl", "Training with TRL") from error


def sampling_copy(trainer: Any, tokenizer: Any) -> TorchEngine:
    """A copy of the trainer's model that samples. With an adapter, of the model below it."""
    model = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    adapter = getattr(model, "peft_config", {}).get("default")
    own = copy.deepcopy(model)
    own = own.unload() if adapter is not None else own
    disable = getattr(own, "activation_checkpointing_disable", None) or own.gradient_checkpointing_disable
    disable()
    return TorchEngine(
        own.requires_grad_(False).eval(),
        stop_token_ids=trainer.eos_token_ids,
        decode=tokenizer.decode,
        adapter=adapter,
        seed=int(trainer.args.seed),
    )


def checks_of(trainer: Any, tokenizer: Any) -> Checks:
    """What the rollouts' evidence is held against: the trainer's model, and the tokenizer that it is sampled with."""
    tokenizer = tokenizer or trainer.processing_class
    model = trainer.accelerator.unwrap_model(trainer.model)
    vocabulary = int(model.config.get_text_config().vocab_size)  # its weights may be spread over processes
    stop_ids = stop_tokens(model, tokenizer).union(trainer.eos_token_ids)
    return checks_with(tokenizer, vocabulary=vocabulary, stop_ids=stop_ids)


def weights_of(trainer: Any, version: int, folders: WeightFolders | None) -> Weights:
    """The trainer's present weights: in a folder, or as tensors, of the adapter alone if one is trained."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    if folders is not None:
        return folders.publish(version, model)
    if hasattr(model, "peft_config"):
        import peft

        return Weights(version, tensors=dict(peft.get_peft_model_state_dict(model)), adapter=True)
    return Weights(version, tensors=model.state_dict())


def logprob_gap(trainer: Any, row: Row) -> float:
    """Mean |Δ logprob| of a row's sampled tokens between its sampler and the trainer's model, in nats."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), trainer.accelerator.autocast():
            ids = torch.tensor([row.tokens], device=trainer.accelerator.device)
            logits = model(input_ids=ids).logits[0, :-1].float() / trainer.temperature
    finally:
        model.train(training)
    own = torch.log_softmax(logits, dim=-1).gather(1, ids[0, 1:, None])[:, 0].tolist()
    gaps = [abs(own[at - 1] - row.logprobs[at]) for at, sampled in enumerate(row.mask) if sampled and at]
    return float(sum(gaps) / len(gaps))
