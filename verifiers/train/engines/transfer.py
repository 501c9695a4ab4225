"""Weights from the trainer's GPU straight into those of vLLM servers, by broadcast, with no file between.

    transfer = BroadcastTransfer(NcclGroup)           # servers: --weight-transfer-config '{"backend": "nccl"}'
    sampler = HttpSampler(urls, "policy", transfer=transfer)
    await sampler.update_weights(learner.weights(), version)      # tensors on the GPU of this process

vLLM's protocol has four phases (its documentation, "Weight Transfer"). Once, servers and trainer join a group
(`/init_weight_transfer_engine`). Then for each version `/start_weight_update`, `/update_weights` with the names of the
tensors while the trainer broadcasts them in that order, and `/finish_weight_update`, which names the version. The
trainer is rank 0, each worker of each server one more. The group is opened anew when the servers change.

The protocol is tested with torch's gloo on the CPU. `NcclGroup` itself needs two GPUs, and NCCL of one version at both
ends; it has not been run yet.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from verifiers.errors import ConfigError, EndpointUnavailableError
from verifiers.train.engines.remote import Server, all_of
from verifiers.train.learner import Weights


class Group(Protocol):
    """The trainer's end of a group for broadcasts. Its methods block."""

    @property
    def meeting(self) -> Mapping[str, Any]:
        """How workers find it: fields of vLLM's `init_info`."""
        ...

    def join(self, world: int) -> None:
        """Become rank 0 of `world`; returns when all have joined."""
        ...

    def broadcast(self, tensor: Any) -> None:
        """Give a tensor to all others."""
        ...


class NcclGroup:
    """NCCL, through torch, on the present CUDA device."""

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise ConfigError(
                "weights are broadcast between GPUs, and this process has none",
                hint="Publish them as folders instead: leave the sampler's transfer out.",
            )
        self._nccl = torch.cuda.nccl
        self._device = torch.cuda.current_device()
        self._id = self._nccl.unique_id()
        self._comm: Any = None
        self.meeting: Mapping[str, Any] = {"nccl_unique_id_b64": base64.b64encode(self._id).decode("ascii")}

    def join(self, world: int) -> None:
        """Workers sum one number right after they have met, so this end does too."""
        import torch

        torch.cuda.set_device(self._device)  # it is set for each thread
        self._comm = self._nccl.init_rank(world, self._id, 0)
        self._nccl.all_reduce([torch.zeros(1, device=self._device)], comms=[self._comm])
        torch.cuda.synchronize(self._device)

    def broadcast(self, tensor: Any) -> None:
        """Returns when the tensor has been sent."""
        import torch

        torch.cuda.set_device(self._device)
        self._nccl.broadcast([tensor.to(self._device).contiguous()], comms=[self._comm])
        torch.cuda.synchronize(self._device)


class BroadcastTransfer:
    """A `verifiers.train.engines.http.Transfer`.

    named: from a model's tensors to those of its checkpoint, where the two differ
    (`verifiers.train.weights.checkpoint_tensors`).
    """

    def __init__(
        self,
        open_group: Callable[[], Group] = NcclGroup,
        *,
        named: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
    ) -> None:
        self._open = open_group
        self._named = named
        self._group: Group | None = None
        self._members: list[str] = []

    async def send(self, servers: Sequence[Server], weights: Weights, version: int) -> None:
        """Load `weights.tensors` into all servers, and name them.

        EndpointUnavailableError if one of them fails meanwhile: then none of the group can be used.
        """
        if weights.adapter:
            raise ConfigError(
                "an adapter is loaded from a folder, not broadcast", hint="Publish it (verifiers.train.weights)."
            )
        tensors = dict(self._named(weights.tensors or {}))
        if self._group is None or [server.url for server in servers] != self._members:
            await self._meet(servers)
        group = self._group
        assert group is not None
        told = {
            "names": list(tensors),
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()],
            "shapes": [list(tensor.shape) for tensor in tensors.values()],
        }

        def broadcast() -> None:
            for tensor in tensors.values():
                group.broadcast(tensor.detach())

        self._group = None  # unless all goes well: one that was started again is in it no more
        await all_of(server.post("/start_weight_update") for server in servers)
        await _beside(broadcast, [server.post("/update_weights", {"update_info": told}) for server in servers])
        await all_of(server.post("/finish_weight_update", {"weight_version": str(version)}) for server in servers)
        self._group = group

    async def _meet(self, servers: Sequence[Server]) -> None:
        self._group = None
        group = self._open()
        sizes = [int((await server.ask("GET", "/get_world_size"))["world_size"]) for server in servers]
        world = 1 + sum(sizes)
        asked = []
        for place, server in enumerate(servers):
            told = {**group.meeting, "world_size": world, "rank_offset": 1 + sum(sizes[:place]), "packed": False}
            asked.append(server.post("/init_weight_transfer_engine", {"init_info": told}))
        await _beside(lambda: group.join(world), asked)
        self._group, self._members = group, [server.url for server in servers]


async def _beside(work: Callable[[], None], calls: Sequence[Any]) -> None:
    """Run blocking `work` while the servers are asked: both sides wait for each other in it.

    If a server fails, the work may never end; it is left to its thread, and the failure is raised.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if not done.done():
            done.set_result(None) if error is None else done.set_exception(error)

    def run() -> None:
        failed: BaseException | None = None
        try:
            work()
        except BaseException as error:  # handed to the task that waits
            failed = EndpointUnavailableError(f"the broadcast of the weights broke: {error}", cause=error)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, failed)

    threading.Thread(target=run, name="verifiers-broadcast", daemon=True).start()
    await all_of([done, *calls])
