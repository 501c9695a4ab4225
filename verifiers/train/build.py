"""From a configuration to a run: environments, sampler, learner, loop. Loads torch.

    async with built(config, learner, found, evaluated, folder) as run:
        await run.loop.run()
        run.learner.export(folder / MODEL)

What is started here (an engine, a server, workers) ends with the block. Under torchrun the first process builds this;
the others follow its learner.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from transformers.utils.logging import disable_progress_bar

from verifiers.clients.embedded import KEY_VAR
from verifiers.clients.local import SamplerClient, TokenizerRenderer
from verifiers.clients.sampler import Sampler
from verifiers.evals.lookup import FoundEnvironment
from verifiers.rollouts.source import GroupSource
from verifiers.train.advantages import make_algorithm
from verifiers.train.checkpoint import Checkpoints
from verifiers.train.config import EnvironmentConfig, LossConfig, ModelConfig, TrainConfig, TrainerConfig
from verifiers.train.curriculum import Pools
from verifiers.train.distributed import Ranks, join
from verifiers.train.engines.http import HttpSampler
from verifiers.train.engines.process import ProcessSampler
from verifiers.train.engines.server import SamplerServer
from verifiers.train.engines.torch_engine import TorchEngine, stop_tokens
from verifiers.train.engines.transfer import BroadcastTransfer, NcclGroup
from verifiers.train.environments import Split
from verifiers.train.evaluation import EvaluatedEnvironment, Evaluation
from verifiers.train.evidence import Checks, checks_with
from verifiers.train.flow import EnvironmentSource
from verifiers.train.learner import Learner, Weights
from verifiers.train.loop import AsyncLoop
from verifiers.train.losses.cross_entropy import cross_entropy, learned_tokens
from verifiers.train.models import Policy, find_device, load_policy
from verifiers.train.players import Playing, Served, opened, options_of
from verifiers.train.replay import Recording
from verifiers.train.run_folder import CHECKPOINTS, ROWS, WEIGHTS, RunFolder
from verifiers.train.trainer import TorchLearner
from verifiers.train.weights import WeightFolders, checkpoint_tensors
from verifiers.types import ClientConfig, SamplingArgs

MODEL_NAME = "policy"
"""What the policy is called in requests."""


@dataclass(frozen=True, slots=True)
class Run:
    """What was built: the loop that drives everything, the learner that holds the weights, the environments' facts."""

    loop: AsyncLoop
    learner: TorchLearner
    environments: Sequence[Mapping[str, Any]]
    went_on_from: int | None
    """The step of the checkpoint; None for a run that begins."""


def joined(config: ModelConfig) -> Ranks:
    """The processes of torchrun, this one among them, or this one alone."""
    return join(find_device(config.device))


def loaded_policy(config: ModelConfig, seed: int, *, reference: bool = False) -> Policy:
    """The policy, loaded without a bar that would run through the view."""
    disable_progress_bar()
    return load_policy(config, reference=reference, seed=seed)


def make_learner(config: TrainConfig, ranks: Ranks | None = None) -> TorchLearner:
    """The policy, loaded, and its trainer. Processes of torchrun that are not the first `follow` it."""
    loss: LossConfig = config.loss
    if loss.normalise == "dr_grpo" and loss.max_tokens is None:
        loss = loss.model_copy(update={"max_tokens": config.sampling.max_tokens})
    policy = loaded_policy(config.model, config.trainer.seed, reference=loss.kl > 0)
    return TorchLearner(policy, config.trainer, loss, total_steps=config.loop.steps, ranks=ranks)


def make_sft_learner(
    policy: Policy, config: TrainerConfig, total_steps: int, ranks: Ranks | None = None
) -> TorchLearner:
    """A trainer that imitates. total_steps: where its schedule ends."""
    return TorchLearner(
        policy, config, cross_entropy, denominator=learned_tokens, total_steps=total_steps, ranks=ranks
    )


def checks_of(policy: Policy) -> Checks:
    """What the evidence of rollouts that a policy samples is held against."""
    tokenizer = policy.tokenizer
    return checks_with(tokenizer, vocabulary=policy.vocabulary, stop_ids=stop_tokens(policy.model, tokenizer))


@asynccontextmanager
async def built(
    config: TrainConfig,
    learner: TorchLearner,
    found: Sequence[FoundEnvironment],
    evaluated: Sequence[tuple[EnvironmentConfig, FoundEnvironment]],
    folder: RunFolder,
) -> AsyncIterator[Run]:
    """Everything that a run needs, for as long as the block lasts.

    found: where the environments of `config.env` are, in order; evaluated: those of evaluations. A run goes on from the
    newest checkpoint in the folder.
    """
    sampling: SamplingArgs = {
        **config.sampling.extra,
        "temperature": config.sampling.temperature,
        "max_tokens": config.sampling.max_tokens,
    }
    async with AsyncExitStack() as ends:
        sampler = await _sampler(config, learner, ends)
        renderer = TokenizerRenderer(learner.policy.tokenizer, sampler.info().context)
        endpoint = None
        if any(one.in_workers for one in [*config.env, *(one for one, _ in evaluated)]):
            endpoint = await _endpoint(config, sampler, renderer, ends)
        served = Served(SamplerClient(sampler, renderer), sampler.info().model, endpoint, renderer)
        trained: Learner = learner
        if _in_folders(config):
            trained = _InFolders(learner, WeightFolders(folder / WEIGHTS, durable=False))
        sources, facts = [], []
        for one, place in zip(config.env, found, strict=True):
            source, playing = await _source(one, place, served, sampling, config, ends)
            pools = Pools(one.hard, one.easy, one.pool_weight) if one.pools else None
            sources.append(EnvironmentSource(one.label, source, source.task_ids, one.ratio, pools, playing.ref))
            facts.append(_facts(one, playing))
        loop = AsyncLoop(
            sources,
            sampler,
            Recording(trained, folder / ROWS, ".jsonl") if config.log.save_rows else trained,
            make_algorithm(config.advantage, config.sampling.max_tokens),
            config.loop,
            sampling=sampling,
            checks=checks_of(learner.policy),
            evaluation=await _evaluation(config, evaluated, served, sampling, ends),
            checkpoints=Checkpoints(
                folder / CHECKPOINTS, every=config.checkpoint.every, keep=config.checkpoint.keep
            ),
        )
        yield Run(loop, learner, facts, await loop.resume())


# --- environments -----------------------------------------------------------------------------------------------


async def _source(
    one: EnvironmentConfig,
    place: FoundEnvironment,
    served: Served,
    sampling: SamplingArgs,
    config: TrainConfig,
    ends: AsyncExitStack,
    split: Split = "train",
) -> tuple[GroupSource, Playing]:
    options = options_of(config.loop.seed, config.loop.max_retries)
    playing = await ends.enter_async_context(opened(one, place, served, sampling, options, split))
    share = one.ratio / sum(other.ratio for other in config.env) if split == "train" else 1.0
    source = GroupSource(
        playing.rows,
        lambda request: playing.player,
        max_rollouts=max(config.loop.group_size, round(share * config.loop.max_rollouts)),
        straggler_seconds=config.loop.straggler_seconds,
        max_lag=config.loop.max_lag if split == "train" else None,
    )
    return await ends.enter_async_context(source), playing


async def _evaluation(
    config: TrainConfig,
    evaluated: Sequence[tuple[EnvironmentConfig, FoundEnvironment]],
    served: Served,
    sampling: SamplingArgs,
    ends: AsyncExitStack,
) -> Evaluation | None:
    if config.eval is None:
        return None
    environments = []
    for one, place in evaluated:
        source, _ = await _source(one, place, served, sampling, config, ends, "eval")
        environments.append(
            EvaluatedEnvironment(one.label, source, source.task_ids, config.eval.rollouts_per_example)
        )
    return Evaluation(
        environments,
        every=config.eval.every,
        at_start=config.eval.at_start,
        sampling=sampling,
        seed=config.loop.seed,
    )


def _facts(one: EnvironmentConfig, playing: Playing) -> dict[str, Any]:
    return {**asdict(playing.ref), "args": one.args, "tasks": len(playing.rows)}


# --- the sampler ------------------------------------------------------------------------------------------------


async def _sampler(config: TrainConfig, learner: TorchLearner, ends: AsyncExitStack) -> Sampler:
    if config.sampler.kind == "inproc":
        engine = _engine(config, learner.policy)
        ends.push_async_callback(engine.close)
        return engine
    if config.sampler.kind == "process":
        return await ends.enter_async_context(_process(config, learner.policy))
    transfer = None
    if config.sampler.transfer == "nccl":
        transfer = BroadcastTransfer(NcclGroup, named=partial(checkpoint_tensors, learner.policy.model))
    servers = HttpSampler(
        config.sampler.urls,
        vocabulary=learner.policy.vocabulary,
        max_context=config.sampler.max_context,
        transfer=transfer,
        api_key_var=config.sampler.api_key_var,
    )
    return await ends.enter_async_context(servers)


def _engine(config: TrainConfig, policy: Policy) -> TorchEngine:
    """An engine in this process, with a model of its own."""
    tokenizer = policy.tokenizer
    model = load_policy(_sampled(config)).model
    return TorchEngine(
        model,
        max_batch=config.sampler.max_batch,
        max_context=config.sampler.max_context,
        name=MODEL_NAME,
        stop_token_ids=stop_tokens(model, tokenizer),
        decode=tokenizer.decode,
        seed=config.loop.seed,
        deterministic=config.sampler.deterministic,
        recompute_cache=config.sampler.recompute_cache,
        record_routes=bool(len(policy.routers)) and config.model.router_replay,
        adapter=policy.model.peft_config["default"] if policy.adapter else None,
    )


def _process(config: TrainConfig, policy: Policy) -> ProcessSampler:
    """An engine in a process beside this one."""
    own = _sampled(config)
    return ProcessSampler(
        own.path,
        max_batch=config.sampler.max_batch,
        max_context=config.sampler.max_context,
        dtype=own.dtype,
        device=own.device,
        seed=config.loop.seed,
        deterministic=config.sampler.deterministic,
        recompute_cache=config.sampler.recompute_cache,
        record_routes=bool(len(policy.routers)) and config.model.router_replay,
    )


def _in_folders(config: TrainConfig) -> bool:
    """Whether weights reach the sampler as folders: an adapter needs its configuration beside its tensors."""
    if config.sampler.kind == "vllm":
        return config.sampler.transfer == "folder"
    return config.sampler.kind == "process" and config.model.lora is not None


def _sampled(config: TrainConfig) -> ModelConfig:
    """The model as the sampler loads it: without what only training needs."""
    dtype = config.model.dtype if config.sampler.dtype == "auto" else config.sampler.dtype
    device = config.model.device if config.sampler.device == "auto" else config.sampler.device
    return config.model.model_copy(
        update={"lora": None, "gradient_checkpointing": False, "dtype": dtype, "device": device}
    )


async def _endpoint(
    config: TrainConfig, sampler: Sampler, renderer: TokenizerRenderer, ends: AsyncExitStack
) -> ClientConfig:
    """The sampler for workers, over HTTP: this process serves it, whatever it is, so that their rollouts are spread
    over servers, survive the death of one, and know the version of each token, like all others."""
    server = SamplerServer(sampler, renderer, name=sampler.info().model)
    url = await server.start(config.sampler.host)
    ends.push_async_callback(server.stop)
    return ClientConfig(
        client_type="openai_chat_completions_token", api_base_url=f"{url}/v1", api_key_var=KEY_VAR
    )


class _InFolders:
    """A learner whose weights become folders, for samplers in other processes."""

    def __init__(self, learner: TorchLearner, folders: WeightFolders) -> None:
        self._learner = learner
        self._folders = folders
        self.step, self.save, self.load = learner.step, learner.save, learner.load

    @property
    def version(self) -> int:
        """The learner's."""
        return self._learner.version

    def weights(self) -> Weights:
        """The present weights, in a folder."""
        weights = self._learner.weights()
        return self._folders.publish(weights.version, self._learner.policy.model, weights.tensors)
