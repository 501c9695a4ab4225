"""The policy as a torch module: loaded, with an adapter if one is trained, beside its reference model if one is needed.

    policy = load_policy(ModelConfig(path="models/qwen3-0.6b"), reference=loss.kl > 0)
    policy = policy_of(model, ModelConfig(lora=LoraConfig()))        # a model object that is there already
    with policy.as_reference() as reference: …                      # frozen; with LoRA the adapter is off
"""

from __future__ import annotations

import copy
import importlib.util
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verifiers.errors import ConfigError, MissingExtraError
from verifiers.train.config import ModelConfig
from verifiers.train.model_files import cached
from verifiers.train.plan import on_hub

try:
    import torch
    import transformers

    from verifiers.train import attention
    from verifiers.train.routers import Routers
except ImportError as error:
    raise MissingExtraError("train", "Training") from error


WHERE = "A model is a folder with config.json, weights and tokenizer, a .gguf file, or a name on the Hugging Face Hub."

HUB_S = 10.0
"""Seconds that the Hub has for its first answer."""


@dataclass(slots=True)
class Policy:
    """A causal language model in training mode, and what belongs to it."""

    model: Any
    """What is called: a Hugging Face model, or PEFT's model around it."""
    config: ModelConfig
    device: Any
    tokenizer: Any = None
    reference: Any = None
    """A frozen second copy; None if none was asked for, or if an adapter is trained."""
    routers: Routers = field(init=False)

    def __post_init__(self) -> None:
        self.routers = Routers(self.model)

    @property
    def adapter(self) -> bool:
        """Whether a LoRA adapter is trained, and nothing else."""
        return self.config.lora is not None

    @property
    def vocabulary(self) -> int:
        """How many token ids the model knows."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    @property
    def trained(self) -> dict[str, Any]:
        """Parameters that are trained, by name; tied ones once."""
        return {name: value for name, value in self.model.named_parameters() if value.requires_grad}

    @contextmanager
    def as_reference(self) -> Iterator[Any]:
        """The model whose weights are those before training. ConfigError if it was not asked for."""
        if self.adapter:
            with self.model.disable_adapter():
                yield self.model
        elif self.reference is None:
            raise ConfigError("a KL divergence needs a reference model, and none was loaded")
        else:
            yield self.reference


def load_policy(config: ModelConfig, *, reference: bool = False, device: str | None = None, seed: int = 0) -> Policy:
    """Load weights and tokenizer from a folder or name in Hugging Face's layout, or from a GGUF file.

    device: overrides `config.device`. seed: of a new adapter's weights. ConfigError if there is no such model, or not
    on such a device.
    """
    where = find_device(device or config.device)
    model, tokenizer = load_model(config.path, where, config.dtype, _attention(config, where))
    return policy_of(model, config, tokenizer, reference=reference, seed=seed)


def load_model(path: str, device: Any, dtype: str = "auto", attention_by: str = "sdpa") -> tuple[Any, Any]:
    """Model, on its device, and tokenizer: of a folder or name in Hugging Face's layout, or of a GGUF file.

    dtype: "auto" takes that of the files. ConfigError if there is no such model, or if what is there is no whole one:
    weights that files lack would begin as random numbers.
    """
    attention.register()
    source, files = _source(path)
    try:
        model, told = transformers.AutoModelForCausalLM.from_pretrained(
            source, **files, dtype=dtype, attn_implementation=attention_by, output_loading_info=True
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **files)
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"the model in {path} does not fit into memory: {_first_line(error)}",
            hint="Take a smaller one, model.dtype=bfloat16, or a machine with more.",
        ) from error
    except Exception as error:  # boundary: what stands in files decides what their readers raise, of a dozen libraries
        raise ConfigError(f"no model could be loaded from {path!r}: {_first_line(error)}", hint=WHERE) from error
    if missing := sorted(told["missing_keys"]):
        raise ConfigError(
            f"no model could be loaded from {path!r}: its files lack {len(missing)} weights (such as {missing[0]})",
            hint="Copy it again, whole; an adapter is merged into its model first (PEFT's merge_and_unload).",
        )
    return model.to(device), tokenizer


def policy_of(
    model: Any, config: ModelConfig, tokenizer: Any = None, *, reference: bool = False, seed: int = 0
) -> Policy:
    """A model object, on its device, as a policy: `config`'s adapter and gradient checkpointing are applied to it."""
    device = next(model.parameters()).device
    model.config.use_cache = False
    if model.config._attn_implementation == attention.NAME:
        attention.check(model.config)
    if next(model.parameters()).dtype == torch.float64:  # grouped kernels know no double precision
        model.set_experts_implementation("eager")
    frozen = copy.deepcopy(model).requires_grad_(False).eval() if reference and config.lora is None else None
    if config.gradient_checkpointing:  # not reentrant: that kind needs an input with a gradient, which LoRA has not
        enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
        enable({"use_reentrant": False})
    if config.lora is not None:
        model = _with_adapter(model, config, seed)
    return Policy(model.train(), config, device, tokenizer, frozen)


def find_device(name: str) -> Any:
    """The device of that name; "auto" takes this process's GPU, or the CPU if there is none."""
    if name == "auto":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
        raise ConfigError(
            f"there is no device {name!r}: {_first_line(error)}", hint='model.device = "auto" takes what is there.'
        ) from error
    return device


def _attention(config: ModelConfig, device: Any) -> str:
    from transformers.utils import is_flash_attn_2_available

    half = config.dtype in {"bfloat16", "float16"}
    if config.attention == "flash_attention_2":
        lacking = [
            (device.type == "cuda", f"this is a {device.type.upper()}, not a GPU of NVIDIA or AMD"),
            (half, f"model.dtype is {config.dtype}, and its kernels take bfloat16 and float16"),
            (is_flash_attn_2_available(), "the package flash-attn is not installed"),
        ]
        if why := next((why for met, why in lacking if not met), None):
            raise ConfigError(
                f"model.attention is flash_attention_2, and {why}",
                hint='model.attention = "auto" takes what there is.',
            )
    if config.attention != "auto":
        return config.attention
    if device.type != "cuda":
        return "sdpa"
    return "flash_attention_2" if half and is_flash_attn_2_available() else attention.NAME


def _source(path: str) -> tuple[str, dict[str, Any]]:
    if not path:
        raise ConfigError("model.path is not set", hint=WHERE)
    if on_hub(path):
        return path, _from_hub(path)
    if path.endswith(".gguf"):
        if importlib.util.find_spec("gguf") is None:
            raise MissingExtraError("train", "A GGUF file")
        return str(Path(path).parent), {"gguf_file": Path(path).name}
    return path, {}


def _with_adapter(model: Any, config: ModelConfig, seed: int) -> Any:
    try:
        import peft
    except ImportError as error:
        raise MissingExtraError("train", "A LoRA adapter") from error
    lora = config.lora
    assert lora is not None
    adapter = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return adapted(model, adapter)
        except ValueError as error:
            raise ConfigError(
                f"the adapter does not fit the model: {_first_line(error)}",
                hint='model.lora.target_modules = "all-linear" fits every model.',
            ) from error


def adapted(model: Any, config: Any) -> Any:
    """PEFT's model around this one, with an adapter of PEFT's configuration."""
    import peft

    with warnings.catch_warnings():  # of experts, whose ranks PEFT does set: it looks for them among modules only
        warnings.filterwarnings("ignore", "The following (rank|alpha)_pattern keys did not match", RuntimeWarning)
        # What PEFT reads of transformers is no matter of users.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        return peft.get_peft_model(model, config)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _from_hub(name: str) -> dict[str, Any]:
    """How a name on the Hub is loaded: from what is kept here if the Hub does not give it. ConfigError if neither does.

    It is asked once, since its own client would try for a minute, with a line on each of a dozen attempts.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url  # comes with transformers

    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"), timeout=HUB_S)
    except Exception as error:  # boundary: of the Hub's client and of the HTTP client below it
        if cached(name) is not None:
            return {"local_files_only": True}
        raise ConfigError(
            f"there is no folder {name!r}, and the Hugging Face Hub does not give it: {_first_line(error)}", hint=WHERE
        ) from error
    return {}
