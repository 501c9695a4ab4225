"""What a learner writes and reads: safetensors and JSON, whole tensors, whatever number of ranks wrote them.

    FOLDER/learner.json             format, version, updates
    FOLDER/trained.safetensors      parameters that are trained, by name
    FOLDER/optimizer.safetensors    NAME/STATE, such as model.norm.weight/exp_avg
    FOLDER/random.safetensors       the random state of each rank, and of its GPU
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from verifiers.errors import ResumeError
from verifiers.train.distributed import Ranks
from verifiers.train.models import Policy
from verifiers.train.weights import save_model, save_tensors

FORMAT = 1


def save(folder: Path, policy: Policy, optimizer: Any, state: dict[str, int], ranks: Ranks) -> None:
    """Write everything; the leader does, from what all gather. OSError if it cannot."""
    trained = ranks.whole(policy.trained)
    moments = ranks.whole(
        {
            f"{name}/{key}": value
            for name, parameter in policy.trained.items()
            for key, value in optimizer.state.get(parameter, {}).items()
            if isinstance(value, torch.Tensor)
        }
    )
    randomness = ranks.gather(_random_state(policy))
    if not ranks.leads:
        return
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(folder / "trained.safetensors", trained)
    save_tensors(folder / "optimizer.safetensors", moments)
    by_rank = {f"{rank}/{key}": value for rank, of in enumerate(randomness) for key, value in of.items()}
    save_tensors(folder / "random.safetensors", by_rank)
    data = {"format": FORMAT, **state, "adapter": policy.adapter, "ranks": ranks.world}
    (folder / "learner.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def load(folder: Path, policy: Policy, optimizer: Any, ranks: Ranks) -> dict[str, int]:
    """Set weights, optimiser and random state; returns what `save` was given as `state`.

    Each rank reads for itself. On another number of ranks their random states start anew. ResumeError if the files are
    not there, or of another model.
    """
    try:
        data = json.loads((folder / "learner.json").read_text(encoding="utf-8"))
        trained = load_file(folder / "trained.safetensors")
        moments = load_file(folder / "optimizer.safetensors")
        randomness = load_file(folder / "random.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise ResumeError(
            f"there is no saved learner in {folder}: {error}",
            hint=f"Remove the checkpoint {folder.parent} to go on from the one before it.",
        ) from error
    if data.get("format") != FORMAT:
        raise ResumeError(
            f"{folder} has format {data.get('format')}, this version reads {FORMAT}",
            hint="Go on with the version of verifiers that wrote it, or from the checkpoint before it.",
        )
    parameters = policy.trained
    _same(folder, parameters, trained)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(_like(trained[name], parameter))
    for name, parameter in parameters.items():
        keys = [key for key in moments if key.rpartition("/")[0] == name]
        optimizer.state[parameter] = {key.rpartition("/")[2]: _moment(moments[key], parameter) for key in keys}
        if not keys:
            del optimizer.state[parameter]
    if data["ranks"] == ranks.world:
        torch.set_rng_state(randomness[f"{ranks.rank}/cpu"])
        if (of_gpu := randomness.get(f"{ranks.rank}/cuda")) is not None and policy.device.type == "cuda":
            torch.cuda.set_rng_state(of_gpu, policy.device)
    return {"version": int(data["version"]), "updates": int(data["updates"])}


def export(policy: Policy, folder: Path, ranks: Ranks) -> None:
    """The model as `from_pretrained` reads it, and its tokenizer; of an adapter, what PEFT reads. OSError if it cannot
    be written."""
    state = policy.trained
    if not policy.adapter:
        once = dict(policy.model.named_parameters()) | dict(policy.model.named_buffers())  # tied ones by one name
        state = {name: value for name, value in policy.model.state_dict().items() if name in once}
    tensors = ranks.whole(state)
    if not ranks.leads:
        return
    save_model(policy.model, folder, tensors)
    if policy.tokenizer is not None:
        policy.tokenizer.save_pretrained(folder)


def _random_state(policy: Policy) -> dict[str, Any]:
    state = {"cpu": torch.get_rng_state()}
    if policy.device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(policy.device)
    return state


def _same(folder: Path, parameters: dict[str, Any], saved: dict[str, Any]) -> None:
    there = {name: tuple(value.shape) for name, value in saved.items()}
    here = {name: tuple(value.shape) for name, value in parameters.items()}
    if there != here:
        different = sorted(name for name in there.keys() | here.keys() if there.get(name) != here.get(name))
        raise ResumeError(
            f"{folder} was saved from another model: {len(different)} parameters differ, the first is {different[0]} "
            f"({there.get(different[0], 'absent')} there, {here.get(different[0], 'absent')} here)",
            hint="Go on with the model and the adapter settings of that run.",
        )


def _moment(saved: Any, parameter: Any) -> Any:
    """State of the parameter's shape goes where it is; counters stay on the CPU, but for fused kernels on a GPU."""
    if saved.shape == parameter.shape:
        return _like(saved, parameter).clone()
    return saved.to(parameter.device)


def _like(saved: Any, parameter: Any) -> Any:
    """A whole tensor split as the parameter is."""
    saved = saved.to(parameter.device)
    if not hasattr(parameter, "full_tensor"):
        return saved
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(saved, parameter.device_mesh, parameter.placements, src_data_rank=None)
