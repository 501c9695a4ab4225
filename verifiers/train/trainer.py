"""`TorchLearner`: rows with advantages in, one update of a torch model out. It implements `verifiers.train.learner`.

    learner = TorchLearner(load_policy(config.model, reference=config.loss.kl > 0), config.trainer, config.loss)
    figures = learner.step(rows)
    sampler.update_weights(learner.weights(), learner.version)

What a token counts is settled before anything goes backward: each component (policy, aux) is divided by its own total
over all micro-batches and ranks. So micro-batches, packing and ranks are matters of speed, and none of the result.
Over several processes (`verifiers.train.distributed`) the leader calls these methods and the others `follow`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from verifiers.errors import ConfigError, EvidenceError, TrainingDivergedError
from verifiers.train import learner_files
from verifiers.train.config import LossConfig, TrainerConfig
from verifiers.train.distributed import Ranks, whole
from verifiers.train.forward import SampledHead, Tensors, check_isolation, on_device, sharing_of
from verifiers.train.learner import Weights
from verifiers.train.losses.loss import Loss, make_loss
from verifiers.train.losses.normalise import denominator
from verifiers.train.losses.tokens import TokenBatch
from verifiers.train.models import Policy
from verifiers.train.optim import lr_at, make_optimizer
from verifiers.train.packing import MicroBatch, nothing, pack, pad
from verifiers.train.rows import Row
from verifiers.train.tally import Tally

MAX_SKIPPED = 3
"""Updates in a row with a gradient that is not finite, after which training ends with an error."""

LARGEST = float(torch.finfo(torch.float32).max)
"""Of advantages: the loss holds them in single precision."""


@dataclass(slots=True)
class Update:
    """What one rank does for one update. `policy` and `aux` are the components' totals over all ranks."""

    batches: list[MicroBatch]
    policy: float
    aux: float


class TorchLearner:
    """Trains a policy. `total_steps` is where a schedule ends if the configuration does not say.

    loss, denominator: take the place of those of `loss` (a LossConfig), for other objectives on the same rows: tokens
    to a `LossOutput`, and all rows of an update to what its total is divided by.
    """

    def __init__(
        self,
        policy: Policy,
        config: TrainerConfig | None = None,
        loss: LossConfig | Loss | None = None,
        *,
        denominator: Callable[[Sequence[Row]], float] | None = None,
        total_steps: int | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.policy = policy
        self.config = config or TrainerConfig()
        self.ranks = ranks or Ranks()
        self._loss, self._denominator, self._loss_config = _objective(loss, denominator)
        self._total = self.config.total_steps or (total_steps and total_steps * self.config.updates_per_batch)
        self._version = self._updates = self._skipped = 0
        self._broken = False
        self._aux = policy.config.router_aux_coefficient if len(policy.routers) else 0.0
        lean = self.ranks.world == 1 and self.config.autocast == "none" and not policy.config.gradient_checkpointing
        self._head = SampledHead(policy.model, lean=lean)
        if policy.reference is not None:
            self._reference_head = SampledHead(policy.reference, lean=lean)
        else:
            self._reference_head = self._head
        if self.config.packing:
            check_isolation(self._head, policy.device)
        shares = self.config.packing and self.config.share_prompts and not len(policy.routers)
        self._sharing = sharing_of(self._head, policy.device) if shares else None
        half = self.config.autocast == "bfloat16"
        self.ranks.shard(policy.model, half=half)
        if policy.reference is not None:
            self.ranks.shard(policy.reference, half=half)
        self._named = policy.trained
        self._trained = list(self._named.values())
        self._optimizer = make_optimizer(self._trained, self.config)
        torch.manual_seed(self.config.seed + self.ranks.rank)

    @property
    def version(self) -> int:
        """How many steps have changed the weights."""
        return self._version

    # --- what the leader calls ------------------------------------------------------------------------------------

    def step(self, rows: Sequence[Row]) -> dict[str, float]:
        """One update from rows with advantages, or `updates_per_batch` of them; returns figures.

        Rows that are longer than a micro-batch are left out and counted (`rows/too_long`). A gradient that is not
        finite changes nothing and is counted (`trainer/skipped`); TrainingDivergedError after three in a row.
        EvidenceError for rows that the loss cannot take.
        """
        begun = time.perf_counter()
        plans, figures = self._plan(rows)
        if plans is None:
            return figures
        trained: dict[str, float] = self._ask("train", plans)
        if self._skipped >= MAX_SKIPPED:
            raise TrainingDivergedError(f"{self._skipped} updates in a row had a gradient that is not finite")
        seconds = time.perf_counter() - begun
        total = figures["tokens/total"]
        return figures | trained | {"trainer/seconds": seconds, "trainer/tokens_per_s": total / seconds}

    def measure(self, rows: Sequence[Row]) -> dict[str, float]:
        """The figures of the loss on rows, from which nothing is learned; dropout is off. Those of no rows are none."""
        budget = self.config.tokens_per_microbatch
        fitting = [row for row in rows if len(row.tokens) <= budget and row.trainable]
        if not fitting:
            return {}
        self._check(fitting)
        figures: dict[str, float] = self._ask("measure", self._update_plan(fitting))
        return figures | {"rows/too_long": float(len(rows) - len(fitting))}

    def weights(self) -> Weights:
        """The trained parameters, copied: by the model's names, tied ones once, on the policy's device.

        Of an adapter they have the names of its file (`adapter_model.safetensors`).
        """
        tensors = self._ask("gather")
        if self.policy.adapter:
            tensors = {name.replace(".default.", "."): value for name, value in tensors.items()}
        return Weights(self._version, tensors=tensors, adapter=self.policy.adapter)

    def save(self, folder: Path) -> None:
        """Write weights, optimiser, random state and version as safetensors and JSON: nothing pickled."""
        self._ask("save", [str(folder)] * self.ranks.world)

    def load(self, folder: Path) -> None:
        """Go on from `save`, on as many ranks or another number. ResumeError if that was another model."""
        self._ask("load", [str(folder)] * self.ranks.world)

    def export(self, folder: Path) -> None:
        """Write the policy in Hugging Face's layout, tokenizer included; of an adapter, the adapter alone."""
        self._ask("export", [str(folder)] * self.ranks.world)

    def close(self) -> None:
        """Let the followers go. The processes stay together, for another learner, until `ranks.leave()`.

        Not after this process failed in the middle of something: the others wait for it there, and end with it.
        """
        if self.ranks.world > 1 and not self._broken:
            self.ranks.scatter([("close", None)] * self.ranks.world)

    # --- what every rank does -------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Do what the leader asks for, until it closes."""
        with self.ranks.together():
            while True:
                name, item = self.ranks.scatter()
                if name == "close":
                    return
                self._do(name, item)

    def _ask(self, name: str, items: Sequence[Any] | None = None) -> Any:
        self._broken = True
        with self.ranks.together():
            _, item = self.ranks.scatter([(name, item) for item in items or [None] * self.ranks.world])
            answer = self._do(name, item)
        self._broken = False
        return answer

    def _do(self, name: str, item: Any) -> Any:
        if name == "train":
            return self._train(item)
        if name == "measure":
            return self._measure(item)
        if name == "gather":
            return self.ranks.whole(self._named)
        if name == "export":
            return learner_files.export(self.policy, Path(item), self.ranks)
        if name == "save":
            state = {"version": self._version, "updates": self._updates}
            return learner_files.save(Path(item), self.policy, self._optimizer, state, self.ranks)
        state = learner_files.load(Path(item), self.policy, self._optimizer, self.ranks)
        self._version, self._updates, self._skipped = state["version"], state["updates"], 0
        return None

    # --- the plan: rows to micro-batches of ranks -------------------------------------------------------------------

    def _plan(self, rows: Sequence[Row]) -> tuple[list[list[Update]] | None, dict[str, float]]:
        """For each rank its updates; None with nothing to train on. And the figures known so far."""
        budget = self.config.tokens_per_microbatch
        fitting = [row for row in rows if len(row.tokens) <= budget and row.trainable]
        figures = {
            "rows/trained": float(len(fitting)),
            "rows/too_long": float(sum(len(row.tokens) > budget for row in rows)),
            "tokens/trained": float(sum(row.trainable for row in fitting)),
            "tokens/total": float(sum(len(row.tokens) for row in fitting)),
        }
        if not fitting:
            return None, figures
        self._check(fitting)
        parts = min(self.config.updates_per_batch, len(fitting))
        bounds = [len(fitting) * part // parts for part in range(parts + 1)]
        updates = [self._update_plan(fitting[a:b]) for a, b in pairwise(bounds)]
        batches = [micro for of_ranks in updates for update in of_ranks for micro in update.batches]
        figures["trainer/microbatches"] = float(len(batches))
        figures["tokens/shared"] = float(sum(micro.shared for micro in batches))
        return [list(of_rank) for of_rank in zip(*updates, strict=True)], figures

    def _update_plan(self, rows: Sequence[Row]) -> list[Update]:
        """One update of each rank. Micro-batches are dealt out by length: the ranks wait for each other at each."""
        budget, world = self.config.tokens_per_microbatch, self.ranks.world
        if not self.config.packing:
            packed = pad(rows, budget, parts=world)
        else:
            masked = self.policy.model.config._attn_implementation in ("sdpa", "eager")
            packed = pack(rows, budget, parts=world, width=None if masked else budget, sharing=self._sharing)
        batches = sorted(packed.batches, key=lambda micro: -micro.tokens.size)
        batches += [nothing()] * (-len(batches) % world)
        aux = float(sum(len(row.tokens) for row in rows) * len(self.policy.routers))
        total = self._denominator(rows)
        return [Update(batches[rank::world], total, aux) for rank in range(world)]

    def _check(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if not row.temperature > 0:
                raise EvidenceError(
                    f"rollout {row.rollout_id or '(unnamed)'} was sampled at temperature {row.temperature}: "
                    "greedy tokens say nothing about the policy's probabilities"
                )
            if self._loss_config is None:
                continue
            if row.advantages is None:
                raise EvidenceError(f"a row of rollout {row.rollout_id or '(unnamed)'} has no advantages")
            if max(map(abs, row.advantages), default=0.0) > LARGEST:
                raise EvidenceError(
                    f"rollout {row.rollout_id or '(unnamed)'} has an advantage beyond {LARGEST:.1e}, which the loss, "
                    "in single precision, can not hold",
                    hint="Let the environment give smaller rewards, or divide by their deviation: advantage.std=true.",
                )
            if not math.isfinite(sum(row.advantages)) or not math.isfinite(sum(row.logprobs)):
                raise EvidenceError(
                    f"rollout {row.rollout_id or '(unnamed)'} has advantages or logprobs that are not finite",
                    hint="Ratios need the sampler's logprobs: train on rows that are labelled exact.",
                )

    # --- training ---------------------------------------------------------------------------------------------------

    def _train(self, updates: list[Update]) -> dict[str, float]:
        inputs = [[on_device(micro, self.policy.device) for micro in update.batches] for update in updates]
        old = [[self._evaluate(t)[0] if len(updates) > 1 else None for t in of] for of in inputs]
        tally, aux, norms, applied = Tally(), 0.0, [], 0
        for update, tensors, before in zip(updates, inputs, old, strict=True):
            for micro, logprobs in zip(tensors, before, strict=True):
                aux += self._backward(micro, update, logprobs, tally)
            norm = self._apply()
            if norm > 0 and math.isfinite(norm):
                applied += 1
                norms.append(norm)
        self._version += bool(applied)
        figures = self._figures(tally)
        figures["trainer/lr"] = self._optimizer.param_groups[0]["lr"]
        figures["trainer/skipped"] = float(self._skipped > 0)
        if norms:
            figures["trainer/grad_norm"] = sum(norms) / len(norms)
        if self._aux:
            figures["loss/aux"] = sum(self.ranks.gather(float(aux))) / len(updates)
        return figures

    def _backward(self, micro: Tensors, update: Update, old: Any, tally: Tally) -> Any:
        """Add the gradient of one micro-batch; returns the aux loss, whose sum over all of them is a mean a token."""
        with self.policy.routers.watching(self._replayed(micro), keep=self._aux > 0):
            with self._precision():
                entropy_gradient = self._loss_config is not None and self._loss_config.entropy != 0
                logprobs, entropy = self._head.logprobs(micro, entropy_gradient=entropy_gradient)
            output = self._loss(_tokens(micro, logprobs, entropy, self._reference(micro), old))
            total, aux = output.total / update.policy, 0.0
            if self._aux:
                balance = self.policy.routers.balance(micro.segments) / update.aux
                total, aux = total + self._aux * balance, balance.detach()
            (total * self.ranks.world).backward()  # FSDP takes the mean over ranks
        tally.add(output)
        return aux

    def _measure(self, update: Update) -> dict[str, float]:
        tally = Tally()
        self.policy.model.eval()
        try:
            for micro in (on_device(micro, self.policy.device) for micro in update.batches):
                logprobs, entropy = self._evaluate(micro)
                output = self._loss(_tokens(micro, logprobs, entropy, self._reference(micro)))
                tally.add(output)
        finally:
            self.policy.model.train()
        return self._figures(tally)

    def _apply(self) -> float:
        """Clip and step; returns the norm before clipping. Without a gradient, or with one that is not finite, the
        weights stay."""
        gradients = [value.grad for value in self._trained if value.grad is not None]
        total = torch.nn.utils.get_total_norm(gradients, foreach=True)
        norm, limit = float(whole(total)), self.config.max_grad_norm or math.inf
        if math.isfinite(norm) and norm > 0:
            if norm > limit:
                torch.nn.utils.clip_grads_with_norm_(self._trained, limit, total, foreach=True)
            for group in self._optimizer.param_groups:
                group["lr"] = lr_at(self._updates, self.config, self._total)
            self._optimizer.step()
            self._updates += 1
        self._skipped = 0 if math.isfinite(norm) else self._skipped + 1
        self._optimizer.zero_grad(set_to_none=True)
        return norm

    def _evaluate(self, micro: Tensors) -> tuple[Any, Any]:
        with torch.no_grad(), self._precision(), self.policy.routers.watching(self._replayed(micro)):
            return self._head.logprobs(micro)

    def _reference(self, micro: Tensors) -> Any:
        """[N] logprobs of the reference model, by its own routes; None without a divergence from it."""
        if self._loss_config is None or not self._loss_config.kl:
            return None
        with torch.no_grad(), self._precision(), self.policy.routers.unwatched(), self.policy.as_reference():
            return self._reference_head.logprobs(micro)[0]

    def _replayed(self, micro: Tensors) -> Any:
        return micro.routes if self.policy.config.router_replay else None

    def _precision(self) -> Any:
        if self.config.autocast == "none":
            return nullcontext()
        return torch.autocast(self.policy.device.type, torch.bfloat16)

    def _figures(self, tally: Tally) -> dict[str, float]:
        """Means and maxima over all micro-batches and ranks; what is not finite, or of nothing, is left out."""
        together = Tally()
        for part in self.ranks.gather(tally.on_host()):
            together.add(part)
        return {name: value for name, value in together.figures().items() if math.isfinite(value)}


def _tokens(micro: Tensors, logprobs: Any, entropy: Any, reference: Any, old: Any = None) -> TokenBatch:
    return TokenBatch(
        logprobs,
        micro.sampler_logprobs,
        micro.advantages,
        micro.sequence,
        micro.weights,
        old_logprobs=old,
        ref_logprobs=reference,
        entropy=entropy,
    )


def _objective(
    loss: LossConfig | Loss | None, given: Callable[[Sequence[Row]], float] | None
) -> tuple[Loss, Callable[[Sequence[Row]], float], LossConfig | None]:
    if isinstance(loss, LossConfig) or loss is None:
        config = loss or LossConfig()
        return make_loss(config), given or (lambda rows: denominator(rows, config)), config
    if given is None:
        raise ConfigError("a loss of one's own needs its denominator: what its sum over all rows is divided by")
    return loss, given, None
