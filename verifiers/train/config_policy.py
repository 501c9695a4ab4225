"""The sections that `vf-train` and `vf-sft` share: the policy, one update of it, and what is kept of a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from verifiers.train.config_section import Decay, NonNegative, Section, Seed


class LoraConfig(Section):
    """Train a LoRA adapter (PEFT) instead of all weights."""

    rank: PositiveInt = 16
    """Columns of each pair of matrices that is added."""
    alpha: PositiveFloat = 32.0
    """What is added is scaled by alpha / rank."""
    dropout: Decay = 0.0
    """Of the input of what is added, while training."""
    target_modules: list[str] | Literal["all-linear"] = "all-linear"
    """Names of the layers that get one."""


class ModelConfig(Section):
    """The policy."""

    path: str = ""
    """A folder in Hugging Face's layout, a name there, or a GGUF file."""
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
    """Of the weights that are trained. Mixed precision is `trainer.autocast`."""
    attention: Literal["auto", "sdpa", "eager", "segments", "flash_attention_2"] = "auto"
    """How packed rows are kept apart: by a mask (sdpa, eager), row by row (segments), or in one kernel, of the package
    flash-attn. "auto" takes sdpa on a CPU and the last that there is on a GPU."""
    gradient_checkpointing: bool = False
    """Compute activations again on the way back: less memory, a third more time."""
    lora: LoraConfig | None = None
    """Train an adapter; not set trains all weights."""
    device: str = "auto"
    """`auto` takes a GPU if there is one."""
    router_aux_coefficient: NonNegative = 0.001
    """Of the load-balancing loss of a mixture of experts; it is added to the loss, apart from it in the figures."""
    router_replay: bool = True
    """Route trained tokens as the sampler did, where it reported how (R3, arXiv 2510.11370)."""


class TrainerConfig(Section):
    """One update."""

    lr: PositiveFloat = 1e-6
    """Learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate goes on after the warm-up."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Updates in which the learning rate rises from 0."""
    total_steps: PositiveInt | None = None
    """The update at which a schedule ends; None takes those of the whole run."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """`sgd` has no momentum."""
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    """Of AdamW."""
    eps: PositiveFloat = 1e-8
    """Of AdamW."""
    weight_decay: NonNegative = 0.0
    """Of matrices; AdamW's is decoupled."""
    max_grad_norm: PositiveFloat | None = 1.0
    """Longer gradients are shortened to it."""
    tokens_per_microbatch: PositiveInt = 8192
    """What one forward pass holds at most; a row that is longer is refused."""
    packing: bool = True
    """Rows of a micro-batch in one sequence, each seeing itself only; otherwise padded."""
    share_prompts: bool = True
    """Compute a prompt once for the packed rows that begin with it, where that is exact and cheaper."""
    updates_per_batch: PositiveInt = 1
    """More than one splits a batch into that many updates; ratios then have the policy before the first as the old
    one."""
    autocast: Literal["none", "bfloat16"] = "none"
    """Compute in half precision; weights stay in `model.dtype`."""
    seed: Seed = 0
    """Of dropout, and of a new adapter."""


class CheckpointConfig(Section):
    """What is kept to go on from."""

    every: PositiveInt = 50
    """Steps from one to the next; the end of a run makes one, too."""
    keep: PositiveInt = 2
    """How many stay."""


class LogConfig(Section):
    """Where figures go beside `metrics.jsonl`."""

    prometheus_port: Annotated[int, Field(ge=0, le=65_535)] | None = None
    """/metrics and /health; 0 takes a free port."""
    prometheus_host: str = "127.0.0.1"
    """The address of this machine that they are served on, without any authentication; 0.0.0.0 is all of them."""
    wandb: str | None = None
    """The project's name."""
    tensorboard: bool = False
    """Write events into the run folder."""
    save_rows: bool = False
    """Keep every trained row in the run's folder."""
