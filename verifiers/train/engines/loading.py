"""New weights into a model that is being run: tensors of this process, a folder, or a LoRA adapter.

Names and shapes are checked before the first tensor is copied, so a source that does not fit changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from verifiers.errors import ConfigError, MissingExtraError
from verifiers.train.learner import Weights
from verifiers.train.models import adapted


class Loader:
    """Loads weights into one model. `adapter`: PEFT's configuration for adapters that come as tensors."""

    def __init__(self, model: Any, adapter: Any = None) -> None:
        self._model = model
        self._adapter = adapter
        self._wrapped: Any = None

    def load(self, source: Weights | Mapping[str, Any] | str | Path) -> None:
        """Put the weights into the model. ConfigError if they do not fit it; then it is as before."""
        if isinstance(source, Weights):
            if source.adapter:
                self._load_adapter(source)
                return
            source = source.tensors if source.tensors is not None else _folder_of(source)
        self._drop_adapter()
        if isinstance(source, Mapping):
            self._copy({name: (tensor.shape, partial(_itself, tensor)) for name, tensor in source.items()})
        else:
            self._copy_folder(Path(source))

    def _copy_folder(self, folder: Path) -> None:
        with ExitStack() as opened:
            try:
                given = dict(_in_folder(folder, opened))
            except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
                raise ConfigError(
                    f"{folder} holds no weights: {error}", hint="Name a folder that save_pretrained wrote, whole."
                ) from error
            if given.keys() <= self._model.state_dict().keys():
                self._copy(given)
                return
        # Files may hold other names than models do (experts one by one): transformers knows what becomes of them.
        try:
            loaded, told = type(self._model).from_pretrained(
                folder, dtype=self._model.dtype, output_loading_info=True
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(f"the weights in {folder} do not fit the engine's model: {error}") from error
        if told["missing_keys"] or told["unexpected_keys"]:
            raise _misfit(told["missing_keys"], told["unexpected_keys"])
        self.load(loaded.state_dict())

    def _copy(self, given: Mapping[str, tuple[Any, Callable[[], Any]]]) -> None:
        own = self._model.state_dict(keep_vars=True)
        _check_names(own, given)
        for name, (shape, _) in given.items():
            if tuple(shape) != tuple(own[name].shape):
                raise ConfigError(
                    f"the weight {name} has the shape {tuple(shape)}, the model's {tuple(own[name].shape)}",
                    hint="Give the engine a model of the same configuration as the one that is trained.",
                )
        with torch.no_grad():
            for name, (_, read) in given.items():
                own[name].copy_(read())

    # --- adapters ---------------------------------------------------------------------------------------------

    def _load_adapter(self, source: Weights) -> None:
        peft = _peft()
        config, tensors = self._adapter, source.tensors
        if tensors is None:
            folder = _folder_of(source)
            config = peft.PeftConfig.from_pretrained(str(folder))
            tensors = _read(folder / "adapter_model.safetensors")
        if config is None:
            raise ConfigError(
                "an adapter came as tensors alone, and nothing says how to apply them",
                hint="Give the engine PEFT's configuration (adapter=…), or hand over a folder that holds it.",
            )
        if self._wrapped is None or _differ(self._wrapped.peft_config["default"], config):
            self._drop_adapter()
            config.inference_mode = True
            self._wrapped = adapted(self._model, config)
            self._wrapped.requires_grad_(False).eval()
        missing = set(peft.get_peft_model_state_dict(self._wrapped)) - set(tensors)
        result = peft.set_peft_model_state_dict(self._wrapped, dict(tensors))
        if missing or result.unexpected_keys:
            raise _misfit(missing, result.unexpected_keys)

    def _drop_adapter(self) -> None:
        if self._wrapped is not None:
            self._wrapped.unload()
            self._wrapped = None


def _itself(tensor: Any) -> Any:
    return tensor


def _in_folder(folder: Path, opened: ExitStack) -> Iterator[tuple[str, tuple[Any, Callable[[], Any]]]]:
    """Names of a folder's weights, with their shapes and how to read them while the files are open."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        files = ["model.safetensors"]
    for name in files:
        stored = opened.enter_context(safe_open(str(folder / name), framework="pt"))
        for key in stored.keys():  # noqa: SIM118 - no mapping
            yield key, (stored.get_slice(key).get_shape(), partial(stored.get_tensor, key))


def _read(path: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    if not path.is_file():
        raise ConfigError(f"there is no adapter {path}", hint="Name a folder that PEFT's save_pretrained wrote.")
    tensors: dict[str, Any] = load_file(str(path))
    return tensors


def _folder_of(source: Weights) -> Path:
    if source.folder is None:
        raise ConfigError("the weights have neither a folder nor tensors", hint="Set one of the two.")
    return source.folder


def _check_names(own: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Every weight is given once: under its own name, or under that of a weight it is tied to."""
    unexpected = set(given) - set(own)
    covered = {own[name].data_ptr() for name in given if name in own}
    missing = {name for name, tensor in own.items() if name not in given and tensor.data_ptr() not in covered}
    if missing or unexpected:
        raise _misfit(missing, unexpected)


def _misfit(missing: Any, unexpected: Any) -> ConfigError:
    parts = [
        f"{len(names)} {what} (such as {min(names)})"
        for what, names in (("missing", missing), ("unknown", unexpected))
        if names
    ]
    return ConfigError(
        f"the weights do not fit the engine's model: {' and '.join(parts)}",
        hint="Give the engine a model of the same configuration as the one that is trained.",
    )


def _differ(left: Any, right: Any) -> bool:
    names = ("peft_type", "r", "lora_alpha", "target_modules", "use_rslora", "use_dora")
    return any(getattr(left, name, None) != getattr(right, name, None) for name in names)


def _peft() -> Any:
    try:
        import peft
    except ImportError:
        raise MissingExtraError("train", "LoRA adapters") from None
    return peft
