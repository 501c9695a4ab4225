"""The configuration of a run of `vf-sft`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from verifiers.errors import ConfigError
from verifiers.train.config_policy import CheckpointConfig, LogConfig, ModelConfig, TrainerConfig
from verifiers.train.config_section import Section, Seed


class SftDataConfig(Section):
    """Conversations to learn from, and which of their tokens are learned."""

    files: list[str] = Field(default_factory=list)
    """Folders of runs; files (.jsonl, .jsonl.gz, .parquet) of `messages`, of `prompt` and `completion`, or of rows."""
    validation: list[str] = Field(default_factory=list)
    """As `files`: what the loss is measured on, and nothing is learned from."""
    validation_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Of the conversations in `files` that are kept for validation; the same ones in every run."""
    roles: list[Literal["assistant", "tool", "user", "system"]] = Field(default=["assistant"], min_length=1)
    """Whose messages are learned. All others, and those of a `prompt`, are context."""
    turns: Literal["all", "last"] = "all"
    """Every message of those roles, or the last one."""
    ids: Literal["auto", "require", "ignore"] = "auto"
    """Of records that hold token ids: learn those where they are of this tokenizer; refuse others; or always tokenise
    the text."""
    min_reward: float | None = None
    """Leave out conversations with less, and those without a reward."""
    template: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the chat template, such as `enable_thinking`."""
    max_tokens: PositiveInt | None = None
    """Longer conversations are left out, and counted."""


class SftLoopConfig(Section):
    """How often and in which order the conversations are gone through."""

    epochs: PositiveInt = 1
    """How often each conversation is learned."""
    steps: PositiveInt | None = None
    """Stop after so many updates, if the epochs have not ended before."""
    rows_per_batch: PositiveInt = 32
    """Rows of one update."""
    shuffle: bool = True
    """In each epoch another order."""
    seed: Seed = 0
    """Of the order."""
    validate_every: PositiveInt | None = None
    """Updates between two measurements of the validation loss; None measures after each epoch."""


class SftConfig(Section):
    """A run of `vf-sft`."""

    model: ModelConfig
    output: Path = Path("outputs/sft")
    """The folder of the run."""
    data: SftDataConfig = SftDataConfig()
    sft: SftLoopConfig = SftLoopConfig()
    trainer: TrainerConfig = TrainerConfig(lr=2e-5, schedule="cosine", warmup_steps=10)
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()

    @model_validator(mode="after")
    def _held_out(self) -> Self:
        if self.sft.validate_every is not None and not (self.data.validation or self.data.validation_share):
            raise ConfigError(
                "sft.validate_every has no effect: nothing is held out to measure the validation loss on",
                hint="Leave it out, or set data.validation or data.validation_share.",
            )
        return self
