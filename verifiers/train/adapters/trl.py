"""TRL's `GRPOTrainer` learns from an environment: `rollout_func` with rollouts of any number of turns.

    rollout = make_rollout_func(env)
    trainer = GRPOTrainer(
        model=model, processing_class=tokenizer, args=GRPOConfig(...),
        train_dataset=rollout.dataset(), reward_funcs=rollout.reward, rollout_func=rollout,
    )
    trainer.train()

The environment plays and scores; TRL computes advantages and trains. Rollouts are sampled by a copy of the trainer's
model in this process (`verifiers.train.engines.torch_engine`), which gets its weights before each generation, or by a
sampler of yours. Written for TRL 1.16; docs/guides/training-trl.md says what TRL can not express.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from verifiers.clients.local import SamplerClient, TokenizerRenderer
from verifiers.clients.sampler import Sampler
from verifiers.envs.environment import Environment
from verifiers.errors import ConfigError, DatasetError, InexactEvidenceError
from verifiers.loops import Background
from verifiers.rollouts.engine import Engine
from verifiers.rollouts.plan import task_id_of
from verifiers.rollouts.source import GroupResult, GroupSource, RolloutRequest
from verifiers.train.adapters.trl_checks import check_gap, check_trainer
from verifiers.train.adapters.trl_model import checks_of, logprob_gap, sampling_copy, weights_of
from verifiers.train.adapters.trl_rows import REWARD, Batch, Forks, only_untrained
from verifiers.train.groups import Group, group_of
from verifiers.train.merge import MergeOptions
from verifiers.train.players import options_of
from verifiers.train.weights import WeightFolders
from verifiers.types import SamplingArgs

TASK = "task_id"
"""The field of a prompt's first message that says which task it belongs to: two tasks may be asked in equal words."""


def make_rollout_func(
    env: Environment,
    sampler: Sampler | None = None,
    *,
    tokenizer: Any = None,
    sampling: SamplingArgs | None = None,
    forks: Forks = "most",
    mask_truncated: bool = False,
    max_gap: float = 0.05,
    max_failed: int = 3,
    max_retries: int = 0,
    straggler_seconds: float | None = None,
    weights: str | Path | None = None,
) -> RolloutFunc:
    """A `rollout_func` for `GRPOTrainer`, with the `dataset` and `reward` that go with it.

    sampler: None samples with a copy of the trainer's model. Another one is given the weights before each generation:
        in a folder under `weights` if that is set, else as tensors. tokenizer: None takes the trainer's.
    sampling: further sampling arguments. Temperature and the token limit of a reply are the trainer's.
    forks: what to do with a rollout of several rows (`trl_rows.Forks`). mask_truncated: keep the tokens of truncated
        rollouts out of the loss; their rewards stay in the baseline.
    max_gap: the largest mean difference of logprobs between sampler and trainer, in nats, where TRL does not correct.
    max_failed: generations in a row without a rollout to train on, after which training ends with an error.
    max_retries, straggler_seconds: see `EngineOptions` and `GroupSource`.
    """
    settings = _Settings(
        dict(sampling or {}), forks, mask_truncated, max_gap, max_failed, max_retries, straggler_seconds
    )
    return RolloutFunc(env, sampler, tokenizer, settings, None if weights is None else Path(weights))


@dataclass(frozen=True, slots=True)
class _Settings:
    sampling: SamplingArgs
    forks: Forks
    mask_truncated: bool
    max_gap: float
    max_failed: int
    max_retries: int
    straggler_seconds: float | None


class RolloutFunc:
    """What `make_rollout_func` makes. `counts`: rollouts by how they ended, and what of forked ones was left out."""

    def __init__(
        self,
        env: Environment,
        sampler: Sampler | None,
        tokenizer: Any,
        settings: _Settings,
        weights: Path | None,
    ) -> None:
        self.env = env
        self.counts: Counter[str] = Counter()
        self._sampler = sampler
        self._end_copy: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._tokenizer = tokenizer
        self._settings = settings
        self._folders = None if weights is None else WeightFolders(weights, durable=False)
        self._rows = _rows_of(env)
        self._texts = _text_tasks(self._rows)
        self._background = Background("verifiers-trl")
        self._source: GroupSource | None = None
        self._figures: dict[str, float] = {}
        self._step, self._asked, self._failed = -1, 0, 0
        self._published: int | None = None
        self._error = ""

    # --- what the trainer is given --------------------------------------------------------------------------------

    def dataset(self, repeat: int = 1) -> Any:
        """The environment's tasks to learn from, as `train_dataset`.

        TRL passes over what does not fill a generation batch: with fewer tasks than that takes (batch size / number of
        generations), say how often each is to be repeated. DatasetError if there are none.
        """
        return _dataset(self._rows[0], repeat, self.env, "dataset")

    def eval_dataset(self) -> Any:
        """Its tasks to be evaluated on, as `eval_dataset`."""
        return _dataset(self._rows[1], 1, self.env, "eval_dataset")

    def reward(self, completions: Sequence[Any], log_metric: Any = None, **columns: Any) -> list[float | None]:
        """Hand on what the environment scored; None for what it did not, which TRL then leaves out of the group."""
        rewards: list[float | None] | None = columns.get(REWARD)
        if rewards is None:
            raise ConfigError("the rollouts have no rewards", hint="Pass the same object as rollout_func.")
        for name, value in self._figures.items():
            if log_metric is not None:
                log_metric(name, value)
        return rewards

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """Play the tasks of the prompts, which come repeated, with the trainer's present weights."""
        check_trainer(trainer, self.reward, group_rewards=self.env.requires_group_rollouts)
        source = self._source or self._open(trainer)
        requests = self._requests(prompts, trainer)
        groups = self._background.run(self._played(source, requests, trainer))
        batch = Batch()
        for group in groups:
            batch.add(
                group,
                filler=trainer.eos_token_ids[0],
                forks=self._settings.forks,
                mask_truncated=self._settings.mask_truncated,
            )
        self.counts.update(batch.counts)
        self._check(groups, batch, trainer)
        self._figures = batch.figures()
        return batch.columns()

    def close(self) -> None:
        """End the thread that plays, and the copy of the trainer's model. A sampler of yours is left to you."""
        if self._end_copy is not None:
            self._background.run(self._end_copy())
            self._end_copy = None
        self._background.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- playing --------------------------------------------------------------------------------------------------

    def _open(self, trainer: Any) -> GroupSource:
        tokenizer = self._tokenizer or trainer.processing_class
        if self._sampler is None:
            own = sampling_copy(trainer, tokenizer)
            self._sampler, self._end_copy = own, own.close
        client = SamplerClient(self._sampler, TokenizerRenderer(tokenizer, self._sampler.info().context))
        sampling = {"temperature": trainer.temperature, "max_tokens": trainer.max_completion_length}
        sampling |= self._settings.sampling
        if sampling["temperature"] != trainer.temperature:
            raise ConfigError(
                f"rollouts are to be sampled at temperature {sampling['temperature']}, and GRPOConfig has "
                f"{trainer.temperature}: TRL would divide logits by the wrong one (huggingface/trl#4159)",
                hint="Set GRPOConfig(temperature=…) only.",
            )
        if trainer.chat_template_kwargs:
            sampling["chat_template_kwargs"] = dict(trainer.chat_template_kwargs)
        engine = Engine(
            self.env, client, "policy", sampling, options_of(int(trainer.args.seed), self._settings.max_retries)
        )
        rows = [dict(row) for rows in self._rows for row in rows]

        async def opened() -> GroupSource:
            straggler = self._settings.straggler_seconds
            return GroupSource(rows, lambda _: engine, max_rollouts=1 << 20, straggler_seconds=straggler)

        self._source = self._background.run(opened())
        return self._source

    def _requests(self, prompts: Sequence[Any], trainer: Any) -> list[RolloutRequest]:
        """A group for each run of equal tasks. Their seeds depend on the trainer's seed, step, and their place."""
        step = int(trainer.state.global_step)
        self._asked = self._asked if step == self._step else 0
        self._step = step
        size = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        requests: list[RolloutRequest] = []
        counts: list[int] = []
        for prompt in prompts:
            task_id = self._task_of(prompt)
            if requests and requests[-1].task_id == task_id and counts[-1] < size:
                counts[-1] += 1
                continue
            self._asked += 1
            place = f"{trainer.args.seed}/{trainer.accelerator.process_index}/{step}/{self._asked}"
            seed = zlib.crc32(place.encode())
            requests.append(RolloutRequest(task_id, place, 1, seed, policy_version=step))
            counts.append(1)
        return [replace(request, n=count) for request, count in zip(requests, counts, strict=True)]

    def _task_of(self, prompt: Any) -> str:
        found = self._texts.get(prompt) if isinstance(prompt, str) else prompt[0].get(TASK)
        if found is None:
            raise ConfigError(
                "a prompt of the data set belongs to no task of the environment",
                hint="Train on rollout.dataset() and evaluate on rollout.eval_dataset().",
            )
        return str(found)

    async def _played(
        self, source: GroupSource, requests: Sequence[RolloutRequest], trainer: Any
    ) -> list[Group]:
        """The groups, in the order of the requests."""
        assert self._sampler is not None
        if self._published != self._step:
            await self._sampler.update_weights(weights_of(trainer, self._step, self._folders), self._step)
            self._published = self._step
        for request in requests:
            await source.submit(request)
        ended: dict[str, GroupResult] = {}
        wanted = {request.group_id for request in requests}
        async for result in source.results():
            if result.request.group_id not in wanted:
                continue  # of a call that was interrupted
            ended[result.request.group_id] = result
            if len(ended) == len(requests):
                break
        if (error := (await source.health()).error) is not None:
            raise error
        options = MergeOptions(version=self._step, checks=checks_of(trainer, self._tokenizer))
        self._error = next(filter(None, map(_error_of, ended.values())), self._error)
        return [group_of(ended[request.group_id], options) for request in requests]

    # --- after it -------------------------------------------------------------------------------------------------

    def _check(self, groups: Sequence[Group], batch: Batch, trainer: Any) -> None:
        """Errors for what is wrong with all rollouts, rather than with one."""
        if only_untrained(groups):
            self._failed += 1
            refused = sum((group.report.without_rows for group in groups), Counter())
            if batch.counts["no_evidence"] == batch.counts["rollouts"]:
                said = (member.error for group in groups for member in group.members if member.error)
                why = next(said, "their rollouts sampled nothing")
                raise InexactEvidenceError(
                    f"no rollout has token evidence to train on ({dict(refused)}), the first: {why}"
                )
            if self._failed >= self._settings.max_failed:
                raise ConfigError(
                    f"{self._failed} generations in a row had no rollout to train on ({dict(self.counts)}): "
                    f"{self._error}",
                    hint="Play the environment with vf-eval to see why its rollouts fail.",
                )
            return
        self._failed = 0
        row = next(member.rows[0] for group in groups for member in group.valid)
        gap = logprob_gap(trainer, row)
        check_gap(trainer, gap, self._settings.max_gap)
        batch.metrics["logprob_gap"] = [gap]


def _error_of(result: GroupResult) -> str:
    """What the first of its rollouts that has no reward ended with."""
    for member in result.members:
        record: dict[str, Any] = dict(member.record or {})
        for error in (member.error, *(record.get("scoring_errors") or {}).values()):
            if error is not None:
                return str(error["error_chain_repr"])
    return ""


def _rows_of(env: Environment) -> tuple[Any, Any]:
    train = env.get_dataset() if env.has_split("train") else []
    evaluated = env.get_eval_dataset() if env.has_split("eval") else []
    return train, evaluated


def _text_tasks(splits: Sequence[Any]) -> dict[str, str]:
    """Tasks by their prompts, of environments in completion mode. DatasetError if a prompt names several."""
    tasks: dict[str, str] = {}
    for row in (row for rows in splits for row in rows if isinstance(row["prompt"], str)):
        task_id = task_id_of(dict(row))
        if tasks.setdefault(row["prompt"], task_id) != task_id:
            raise DatasetError(
                f"two tasks have the prompt {row['prompt'][:60]!r}, and TRL hands on nothing but prompts",
                hint="Make the prompts differ, or use chat messages, which can say their task.",
            )
    return tasks


def _dataset(rows: Any, repeat: int, env: Environment, name: str) -> Any:
    from datasets import Dataset

    if not len(rows):
        raise DatasetError(f"{type(env).__name__} has no {name}", hint=f"Give it a `{name}`.")
    return Dataset.from_list([{"prompt": _marked(dict(row))} for _ in range(repeat) for row in rows])


def _marked(row: dict[str, Any]) -> Any:
    prompt = row["prompt"]
    if isinstance(prompt, str):
        return prompt
    first, *others = (dict(message) for message in prompt)
    return [{**first, TASK: task_id_of(row)}, *others]
