"""A mixture of experts: routes of the sampler replayed, and routers kept even."""

import types
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.support.tiny_model import tiny_model  # noqa: E402
from tests.train.trainer.rows_for_tests import eight_rows, make_row  # noqa: E402
from verifiers.clients.routes import pack_routes  # noqa: E402
from verifiers.errors import ConfigError, EvidenceError  # noqa: E402
from verifiers.train.config import LoraConfig, LossConfig, ModelConfig, TrainerConfig  # noqa: E402
from verifiers.train.engines.loading import Loader  # noqa: E402
from verifiers.train.models import policy_of  # noqa: E402
from verifiers.train.routers import Routers, _gates_like  # noqa: E402
from verifiers.train.rows import Row  # noqa: E402
from verifiers.train.trainer import TorchLearner  # noqa: E402
from verifiers.train.weights import WeightFolders  # noqa: E402

pytestmark = pytest.mark.train

LAYERS, EXPERTS, K = 2, 4, 2


def routed(model: Any, tokens: list[int], routes: Any) -> Any:
    """Log-softmax [T, V] of a forward pass whose routers are replaced: experts as told, gates from their logits."""
    routers = [layer.mlp.gate for layer in model.model.layers]
    for number, router in enumerate(routers):

        def forward(self: Any, hidden: Any, number: int = number) -> Any:
            logits = hidden.reshape(-1, hidden.shape[-1]) @ self.weight.T
            probabilities = logits.softmax(-1)
            chosen = routes[:, number]
            gates = torch.stack([probabilities[at, experts] for at, experts in enumerate(chosen)])
            return logits, gates / gates.sum(-1, keepdim=True) if self.norm_topk_prob else gates, chosen

        router.forward = types.MethodType(forward, router)
    try:
        with torch.no_grad():
            return model(torch.tensor([tokens])).logits[0].log_softmax(-1)
    finally:
        for router in routers:
            del router.forward


def natural(model: Any, tokens: list[int]) -> Any:
    """int64 [T, layers, k], the experts of highest logit."""
    with torch.no_grad():
        logits = model(torch.tensor([tokens]), output_router_logits=True).router_logits
    return torch.stack([of_layer.topk(K).indices for of_layer in logits], 1)


def flipped_row(model: Any, seed: int) -> Row:
    """A row that was sampled where half the tokens went to the two experts that the model would not have taken."""
    row = make_row(16, 6, seed)
    routes = natural(model, row.tokens)
    for at in range(0, 16, 2):
        for layer in range(LAYERS):
            routes[at, layer] = torch.tensor(sorted(set(range(EXPERTS)) - set(routes[at, layer].tolist())))
    logprobs = routed(model, row.tokens, routes)
    row.logprobs = [
        float(logprobs[at - 1, token]) if row.mask[at] else 0.0 for at, token in enumerate(row.tokens)
    ]
    row.routed_experts = [pack_routes(routes.numpy()[:-1])]
    return row


def mismatch(model: Any, rows: list[Row], **settings: Any) -> float:
    """The largest k3 between sampler and trainer, in one packed micro-batch."""
    policy = policy_of(model, ModelConfig(**settings))
    figures = TorchLearner(policy, TrainerConfig(lr=1e-9), LossConfig(kind="icepop")).step(rows)
    assert figures["trainer/microbatches"] == 1
    return figures["loss/mismatch_kl/max"]


@pytest.mark.parametrize("norm_topk_prob", [True, False])
@pytest.mark.parametrize("checkpointing", [True, False])
def test_replayed_routes_reproduce_the_sampler(norm_topk_prob: bool, checkpointing: bool) -> None:
    """With replay the ratio is 1 at every token; without it a flipped expert changes it. Rows without a report of
    their experts are routed freely beside the others."""

    def model() -> Any:
        torch.manual_seed(0)
        made = tiny_model("qwen3_moe", norm_topk_prob=norm_topk_prob)
        for layer in made.model.layers:  # random experts of a tiny model hardly differ
            torch.nn.init.normal_(layer.mlp.experts.down_proj, std=0.5)
        return made

    free = make_row(12, 4, 9)
    logprobs = model()(torch.tensor([free.tokens])).logits[0].log_softmax(-1).detach()
    free.logprobs = [float(logprobs[at - 1, t]) if free.mask[at] else 0.0 for at, t in enumerate(free.tokens)]
    rows = [flipped_row(model(), 1), flipped_row(model(), 2), free]
    settings = {"gradient_checkpointing": checkpointing}
    assert mismatch(model(), rows, **settings) < 1e-8
    assert mismatch(model(), rows, router_replay=False, **settings) > 1e-3


def test_routers_learn_from_replayed_routes() -> None:
    """Gates come from the trainer's own logits, so a forced route still has a gradient to its router."""
    model = tiny_model("qwen3_moe")
    row = flipped_row(model, 1)
    policy = policy_of(model, ModelConfig(router_aux_coefficient=0))
    before = policy.model.model.layers[0].mlp.gate.weight.detach().clone()
    TorchLearner(policy, TrainerConfig(lr=1.0, optimizer="sgd"), LossConfig(kind="icepop")).step([row])
    assert not torch.equal(before, policy.model.model.layers[0].mlp.gate.weight)


def test_reports_may_count_all_layers_or_those_with_experts() -> None:
    """Engines do either; a model whose first layer is dense takes both, and nothing else."""
    model = tiny_model("qwen3_moe", num_hidden_layers=3, mlp_only_layers=[0])
    routers = Routers(model)
    assert routers.layers == [1, 2]
    every = torch.arange(2 * 3 * 2).reshape(2, 3, 2)
    assert torch.equal(routers._of_routers(every), every[:, 1:])
    assert torch.equal(routers._of_routers(every[:, 1:]), every[:, 1:])
    with pytest.raises(EvidenceError, match="experts for 5 layers; the model has 3 layers, 2 of them"):
        routers._of_routers(torch.zeros(2, 5, 2))


def test_routes_need_a_model_with_routers() -> None:
    """A dense model with such rows was loaded by mistake; a switch says if it was not."""
    row = make_row(routed_experts=[pack_routes(torch.zeros(4, 2, 2).long().numpy())])
    learner = TorchLearner(policy_of(tiny_model(), ModelConfig()), None, LossConfig())
    with pytest.raises(ConfigError, match="no routers"):
        learner.step([row])
    assert learner.version == 0
    off = TorchLearner(policy_of(tiny_model(), ModelConfig(router_replay=False)), None, LossConfig())
    assert "trainer/grad_norm" in off.step([row])


@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_gates_are_recognised_by_what_they_give(scale: float) -> None:
    """Softmax or sigmoid, of all experts or as shares of the chosen, scaled or not; any other formula is refused."""
    router = types.SimpleNamespace(routed_scaling_factor=scale)
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    chosen = logits.topk(2).indices
    other = torch.tensor([[0, 1]] * 5)
    for affinities in (logits.softmax(-1), logits.sigmoid()):
        top, expected = affinities.gather(1, chosen), affinities[:, :2]
        found = _gates_like(router, logits, scale * top, chosen)
        assert torch.allclose(found(logits, other), scale * expected)
        shares = _gates_like(router, logits, scale * top / top.sum(-1, keepdim=True), chosen)
        assert torch.allclose(shares(logits, other), scale * expected / expected.sum(-1, keepdim=True))
        assert torch.allclose(found.probabilities(logits), affinities / affinities.sum(-1, keepdim=True))
    with pytest.raises(ConfigError, match="not known"):
        _gates_like(router, logits, logits.square().gather(1, chosen), chosen)


# --- balance ---------------------------------------------------------------------------------------------------------


def test_the_balancing_loss_is_the_formula() -> None:
    """Row by row E·Σ f·P, the mean over tokens and layers; computed here with loops over HF's router logits."""
    model = tiny_model("qwen3_moe")
    rows = eight_rows()
    total = tokens = 0.0
    for row in rows:
        with torch.no_grad():
            logits = model(torch.tensor([row.tokens]), output_router_logits=True).router_logits
        for of_layer in logits:
            probabilities, length = of_layer.softmax(-1), len(row.tokens)
            for expert in range(EXPERTS):
                share = sum(expert in top.tolist() for top in of_layer.topk(K).indices) / (K * length)
                total += length * EXPERTS * share * float(probabilities[:, expert].mean())
            tokens += length
    learner = TorchLearner(policy_of(model, ModelConfig()), None, LossConfig())
    assert learner.step(rows)["loss/aux"] == pytest.approx(total / tokens, rel=1e-5)


def test_balance_spreads_a_router_that_prefers_two() -> None:
    """Routers trained on the balancing loss alone come closer to 1, which is perfectly even."""
    model = tiny_model("qwen3_moe").requires_grad_(False)
    for layer in model.model.layers:
        layer.mlp.gate.weight.data[:2] = 0.3
        layer.mlp.gate.weight.requires_grad_(True)
    policy = policy_of(model, ModelConfig(router_aux_coefficient=1.0))
    learner = TorchLearner(policy, TrainerConfig(lr=3e-3), LossConfig(kind="reinforce", drift=0.0))
    rows = [make_row(30, 2, seed, advantages=[0.0] * 30) for seed in range(4)]
    aux = [learner.step(rows)["loss/aux"] for _ in range(20)]
    assert aux[0] > 1.05 and aux[-1] - 1 < 0.7 * (aux[0] - 1)


def test_balance_is_of_the_policy_where_the_reference_is_the_same_model() -> None:
    """An adapter's reference is the model without it: its pass must not take the place of the policy's router logits.

    Advantages are 0, so the gradient is that of the balancing loss, with a divergence that weighs nothing or without.
    """

    def norm(kl: float) -> float:
        config = ModelConfig(router_aux_coefficient=1.0, lora=LoraConfig(rank=4))
        policy = policy_of(tiny_model("qwen3_moe"), config)
        loss = LossConfig(kind="reinforce", drift=0.0, kl=kl)
        rows = [make_row(30, 2, seed, advantages=[0.0] * 30) for seed in range(2)]
        return TorchLearner(policy, TrainerConfig(), loss).step(rows)["trainer/grad_norm"]

    assert norm(1e-12) == pytest.approx(norm(0.0), rel=1e-4)


def test_an_adapter_of_experts_reaches_the_engine(tmp_path: Any) -> None:
    """Experts and routers get one, too; what the engine computes with its file is what the policy computes."""
    policy = policy_of(tiny_model("qwen3_moe"), ModelConfig(lora=LoraConfig(rank=4)))
    assert {"experts", "gate", "q_proj"} <= {part for name in policy.trained for part in name.split(".")}
    learner = TorchLearner(policy, TrainerConfig(lr=1e-2), LossConfig(kind="icepop"))
    for _ in range(2):
        learner.step(eight_rows())
    served, ids = tiny_model("qwen3_moe").eval(), torch.arange(12)[None]
    with torch.no_grad():
        before = served(ids).logits
        Loader(served).load(WeightFolders(tmp_path).publish(2, policy.model, learner.weights().tensors))
        after, expected = served(ids).logits, policy.model.eval()(ids).logits
    assert torch.equal(after, expected) and not torch.allclose(before, after, atol=1e-2)
