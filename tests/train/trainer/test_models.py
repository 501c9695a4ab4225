"""Where a policy comes from, what of it is trained, and what is said when there is none."""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.support.tiny_model import save_tiny, tiny_model, tiny_tokenizer, write_gguf  # noqa: E402
from tests.train.trainer.rows_for_tests import eight_rows, make_row, two_groups  # noqa: E402
from verifiers.errors import ConfigError  # noqa: E402
from verifiers.train.config import LoraConfig, LossConfig, ModelConfig, TrainerConfig  # noqa: E402
from verifiers.train.models import find_device, load_policy, policy_of  # noqa: E402
from verifiers.train.trainer import TorchLearner  # noqa: E402

pytestmark = pytest.mark.train

IDS = torch.arange(12).reshape(1, 12)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3_moe"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_folder_is_loaded_in_the_type_asked_for(tmp_path: Path, kind: str, dtype: Any) -> None:
    """Weights in that type, on the CPU, in training mode, with the tokenizer."""
    policy = load_policy(ModelConfig(path=str(save_tiny(tmp_path, kind)), dtype=dtype, device="cpu"))
    assert {value.dtype for value in policy.trained.values()} == {getattr(torch, dtype)}
    assert policy.model.training and policy.vocabulary == 259 and not policy.adapter
    assert policy.tokenizer("a")["input_ids"] == [tiny_tokenizer()("a")["input_ids"][0]]
    assert len(policy.routers) == (2 if kind == "qwen3_moe" else 0)


def test_a_gguf_file_is_loaded(tmp_path: Path) -> None:
    """The same logits as the model that was written: what llama.cpp serves can be trained."""
    pytest.importorskip("gguf")
    model = tiny_model(vocab_size=260)
    write_gguf(tmp_path / "tiny.gguf", model)
    policy = load_policy(ModelConfig(path=str(tmp_path / "tiny.gguf"), device="cpu"))
    with torch.no_grad():
        assert torch.allclose(policy.model(IDS).logits, model(IDS).logits, atol=1e-5)
    assert policy.tokenizer.eos_token_id == 256


@pytest.mark.parametrize(
    ("path", "said"),
    [("", "model.path is not set"), ("here/is/nothing", "there is no model"), ("x.gguf", "there is no model")]
    + [("nothing", "there is no model"), ("nobody/nothing", "Hub does not give it")],
)
def test_where_there_is_no_model_the_setting_is_named(path: str, said: str, monkeypatch: Any) -> None:
    """A ConfigError with what was asked for and what would do, not a library's traceback."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match=said) as caught:
        load_policy(ModelConfig(path=path, device="cpu"))
    assert "GGUF" in str(caught.value.hint) or ".gguf" in str(caught.value.hint)


def cut(path: Path) -> None:
    """Take a third of a file away."""
    whole = path.read_bytes()
    path.write_bytes(whole[: 2 * len(whole) // 3])


def without_a_layer(folder: Path) -> None:
    """Take a tensor out of a file that stays a whole one."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(str(folder / "model.safetensors"))
    tensors.pop(min(name for name in tensors if "layers" in name))
    save_file(tensors, str(folder / "model.safetensors"), {"format": "pt"})


DAMAGE: dict[str, tuple[Any, str]] = {
    "weights": (lambda folder: cut(folder / "model.safetensors"), "no model could be loaded"),
    "other-bytes": (lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 4096), "no model could be loaded"),
    "empty-weights": (lambda folder: (folder / "model.safetensors").write_bytes(b""), "no model could be loaded"),
    "no-weights": (lambda folder: (folder / "model.safetensors").unlink(), "no model could be loaded"),
    "a-layer": (without_a_layer, r"lack 1 weights \(such as"),
    "config": (lambda folder: cut(folder / "config.json"), "no model could be loaded"),
    "tokenizer": (lambda folder: cut(folder / "tokenizer.json"), "no model could be loaded"),
    "other-tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{}"), "no model could be loaded"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_model_is_refused_whatever_of_it_is_damaged(tmp_path: Path, damage: str) -> None:
    """With what is wrong and where; never with a random layer in place of what is missing."""
    folder = save_tiny(tmp_path / "model")
    harm, said = DAMAGE[damage]
    harm(folder)
    with pytest.raises(ConfigError, match=said) as caught:
        load_policy(ModelConfig(path=str(folder), device="cpu"))
    assert str(folder) in str(caught.value) and caught.value.hint


def test_a_damaged_gguf_file_is_refused(tmp_path: Path) -> None:
    """As a folder is."""
    pytest.importorskip("gguf")
    file = tmp_path / "tiny.gguf"
    write_gguf(file, tiny_model(vocab_size=260))
    cut(file)
    with pytest.raises(ConfigError, match="no model could be loaded"):
        load_policy(ModelConfig(path=str(file), device="cpu"))


@pytest.mark.parametrize(("dtype", "why"), [("float32", "this is a CPU"), ("bfloat16", "this is a CPU")])
def test_attention_that_there_is_not_is_told_as_that(tmp_path: Path, dtype: Any, why: str) -> None:
    """The setting is named, and what would do; not the model's path."""
    asked = ModelConfig(path=str(save_tiny(tmp_path)), attention="flash_attention_2", dtype=dtype, device="cpu")
    with pytest.raises(ConfigError, match=f"model.attention is flash_attention_2, and {why}") as caught:
        load_policy(asked)
    assert "auto" in str(caught.value.hint)


def test_a_device_that_is_not_there() -> None:
    """The message names it; auto takes what is there."""
    with pytest.raises(ConfigError, match="no device 'cuda:99'"):
        find_device("cuda:99")
    with pytest.raises(ConfigError, match="no device 'toaster'"):
        find_device("toaster")
    assert find_device("auto").type in {"cpu", "cuda"}


# --- adapters ----------------------------------------------------------------------------------------------------


def lora_learner(loss: LossConfig, **lora: Any) -> TorchLearner:
    """A learner of an adapter."""
    policy = policy_of(tiny_model(), ModelConfig(lora=LoraConfig(rank=4, **lora)), seed=3)
    return TorchLearner(policy, TrainerConfig(lr=1e-2), loss)


def test_an_adapter_is_made_without_a_word_of_the_libraries_to_the_user() -> None:
    """Neither warnings of what PEFT reads of transformers, nor of experts, whose ranks it does set."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in ("qwen2", "qwen3_moe"):
            policy_of(tiny_model(kind), ModelConfig(lora=LoraConfig(rank=4), gradient_checkpointing=True))


def test_an_adapter_alone_is_trained(tmp_path: Path) -> None:
    """The base stays bit for bit; what travels is the adapter under its file's names; others load what is exported."""
    import peft
    from safetensors.torch import load_file

    learner = lora_learner(LossConfig(kind="icepop"))
    base = {n: v.detach().clone() for n, v in learner.policy.model.named_parameters() if "lora_" not in n}
    before = {n: v.clone() for n, v in (learner.weights().tensors or {}).items()}
    assert learner.step(eight_rows())["trainer/grad_norm"] > 0
    weights = learner.weights()
    assert weights.adapter and weights.tensors is not None and weights.version == 1
    assert all("lora_" in name for name in weights.tensors)
    assert any(not torch.equal(value, before[name]) for name, value in weights.tensors.items())
    for name, value in learner.policy.model.named_parameters():
        assert "lora_" in name or torch.equal(value, base[name])
    learner.export(tmp_path)
    file = load_file(tmp_path / "adapter_model.safetensors")
    assert file.keys() == weights.tensors.keys()
    other = peft.PeftModel.from_pretrained(tiny_model(), tmp_path)
    with torch.no_grad():
        assert torch.equal(other(IDS).logits, learner.policy.model(IDS).logits)


def test_without_its_adapter_the_policy_is_the_reference() -> None:
    """No second copy: at first the divergence is 0, after a step it is not, and the adapter is on again."""
    learner = lora_learner(LossConfig(kind="icepop", kl=0.5))
    assert learner.policy.reference is None
    assert learner.step(eight_rows())["loss/reference_kl"] == pytest.approx(0, abs=1e-9)
    assert learner.step(eight_rows())["loss/reference_kl"] > 1e-6
    assert learner.version == 2 and learner.policy.trained


def test_a_reference_model_stays_as_it_was() -> None:
    """All weights are trained, the copy is frozen, and the divergence is measured against it."""
    policy = policy_of(tiny_model(), ModelConfig(), reference=True)
    learner = TorchLearner(policy, TrainerConfig(lr=1e-2), LossConfig(kind="icepop", kl=0.5))
    frozen = {name: value.clone() for name, value in policy.reference.named_parameters()}
    first, second = learner.step(eight_rows()), learner.step(eight_rows())
    assert first["loss/reference_kl"] == pytest.approx(0, abs=1e-9) and second["loss/reference_kl"] > 1e-6
    assert all(torch.equal(value, frozen[name]) for name, value in policy.reference.named_parameters())


def test_a_divergence_without_a_reference_is_a_mistake_of_settings() -> None:
    """It is named before a step is made."""
    learner = TorchLearner(policy_of(tiny_model(), ModelConfig()), None, LossConfig(kl=0.5))
    with pytest.raises(ConfigError, match="reference model"):
        learner.step([make_row()])


def test_an_adapter_for_layers_that_are_not_there() -> None:
    """The setting is named."""
    with pytest.raises(ConfigError, match="adapter does not fit"):
        policy_of(tiny_model(), ModelConfig(lora=LoraConfig(target_modules=["no_proj"])))


def test_an_adapter_with_checkpointing_has_the_same_gradient() -> None:
    """Frozen inputs have no gradient of their own; layers are run again all the same."""
    moved = []
    for checkpointing in (False, True):
        config = ModelConfig(lora=LoraConfig(rank=4), gradient_checkpointing=checkpointing)
        learner = TorchLearner(policy_of(tiny_model().double(), config), TrainerConfig(lr=1e-2), LossConfig())
        learner.step(eight_rows())
        moved.append(learner.weights().tensors)
    for name, value in moved[0].items():
        assert torch.allclose(value, moved[1][name], rtol=0, atol=1e-12)


def test_a_model_whose_packed_rows_would_see_each_other_is_refused() -> None:
    """transformers 5.24 makes the masks of gpt-oss without positions: packing it would train on a wrong context."""
    with pytest.raises(ConfigError, match="packed rows would see each other: gpt_oss"):
        TorchLearner(policy_of(model_of("gpt_oss"), ModelConfig()), TrainerConfig(packing=True))
    padded = TorchLearner(policy_of(model_of("gpt_oss"), ModelConfig()), TrainerConfig(packing=False))
    assert padded.step(eight_rows())["trainer/grad_norm"] > 0


DENSE = "llama mistral qwen3 gemma2 gemma3_text phi3 olmo2 granite cohere2 smollm3".split()
EXPERTS = "mixtral qwen2_moe olmoe deepseek_v3 glm4_moe gpt_oss".split()
SLIDING = {"mistral", "gemma2", "gemma3_text", "phi3", "cohere2", "gpt_oss"}


def model_of(family: str, attention: str = "eager") -> Any:
    """A tiny random model, whose sliding windows are shorter than the rows."""
    from transformers import AutoConfig, AutoModelForCausalLM

    shape: dict[str, Any] = {"vocab_size": 259, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 257}
    shape |= {"sliding_window": 6} if family in SLIDING else {}
    if family in EXPERTS:
        shape |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
        shape |= {"n_routed_experts": 4, "num_local_experts": 4, "n_group": 1, "topk_group": 1}
    if family == "deepseek_v3":
        shape |= {"num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16}
        shape |= {"qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16}
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **shape)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).float()
    for name, value in model.named_parameters():  # some families leave routers at zero until they are loaded
        if name.endswith((".gate.weight", ".router.weight")):
            torch.nn.init.normal_(value)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("family", DENSE + EXPERTS)
def test_families_of_models_pack_and_replay(family: str) -> None:
    """Packed equals a forward pass a row, whatever the family does to attention and logits; its routers are found,
    and experts that are forced to be those that it takes anyway change nothing."""
    from verifiers.train.forward import SampledHead, on_device
    from verifiers.train.packing import pack, pad

    policy = policy_of(model_of(family), ModelConfig())
    assert bool(len(policy.routers)) == (family in EXPERTS)
    rows = [make_row(n, 3, n) for n in (9, 30, 14, 14, 7)]
    (micro,) = (pad if family == "gpt_oss" else pack)(rows, 256).batches
    assert micro.isolated == (family == "gpt_oss")
    tensors, head = on_device(micro, "cpu"), SampledHead(policy.model)
    with torch.no_grad():
        with policy.routers.watching(keep=True):
            packed = head.logprobs(tensors)[0]
            chosen = torch.stack(policy.routers._chosen, 1) if len(policy.routers) else None
        for segment, number in enumerate(micro.source):
            row = rows[number]
            alone = policy.model(torch.tensor([row.tokens])).logits[0].log_softmax(-1)
            expected = [float(alone[at - 1, t]) for at, t in enumerate(row.tokens) if row.mask[at]]
            assert torch.allclose(packed[tensors.sequence == segment], torch.tensor(expected), atol=2e-5)
        if chosen is not None:
            with policy.routers.watching(chosen):
                assert torch.allclose(packed, head.logprobs(tensors)[0], atol=1e-5)
            with policy.routers.watching((chosen + 1) % 4):
                assert not torch.allclose(packed, head.logprobs(tensors)[0], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in DENSE if family != "gemma2"])  # which has no sdpa
def test_families_of_models_share_prompts(family: str) -> None:
    """The logprobs are those of whole rows; families with windows keep rows whole."""
    from verifiers.train.forward import SampledHead, on_device, sharing_of
    from verifiers.train.packing import pack

    head = SampledHead(policy_of(model_of(family, "sdpa"), ModelConfig()).model, lean=True)
    sharing = sharing_of(head, "cpu")
    assert (sharing is None) == (family in SLIDING)
    if sharing is None:
        return
    found: list[dict[int, Any]] = []
    for costs in (None, sharing):
        (micro,) = pack(two_groups(), 256, sharing=costs).batches
        assert (micro.shared > 0) == (costs is not None)
        tensors = on_device(micro, "cpu")
        with torch.no_grad():
            logprobs = head.logprobs(tensors)[0]
        found.append({int(n): logprobs[tensors.sequence == at] for at, n in enumerate(micro.source)})
    for number, whole in found[0].items():
        assert torch.allclose(found[1][number], whole, atol=2e-5)


def test_without_torch_the_extra_is_named() -> None:
    """The install command, not an ImportError; in a process of its own, where torch cannot be imported."""
    code = "import sys; sys.modules['torch'] = None; import verifiers.train.models"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "pip install 'verifiers[train]>=1'" in done.stderr
