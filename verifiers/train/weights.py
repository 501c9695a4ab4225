"""Weights as folders: published whole or not at all, and deleted when nobody loads them any more.

    folders = WeightFolders(run / "weights")
    weights = folders.publish(3, model)            # Weights(version=3, folder=run/weights/v00000003)
    with in_use(weights.folder):                   # in any process: it is not deleted meanwhile
        load(weights.folder)                       # vLLM, transformers, or verifiers.train.engines.loading

A folder is in Hugging Face's layout, so that vLLM, transformers and `vf-train` read it alike. It is written beside,
flushed and renamed: if it exists, it is complete, also after a crash. An adapter's folder is PEFT's
(`adapter_model.safetensors`); `is_adapter` tells. One process writes under a root; any number read.
"""

from __future__ import annotations

import copy
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from verifiers.errors import StoreError
from verifiers.locks import is_at
from verifiers.train.learner import Weights

ADAPTER_FILE = "adapter_model.safetensors"
WHOLE_FILE = "model.safetensors"


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
                save_model(model, part, tensors)
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
            with _free(folder) as free:
                if free:
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
        if not is_at(descriptor, folder):
            raise StoreError(f"the weights {folder} were deleted a moment ago", hint="Take the newest version there.")
        yield folder
    finally:
        os.close(descriptor)


def is_adapter(folder: Path) -> bool:
    """Whether the folder holds a LoRA adapter alone."""
    return (folder / ADAPTER_FILE).is_file()


def checkpoint_tensors(model: Any, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """A model's tensors, by its own names, in the form and by the names of its checkpoints: expert by expert."""
    from transformers.core_model_loading import revert_weight_conversion

    return dict(revert_weight_conversion(model, dict(tensors)))


def write_tensors(folder: Path, tensors: Mapping[str, Any]) -> None:
    """Write tensors alone, by the names they are given, into a folder that is there. StoreError if it fails."""
    own = {tensor.data_ptr(): name for name, tensor in tensors.items()}  # tied ones once, which is all a file takes
    named = {name: tensors[name].detach().contiguous() for name in own.values()}
    with _as_store_error(folder, "write"):
        save_tensors(folder / WHOLE_FILE, named)


def save_tensors(path: Path, tensors: Mapping[str, Any]) -> None:
    """Write a file of tensors, no two of which share memory. OSError if it cannot be written."""
    from safetensors.torch import save_file

    with _full_disk_as_os_error():
        save_file(dict(tensors), path, metadata={"format": "pt"})


def save_model(model: Any, folder: Path, tensors: Mapping[str, Any] | None = None) -> None:
    """Write a transformers or PEFT model in Hugging Face's layout, an adapter as PEFT does. OSError if it cannot.

    tensors: as for `WeightFolders.publish`.
    """
    from transformers.utils import logging as progress

    shown = progress.is_progress_bar_enabled()
    progress.disable_progress_bar()  # it would be drawn over whatever else is on the terminal
    try:
        if tensors is not None and hasattr(model, "peft_config"):
            _save_adapter(model, folder, tensors)
            return
        with _full_disk_as_os_error():
            model.save_pretrained(folder, **({} if tensors is None else {"state_dict": dict(tensors)}))
    finally:
        if shown:
            progress.enable_progress_bar()


# --- writing ------------------------------------------------------------------------------------------------------


def _save_adapter(model: Any, folder: Path, tensors: Mapping[str, Any]) -> None:
    """As PEFT does, which would drop tensors that have the names of its files already."""
    folder.mkdir(parents=True, exist_ok=True)
    config = copy.copy(model.peft_config["default"])
    config.inference_mode = True
    config.save_pretrained(str(folder))
    named = {name.replace(".default.", "."): tensor.contiguous() for name, tensor in tensors.items()}
    save_tensors(folder / ADAPTER_FILE, named)


@contextmanager
def _full_disk_as_os_error() -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:  # how it tells of a full disk, among others
        raise OSError(str(error)) from error


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


@contextmanager
def _free(folder: Path) -> Iterator[bool]:
    """Whether nobody loads from it; nobody begins to before the block ends."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield True
        return
    try:
        yield _lock_if_free(descriptor)
    finally:
        os.close(descriptor)


def _lock_if_free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # no locks there
        pass
    return True


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
