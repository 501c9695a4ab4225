"""Several processes as one trainer: torchrun starts them, rank 0 leads, the others follow.

    torchrun --nproc-per-node 8 …          # each process: ranks = join(device)
    learner = TorchLearner(policy, …, ranks=ranks)
    if ranks.leads: run the loop, then learner.close()
    else: learner.follow()                 # until the leader closes
    ranks.leave()

What the leader asks for goes over a gloo group of its own, whose time-out is days: followers wait there while rollouts
are sampled. Gradients and weights go over NCCL, or gloo on CPUs. If a process dies, torchrun ends the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from verifiers.errors import ConfigError, TrainingError

PATIENCE = timedelta(days=7)


@dataclass(slots=True)
class Ranks:
    """The processes of a trainer; one process alone has no groups, and talks to nobody."""

    rank: int = 0
    world: int = 1
    mesh: Any = None
    control: Any = None

    @property
    def leads(self) -> bool:
        """Whether this is the process that runs the loop."""
        return self.rank == 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """Around what all ranks do at once. TrainingError if another of them has ended meanwhile."""
        try:
            yield
        except RuntimeError as error:
            if self.world > 1 and (isinstance(error, dist.DistError) or "gloo" in str(error)):
                raise TrainingError(
                    "another process of torchrun ended, so this one can not go on",
                    hint="torchrun names it at the end, and what it said last stands above. Go on from the last "
                    "checkpoint with --resume.",
                ) from error
            raise

    def scatter(self, items: Sequence[Any] | None = None) -> Any:
        """Give each rank its item of the leader's; followers call it without."""
        if self.world == 1:
            assert items is not None
            return items[0]
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, list(items) if items is not None else None, src=0, group=self.control)
        return mine[0]

    def gather(self, item: Any) -> list[Any]:
        """The items of all ranks, in order, at every rank."""
        if self.world == 1:
            return [item]
        items: list[Any] = [None] * self.world
        dist.all_gather_object(items, item, group=self.control)
        return items

    def whole(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Copies of tensors that may be split, put together one after the other; at the leader. Others get none."""
        copies = {}
        for name, value in tensors.items():
            copy = whole(value.detach())
            if self.leads:
                copies[name] = copy.clone() if self.world == 1 else copy
        return copies

    def shard(self, model: Any, *, half: bool = False) -> Any:
        """Split the parameters over the ranks (FSDP2): layer by layer, and the rest, tied embeddings in one piece.

        half: gather parameters in bfloat16; gradients are still summed in float32.
        """
        if self.world == 1:
            return model
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        options: dict[str, Any] = {"mesh": self.mesh}
        if half:
            options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in _layers(model):
            fully_shard(layer, **options)
        return fully_shard(model, **options)

    def leave(self) -> None:
        """End the groups."""
        if self.world > 1 and dist.is_initialized():
            dist.destroy_process_group()


def join(device: Any) -> Ranks:
    """The processes that torchrun started, this one among them; without torchrun it is alone."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return Ranks()
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    mesh = dist.device_mesh.init_device_mesh(device.type, (world,))
    return Ranks(dist.get_rank(), world, mesh, dist.new_group(backend="gloo", timeout=PATIENCE))


def whole(value: Any) -> Any:
    """A tensor that may be split over ranks, put together; every rank has to ask."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def _layers(model: Any) -> list[Any]:
    """The repeated blocks of a transformer, which transformers names for such uses."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    layers = [module for module in model.modules() if type(module).__name__ in names]
    if not layers:
        raise ConfigError(
            f"{type(model).__name__} does not say what its layers are (_no_split_modules), so it cannot be split",
            hint="Train it in one process.",
        )
    return layers
