"""Weights as folders: published whole or not at all, read back as tensors, deleted when nobody loads them any more.

    folders = WeightFolders(run / "weights")
    weights = folders.publish(3, model)            # Weights(version=3, folder=run/weights/v00000003)
    with in_use(weights.folder):                   # in any process: it is not deleted meanwhile
        tensors = read_tensors(weights.folder)

A folder is in Hugging Face's layout, so that vLLM, transformers and `vf-train` read it alike. It is written beside,
flushed and renamed: if it exists, it is complete, also after a crash. An adapter's folder is PEFT's
(`adapter_model.safetensors`); `is_adapter` tells. One process writes under a root; any number read.
"""

from __future__ import annotations

import copy
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from verifiers.errors import StoreError
from verifiers.train.learner import Weights

ADAPTER_FILE = "adapter_model.safetensors"
WHOLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class WeightFolders:
    """The weights of a run under `root`, a folder a version.

    The newest `keep` stay, and any that `in_use` holds. `durable` flushes them to the disk before they get their name;
    without it they survive the process but maybe not the machine, which is enough for handing them to a sampler.
    """

    def __init__(self, root: Path, keep: int = 2, *, durable: bool = True) -> None:
        self.root = root
        self.keep = max(1, keep)
        self.durable = durable
        with _as_store_error(root, "make"):
            root.mkdir(parents=True, exist_ok=True)
            for left in root.glob(".v*"):  # half written, or half deleted, by one that was killed
                shutil.rmtree(left, ignore_errors=True)

    def publish(self, version: int, model: Any, tensors: Mapping[str, Any] | None = None) -> Weights:
        """Write the weights of a transformers or PEFT model as `version`, and delete what is too old.

        tensors: where the model does not hold them whole (FSDP), by its own names, tied ones once; of an adapter by
        PEFT's names or those of its files. Without them the model's are taken. StoreError if they can not be written, a
        full disk for example; nothing of them is left then.
        """
        part = self.root / f".v{version:08d}.part"
        final = self.path_of(version)
        with _as_store_error(final, "write"):
            try:
                _write(model, part, tensors)
                if self.durable:
                    _flush(part)
                if final.exists():  # of a run that went on from an earlier checkpoint
                    self._delete(final)
                part.rename(final)
                if self.durable:
                    _flush_path(self.root)
            except BaseException:
                shutil.rmtree(part, ignore_errors=True)
                raise
        self._forget_old()
        return Weights(version, folder=final, adapter=is_adapter(final))

    def path_of(self, version: int) -> Path:
        """Where the weights of `version` are, or would be."""
        return self.root / f"v{version:08d}"

    def latest(self) -> Weights | None:
        """The newest that are complete."""
        versions = self._versions()
        if not versions:
            return None
        folder = self.path_of(versions[-1])
        return Weights(versions[-1], folder=folder, adapter=is_adapter(folder))

    def _versions(self) -> list[int]:
        return sorted(int(path.name[1:]) for path in self.root.glob("v*") if path.name[1:].isdecimal())

    def _forget_old(self) -> None:
        for version in self._versions()[: -self.keep]:
            folder = self.path_of(version)
            if not _is_held(folder):
                self._delete(folder)

    def _delete(self, folder: Path) -> None:
        # Under another name first: what is half deleted must not look complete.
        gone = folder.with_name(f".{folder.name}.gone")
        shutil.rmtree(gone, ignore_errors=True)
        with suppress(FileNotFoundError):
            folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


@contextmanager
def in_use(folder: Path) -> Iterator[Path]:
    """Keep `folder` from being deleted by its publisher; the system lets go of it when this process ends.

    StoreError if it is not there. On a network file system without locks it may be deleted, as the oldest one.
    """
    with _as_store_error(folder, "read"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield folder
    finally:
        os.close(descriptor)


def is_adapter(folder: Path) -> bool:
    """Whether the folder holds a LoRA adapter alone."""
    return (folder / ADAPTER_FILE).is_file()


def read_tensors(folder: Path) -> dict[str, Any]:
    """All tensors of a folder by the names they have there, mapped from the files, on the CPU.

    Of a mixture of experts those names differ from a model's in transformers 5, which keeps the experts of a layer in
    one tensor: `load_into` converts. StoreError if the folder is not there, or is no folder of weights.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    tensors: dict[str, Any] = {}
    with _as_store_error(folder, "read"):
        for name in _files_of(folder):
            try:
                tensors.update(load_file(folder / name))
            except SafetensorError as error:
                raise _unreadable(folder, f"{name}: {error}") from error
    return tensors


def checkpoint_tensors(model: Any, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """A model's tensors, by its own names, in the form and by the names of its checkpoints: expert by expert."""
    from transformers.core_model_loading import revert_weight_conversion

    return dict(revert_weight_conversion(model, dict(tensors)))


def write_tensors(folder: Path, tensors: Mapping[str, Any]) -> None:
    """Write tensors alone, by the names they are given, into a folder that is there. StoreError if it fails."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    own = {tensor.data_ptr(): name for name, tensor in tensors.items()}  # tied ones once, which is all a file takes
    named = {name: tensors[name].detach().contiguous() for name in own.values()}
    with _as_store_error(folder, "write"):
        try:
            save_file(named, folder / WHOLE_FILE, metadata={"format": "pt"})
        except SafetensorError as error:  # how it tells of a full disk, among others
            raise OSError(str(error)) from error


def load_into(model: Any, folder: Path) -> None:
    """Put a folder's weights into a model of that kind, in place, in the model's own precision and on its devices.

    StoreError if names or shapes are not the model's.
    """
    import torch

    with in_use(folder), torch.no_grad():
        if is_adapter(folder):
            _load_adapter(model, folder)
            return
        own = dict(model.named_parameters()) | dict(model.named_buffers())
        tensors = read_tensors(folder)
        if not tensors.keys() <= own.keys():  # stored in another form than it is computed with
            tensors = type(model).from_pretrained(folder, dtype="auto").state_dict()
        known = {name: tensor for name, tensor in tensors.items() if name in own}
        expected = {name for name, _ in model.named_parameters()}  # tied weights once
        if missing := expected - known.keys():
            raise _unreadable(folder, f"it lacks {len(missing)} of the model's weights, such as {min(missing)}")
        for name, tensor in known.items():
            if own[name].shape != tensor.shape:
                raise _unreadable(folder, f"{name} has shape {[*tensor.shape]}, not {[*own[name].shape]}")
        for name, tensor in known.items():
            own[name].copy_(tensor)


def _load_adapter(model: Any, folder: Path) -> None:
    from peft import set_peft_model_state_dict

    outcome = set_peft_model_state_dict(model, read_tensors(folder))
    if outcome.unexpected_keys:
        raise _unreadable(folder, f"the model has no adapter weight {outcome.unexpected_keys[0]}")


def _files_of(folder: Path) -> list[str]:
    if is_adapter(folder):
        return [ADAPTER_FILE]
    index = folder / INDEX_FILE
    if not index.is_file():
        return [WHOLE_FILE]
    try:
        return sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(folder, f"{INDEX_FILE} is no index") from error


# --- writing ------------------------------------------------------------------------------------------------------


def _write(model: Any, folder: Path, tensors: Mapping[str, Any] | None) -> None:
    from safetensors import SafetensorError
    from transformers.utils import logging as progress

    shown = progress.is_progress_bar_enabled()
    progress.disable_progress_bar()  # one for each policy version would be in everybody's way
    try:
        if tensors is not None and hasattr(model, "peft_config"):
            _write_adapter(model, folder, tensors)
        else:
            model.save_pretrained(folder, **({} if tensors is None else {"state_dict": dict(tensors)}))
    except SafetensorError as error:  # how it tells of a full disk, among others
        raise OSError(str(error)) from error
    finally:
        if shown:
            progress.enable_progress_bar()


def _write_adapter(model: Any, folder: Path, tensors: Mapping[str, Any]) -> None:
    """As PEFT does, which would drop tensors that have the names of its files already."""
    from safetensors.torch import save_file

    folder.mkdir()
    config = copy.copy(model.peft_config["default"])
    config.inference_mode = True
    config.save_pretrained(str(folder))
    named = {name.replace(".default.", "."): tensor.contiguous() for name, tensor in tensors.items()}
    save_file(named, folder / ADAPTER_FILE, metadata={"format": "pt"})


def _flush(folder: Path) -> None:
    for path in folder.iterdir():
        _flush_path(path)
    _flush_path(folder)


def _flush_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_held(folder: Path) -> bool:
    """Whether somebody loads from it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no locks there
        return False
    finally:
        os.close(descriptor)
    return False


@contextmanager
def _as_store_error(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(
            f"can not {what} the weights {path}: {reason}",
            hint="Free some space there, or name another folder (output); the run can be continued.",
            cause=error,
        ) from error


def _unreadable(folder: Path, why: str) -> StoreError:
    return StoreError(f"{folder} can not be loaded: {why}", hint="Use weights of the same model, written whole.")
