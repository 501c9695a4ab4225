"""The one configuration of a training run. Light: no torch here. Unknown keys are errors.

    config = load_config(["rl.toml"], ["trainer.lr=1e-5", "loop.max_lag=4"])     # verifiers.train.config_files

Each section is a model of its own, and what it configures takes that section and nothing else. What contradicts itself
raises ConfigError here, with what to do about it; pydantic collects it. Sections that `vf-sft` has too, those of the
loss, and its own are in files beside this one, and are imported from here. `docs/reference/train-config.md` is
generated from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from verifiers.errors import ConfigError
from verifiers.train.config_losses import AdvantageConfig, LossConfig
from verifiers.train.config_policy import CheckpointConfig, LogConfig, LoraConfig, ModelConfig, TrainerConfig
from verifiers.train.config_section import NonNegative, Section, Seed, Share
from verifiers.train.config_sft import SftConfig, SftDataConfig, SftLoopConfig

__all__ = [
    "AdvantageConfig",
    "CheckpointConfig",
    "EnvironmentConfig",
    "EvalConfig",
    "LogConfig",
    "LoopConfig",
    "LoraConfig",
    "LossConfig",
    "ModelConfig",
    "SamplerConfig",
    "SamplingConfig",
    "SftConfig",
    "SftDataConfig",
    "SftLoopConfig",
    "TrainConfig",
    "TrainerConfig",
]

LARGEST_BATCH = 1_000_000
"""Rollouts."""

TRUNCATING = ("top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
"""Sampling arguments that change the distribution that is sampled from, but not the policy's logprobs."""


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
    """Tokens of one sequence, prompt and reply, where the model or the vLLM server does not have less."""
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
        if self.sampler.transfer == "nccl" and self.model.lora is not None:
            raise ConfigError(
                "sampler.transfer is nccl, which brings whole weights to vLLM, and an adapter is trained",
                hint="Leave sampler.transfer out.",
            )
        _check_names(self.env, "env")
        _check_names(self.eval.environments if self.eval else [], "eval.environments")
        return self


def _check_names(entries: Sequence[EnvironmentConfig], where: str) -> None:
    """ConfigError for two of one name: figures, and the order of tasks, are by name."""
    labels = [one.label for one in entries]
    if doubles := sorted({label for label in labels if labels.count(label) > 1}):
        raise ConfigError(
            f"two entries of {where} are called {doubles[0]!r}", hint=f"Give each a name of its own: {where}.0.name=…"
        )
