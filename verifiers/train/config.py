"""The one configuration of a training run. Light: no torch here. Unknown keys are errors.

    config = load_config(["rl.toml"], ["trainer.lr=1e-5", "loop.max_lag=4"])     # verifiers.train.config_files

Each section is a model of its own, and what it configures takes that section and nothing else. What contradicts itself
raises ConfigError here, with what to do about it; pydantic collects it. `docs/reference/train-config.md` is generated
from this file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from verifiers.errors import ConfigError

NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
"""What every generator of random numbers takes."""
LARGEST_BATCH = 1_000_000
"""Rollouts."""
MOST = 2**31 - 1
"""No setting that counts is larger: libraries hold some of them in 32 bits."""


NONE = "none"
"""Stands for "not set" in files and overrides, where a setting may be unset: TOML has no null."""

TRUNCATING = ("top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
"""Sampling arguments that change the distribution that is sampled from, but not the policy's logprobs."""


def _kinds(annotation: Any) -> Iterator[Any]:
    """The types that an annotation is made of."""
    yield annotation
    for part in get_args(annotation):
        yield from _kinds(part)


class Section(BaseModel):
    """What all sections share: unknown keys are refused, and nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _as_written(cls, value: Any, info: ValidationInfo) -> Any:
        """`none` where a setting may be unset, and one text or table where there may be several. `true` is no number,
        and no number is beyond what the libraries below can hold."""
        annotation = cls.model_fields[info.field_name].annotation if info.field_name is not None else None
        if value == NONE and NoneType in get_args(annotation):
            return None
        kinds = set(_kinds(annotation))
        if isinstance(value, bool) and kinds & {int, float} and bool not in kinds:
            raise ValueError("input should be a number")
        if isinstance(value, int) and int in kinds and value > MOST and info.field_name != "seed":
            raise ValueError(f"input should be at most {MOST}")
        return [value] if get_origin(annotation) is list and isinstance(value, str | dict) else value


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
    """Of AdamW, decoupled."""
    max_grad_norm: PositiveFloat | None = 1.0
    """Longer gradients are shortened to it."""
    tokens_per_microbatch: PositiveInt = 8192
    """What one forward pass holds at most; a row that is longer is refused."""
    packing: bool = True
    """Rows of a micro-batch in one sequence, each seeing itself only; otherwise padded."""
    updates_per_batch: PositiveInt = 1
    """More than one splits a batch into that many updates; ratios then have the policy before the first as the old
    one."""
    autocast: Literal["none", "bfloat16"] = "none"
    """Compute in half precision; weights stay in `model.dtype`."""
    seed: Seed = 0
    """Of dropout, and of a new adapter."""


class AdvantageConfig(Section):
    """What a rollout was worth beside the others of its group."""

    kind: Literal["mean", "leave_one_out", "max_rl", "rae"] = "mean"
    """What a reward is held against: the mean of the group, that of the others in it, the mean and then divided by it
    (MaxRL), or a running mean of the groups before (RAE)."""
    std: bool = False
    """Divide by the group's standard deviation (GRPO as published); biased towards easy and hard tasks."""
    std_eps: PositiveFloat = 1e-4
    """Added to the standard deviation."""
    rae_decay: Share = 0.95
    """Of the running mean."""
    step_rewards: bool = False
    """Use the rewards that environments give turn by turn, each from its turn on."""
    step_discount: Share = 1.0
    """Of rewards of later turns."""
    length_penalty: NonNegative = 0.0
    """Share of the mean reward that the longest reply of a group loses."""
    overlong: Literal["mask", "keep", "drop"] = "mask"
    """Truncated rollouts: out of the loss but in the baseline; as any other; or out of both."""
    overlong_soft_tokens: Annotated[int, Field(ge=0)] = 0
    """Width of the zone below the token limit in which the reward falls by up to 1 (DAPO, section 3.4)."""


class LossConfig(Section):
    """The policy loss, what masks its tokens and sequences, and what is added to it."""

    kind: Literal["dppo", "icepop", "ppo", "reinforce", "gspo", "cispo"] = "dppo"
    """Which surrogate; docs/guides/training-losses.md has the formulas."""
    clip_low: PositiveFloat = 0.2
    """`ppo`: ratios below 1 minus this are clipped."""
    clip_high: PositiveFloat = 0.28
    """`ppo`: ratios above 1 plus this are clipped."""
    dual_clip: PositiveFloat | None = None
    """`ppo`: bound of the ratio where the advantage is negative."""
    icepop_low: PositiveFloat = 0.5
    """`icepop`: tokens with a lower ratio are left out."""
    icepop_high: PositiveFloat = 5.0
    """`icepop`: tokens with a higher ratio are left out."""
    dppo_delta: PositiveFloat = 0.2
    """`dppo`: tokens whose probability has moved further than this, away from the sampler, are left out."""
    gspo_low: PositiveFloat = 3e-4
    """`gspo`: as clip_low, of sequences."""
    gspo_high: PositiveFloat = 4e-4
    """`gspo`: as clip_high, of sequences."""
    cispo_high: PositiveFloat = 0.28
    """`cispo`: weights of tokens are at most 1 plus this."""
    tis_cap: PositiveFloat | None = None
    """Truncated importance sampling: weight of a token by min(old policy / sampler, this)."""
    sequence_mask: Literal["none", "geometric", "product"] = "none"
    """Leave out whole sequences by the mean or the product of their ratios."""
    geometric_low: PositiveFloat = 0.99
    """Least mean ratio of a sequence."""
    geometric_high: PositiveFloat = 1.01
    """Greatest mean ratio of a sequence."""
    product_cap: PositiveFloat = 3.0
    """Greatest product of the ratios of a sequence."""
    off_policy_delta: PositiveFloat | None = None
    """Drop sequences of negative advantage whose mean log(sampler / policy) is above this (DeepSeek-V3.2)."""
    drift: NonNegative = 1e-3
    """Coefficient of (log ratio)², over all sampled tokens."""
    kl: NonNegative = 0.0
    """Coefficient of the KL divergence from the reference model (k3)."""
    entropy: float = 0.0
    """Coefficient of the entropy, which is rewarded."""
    normalise: Literal["token", "dr_grpo", "sequence"] = "token"
    """Divide by all sampled tokens, by sequences of one constant length, or each sequence by its own."""
    max_tokens: PositiveInt | None = None
    """The constant length of `dr_grpo`; None takes `sampling.max_tokens`."""


class SamplingConfig(Section):
    """What the policy is asked to sample. Truncated sampling (top_p and its kind) is refused: its logprobs are not
    those of the policy."""

    temperature: PositiveFloat = 1.0
    """Of sampling; the trainer divides by it, too."""
    max_tokens: PositiveInt = 512
    """Of one reply."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of each request, such as `stop` or `chat_template_kwargs`."""

    @model_validator(mode="before")
    @classmethod
    def _whole_distribution(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        extra = values.get("extra")
        given = [*values, *(extra if isinstance(extra, dict) else ())]
        if refused := [name for name in TRUNCATING if name in given]:
            raise ConfigError(
                f"{', '.join(refused)}: truncated or penalised sampling is refused, since its logprobs are not those "
                "of the policy that is trained",
                hint="Leave it out; sampling.temperature may be set.",
            )
        if twice := {"temperature", "max_tokens", "seed", "n"} & set(extra if isinstance(extra, dict) else ()):
            raise ConfigError(
                f"sampling.extra holds {', '.join(sorted(twice))}, which is set elsewhere",
                hint="sampling.temperature and sampling.max_tokens are settings; seeds come from loop.seed.",
            )
        return values


class SamplerConfig(Section):
    """Where rollouts are sampled."""

    kind: Literal["inproc", "process", "vllm"] = "inproc"
    """In this process, in one of our own beside it, or vLLM servers."""
    urls: list[str] = Field(default_factory=list)
    """Of vLLM servers, without /v1."""
    api_key_var: str | None = None
    """Variable of the environment that holds the key of the vLLM servers, if they ask for one."""
    transfer: Literal["folder", "nccl"] = "folder"
    """How weights reach vLLM: in folders below the run's, which the servers have to see, or by NCCL from GPU to GPU."""
    host: str = "127.0.0.1"
    """Where this process serves the sampler to environments in workers, without any authentication: for workers on
    other machines, its address in their network."""
    max_batch: Annotated[int, Field(ge=1, le=65_536)] = 64
    """Sequences that are decoded together."""
    max_context: PositiveInt = 4096
    """Tokens of one sequence, prompt and reply."""
    deterministic: bool = False
    """The same bits for the same request in any company, at the cost of speed; not with vLLM."""
    recompute_cache: bool = False
    """After an update compute again what the old weights computed for running requests; not with vLLM."""
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float64"] = "auto"
    """`auto` takes that of `model`."""
    device: str = "auto"
    """`auto` takes that of `model`."""

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.kind == "vllm" and not self.urls:
            raise ConfigError(
                "kind is vllm, and no server is named",
                hint='Name them: sampler.urls=["http://127.0.0.1:8000"]; vllm serve MODEL starts one.',
            )
        for name, given in (("urls are those", self.urls), ("api_key_var is that", self.api_key_var)):
            if self.kind != "vllm" and given:
                raise ConfigError(f"{name} of vLLM servers, and kind is {self.kind}", hint="Set sampler.kind=vllm.")
        return self


class EnvironmentConfig(Section):
    """An environment to learn from, or to be evaluated on."""

    id: str
    """Name, folder, or `owner/name@version` of a hub."""
    name: str = ""
    """In figures; the id if empty."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of `load_environment`."""
    ratio: PositiveFloat = 1.0
    """Share of the groups, beside the other environments'."""
    max_tasks: PositiveInt | None = None
    """Only the first so many tasks."""
    workers: Annotated[int, Field(ge=0)] = 0
    """Processes that play it; 0 plays it in the process of the loop, which code that blocks would stall."""
    isolated: bool = False
    """In a virtual environment of its own, in one worker at least; made once, by uv."""
    ray: str | None = None
    """A Ray cluster whose machines run the workers: auto, HOST:PORT or ray://HOST:PORT. They have to reach
    `sampler.host`."""
    ray_options: dict[str, Any] = Field(default_factory=dict)
    """What each worker gets there: num_cpus, runtime_env …"""
    pools: bool = False
    """Prefer tasks of middling difficulty: solved more than `hard` and less than `easy` of the time."""
    hard: Share = 0.25
    """Tasks that are solved less often are hard."""
    easy: Share = 0.75
    """Tasks that are solved more often are easy."""
    pool_weight: NonNegative = 0.2
    """Weight of easy and hard tasks beside the others."""

    @model_validator(mode="before")
    @classmethod
    def _by_id(cls, values: Any) -> Any:
        return {"id": values} if isinstance(values, str) else values

    @model_validator(mode="after")
    def _hard_below_easy(self) -> Self:
        if self.hard >= self.easy:
            raise ConfigError(f"hard is {self.hard:g} and easy {self.easy:g}", hint="`hard` has to be below `easy`.")
        return self

    @property
    def in_workers(self) -> bool:
        """Whether other processes play it."""
        return self.workers > 0 or self.isolated or self.ray is not None

    @property
    def label(self) -> str:
        """What its figures are named by."""
        return self.name or self.id


class EvalConfig(Section):
    """Evaluation while training."""

    every: PositiveInt = 100
    """Steps from one evaluation to the next; the last step is evaluated, too."""
    at_start: bool = True
    """Evaluate before the first step."""
    num_examples: PositiveInt = 32
    """Tasks of each environment."""
    rollouts_per_example: PositiveInt = 1
    """Rollouts of each task."""
    environments: list[EnvironmentConfig] = Field(default_factory=list)
    """None takes those that are trained on, on their evaluation tasks."""


class LoopConfig(Section):
    """How sampling and training go together."""

    steps: PositiveInt = 100
    """Batches to train on."""
    groups_per_batch: PositiveInt = 8
    """Groups with something to learn that make a batch."""
    group_size: PositiveInt = 8
    """Rollouts of one task that are held against each other."""
    max_lag: Annotated[int, Field(ge=0)] = 8
    """Versions between the oldest sampled token of a row and its training. Sampling is paced by it, rows are cut by
    it; 0 samples and trains in turn."""
    oversample: Annotated[float, Field(ge=1, le=100)] = 1.0
    """Groups in flight beyond what pacing asks for, so that stragglers delay no batch."""
    max_rollouts: PositiveInt = 256
    """Rollouts in flight at most, over all environments."""
    straggler_seconds: PositiveFloat | None = None
    """What of a group is unfinished so long after its start is cut off."""
    max_retries: Annotated[int, Field(ge=0)] = 2
    """Further attempts of a rollout that failed by infrastructure, one at a time."""
    filter_zero_advantage: bool = True
    """Leave groups without a difference in reward out, and sample others in their place."""
    max_empty_batches: PositiveInt = 10
    """Batches' worth of groups in a row with nothing to train on, after which the run stops and says why."""
    seed: Seed = 0
    """Of the order of tasks and of sampling."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.group_size < 2:
            raise ConfigError(
                "group_size is 1, and a rollout's advantage is what it was worth beside the others of its group",
                hint="Take loop.group_size=2 or more; 8 is usual.",
            )
        if self.max_lag == 0 and self.oversample > 1:
            raise ConfigError(
                "max_lag is 0, so nothing may be sampled beyond the present batch, and oversample asks for it",
                hint="Leave oversample out, or allow some lag: loop.max_lag=1.",
            )
        if (rollouts := self.groups_per_batch * self.group_size) > LARGEST_BATCH:
            raise ConfigError(
                f"a batch would have {rollouts} rollouts (groups_per_batch × group_size), and {LARGEST_BATCH} is the "
                "most: it is held in memory",
                hint="Lower loop.groups_per_batch or loop.group_size.",
            )
        if self.max_rollouts < self.group_size:
            raise ConfigError(
                f"max_rollouts is {self.max_rollouts}, and a group has {self.group_size}",
                hint=f"Take loop.max_rollouts={self.group_size} or more.",
            )
        return self


class CheckpointConfig(Section):
    """What is kept to go on from."""

    every: PositiveInt = 50
    """Steps from one to the next; the end of a run makes one, too."""
    keep: PositiveInt = 2
    """How many stay."""


class LogConfig(Section):
    """Where figures go beside `metrics.jsonl`."""

    prometheus_port: Annotated[int, Field(ge=0, le=65_535)] | None = None
    """/metrics and /health on the loopback interface; 0 takes a free port."""
    wandb: str | None = None
    """The project's name."""
    tensorboard: bool = False
    """Write events into the run folder."""
    save_rows: bool = False
    """Keep every trained row in the run's folder."""


class TrainConfig(Section):
    """A run of `vf-train`."""

    model: ModelConfig
    output: Path = Path("outputs/train")
    """The folder of the run."""
    sampler: SamplerConfig = SamplerConfig()
    sampling: SamplingConfig = SamplingConfig()
    trainer: TrainerConfig = TrainerConfig()
    advantage: AdvantageConfig = AdvantageConfig()
    loss: LossConfig = LossConfig()
    loop: LoopConfig = LoopConfig()
    env: list[EnvironmentConfig] = Field(min_length=1)
    eval: EvalConfig | None = None
    """Not set evaluates nothing."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.model.path:
            raise ConfigError("model.path is missing", hint="Name the model to train: model.path=FOLDER.")
        if self.sampling.max_tokens >= self.sampler.max_context:
            raise ConfigError(
                f"sampling.max_tokens is {self.sampling.max_tokens}, which leaves no room for a prompt in "
                f"sampler.max_context ({self.sampler.max_context})",
                hint="Raise sampler.max_context, or lower sampling.max_tokens.",
            )
        if self.trainer.tokens_per_microbatch < self.sampler.max_context:
            raise ConfigError(
                f"a row may have {self.sampler.max_context} tokens (sampler.max_context), and "
                f"trainer.tokens_per_microbatch is {self.trainer.tokens_per_microbatch}",
                hint="Raise trainer.tokens_per_microbatch, or lower sampler.max_context.",
            )
        updates = self.loop.steps * self.trainer.updates_per_batch
        if self.trainer.warmup_steps >= updates:
            raise ConfigError(
                f"trainer.warmup_steps is {self.trainer.warmup_steps}, and a run of loop.steps={self.loop.steps} has "
                f"{updates} updates",
                hint="Warm up for fewer updates than the run has.",
            )
        rollouts = self.loop.groups_per_batch * self.loop.group_size
        if self.trainer.updates_per_batch > rollouts:
            raise ConfigError(
                f"trainer.updates_per_batch is {self.trainer.updates_per_batch}, and a batch has {rollouts} rollouts",
                hint="Split a batch into fewer updates.",
            )
        if self.sampler.transfer == "nccl" and (self.sampler.kind != "vllm" or self.model.lora is not None):
            raise ConfigError(
                "sampler.transfer is nccl, which brings whole weights to vLLM, "
                + ("and an adapter is trained" if self.model.lora else f"and sampler.kind is {self.sampler.kind}"),
                hint="Leave sampler.transfer out.",
            )
        labels = [one.label for one in self.env]
        if doubles := sorted({label for label in labels if labels.count(label) > 1}):
            raise ConfigError(
                f"two entries of env are called {doubles[0]!r}", hint="Give each a name of its own: env.0.name=…"
            )
        return self


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
