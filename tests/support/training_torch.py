"""What the tests of the loop share where everything is real: a tiny model, its engine, its learner, an environment."""

from __future__ import annotations

from typing import Any

from tests.support.tiny_model import tiny_model, tiny_tokenizer
from tests.support.toy_tasks import LENGTH, TEMPLATE
from verifiers.clients.local import SamplerClient, TokenizerRenderer
from verifiers.rollouts.engine import Engine
from verifiers.rollouts.source import GroupSource
from verifiers.train.advantages import make_algorithm
from verifiers.train.config import AdvantageConfig, LoopConfig, LossConfig, ModelConfig, TrainerConfig
from verifiers.train.engines.torch_engine import TorchEngine
from verifiers.train.flow import EnvironmentSource
from verifiers.train.loop import AsyncLoop
from verifiers.train.models import policy_of
from verifiers.train.players import options_of
from verifiers.train.trainer import TorchLearner

SAMPLING = {"temperature": 1.0, "max_tokens": LENGTH}


def toy_model(**changes: Any) -> Any:
    """Two layers whose random weights hear the prompt."""
    return tiny_model(initializer_range=0.1, **changes)


def toy_engine(**options: Any) -> TorchEngine:
    """Whose replies depend on prompt, seed and weights alone, decoded between the callbacks of the event loop."""
    return TorchEngine(toy_model(), **{"deterministic": True, "threaded": False, "max_context": 256, **options})


def toy_learner(dtype: str = "float32", lr: float = 6e-3, **options: Any) -> TorchLearner:
    model = toy_model()
    policy = policy_of(model.double() if dtype == "float64" else model, ModelConfig(dtype=dtype, device="cpu"))
    return TorchLearner(policy, TrainerConfig(lr=lr, **options), LossConfig())


def toy_source(
    env: Any, engine: Any, *, max_retries: int = 0, sampling: Any = None, **limits: Any
) -> GroupSource:
    """A source of the environment's tasks, played here on that engine."""
    client = SamplerClient(engine, TokenizerRenderer(tiny_tokenizer(TEMPLATE), 256))
    player = Engine(env, client, "policy", sampling or dict(SAMPLING), options_of(0, max_retries))
    return GroupSource(env.get_dataset(), lambda request: player, **limits)


def toy_loop(sources: dict[str, GroupSource], engine: Any, learner: Any, config: LoopConfig, **more: Any) -> AsyncLoop:
    return AsyncLoop(
        [EnvironmentSource(name, source, source.task_ids) for name, source in sources.items()],
        engine,
        learner,
        make_algorithm(AdvantageConfig(overlong="keep")),
        config,
        sampling=dict(SAMPLING),
        **more,
    )
