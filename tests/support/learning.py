"""Trains a toy model on a toy environment with the real stack, in this process and on one thread.

    curve = await learn(single_turn(), save_toy(tmp_path / "model"), steps=40, seed=0)
    curve.last, curve.first            # mean rewards of the last and the first five steps
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from tests.support.toy_tasks import LENGTH, MEMBERS, PLACES, TOOLS
from verifiers.clients.local import SamplerClient, TokenizerRenderer
from verifiers.envs.environment import Environment
from verifiers.rollouts.engine import Engine
from verifiers.rollouts.source import GroupSource
from verifiers.train.advantages import make_algorithm
from verifiers.train.build import checks_of, make_sft_learner
from verifiers.train.config import (
    AdvantageConfig,
    LoopConfig,
    LoraConfig,
    LossConfig,
    ModelConfig,
    SftLoopConfig,
    TrainerConfig,
)
from verifiers.train.engines.process import ProcessSampler
from verifiers.train.engines.torch_engine import TorchEngine
from verifiers.train.flow import EnvironmentSource
from verifiers.train.loop import AsyncLoop
from verifiers.train.models import Policy, load_policy
from verifiers.train.players import options_of
from verifiers.train.report import Observer, StepReport
from verifiers.train.sft import SftLoop
from verifiers.train.sft_rows import rows_of_conversation
from verifiers.train.trainer import TorchLearner

EDGE = 5
"""Steps that make the beginning and the end of a curve."""

IMITATED = 128
"""Conversations of one update of `imitate`."""


@dataclass
class Curve:
    """What a run reported, step by step."""

    reports: list[StepReport] = field(default_factory=list)
    learner: Any = None
    prompts: Counter[str] = field(default_factory=Counter)
    """How the client made prompts, and how often (`verifiers.clients.prompts`)."""

    def of(self, figure: str) -> list[float]:
        return [report.figures[figure] for report in self.reports if figure in report.figures]

    @property
    def breaks(self) -> float:
        """How often a turn began another row."""
        figures = [figure for report in self.reports for figure in report.figures.items()]
        return sum(count for name, count in figures if name.startswith("rows/breaks/"))

    @property
    def first(self) -> float:
        return fmean(self.of("reward/mean")[:EDGE])

    @property
    def last(self) -> float:
        return fmean(self.of("reward/mean")[-EDGE:])


async def learn(
    env: Environment,
    folder: Path,
    *,
    steps: int = 40,
    groups: int = 6,
    lr: float = 6e-3,
    warmup: int = 0,
    schedule: Literal["constant", "cosine"] = "constant",
    max_tokens: int = 4,
    max_lag: int = 0,
    lora: LoraConfig | None = None,
    apart: bool = False,
    repeatable: bool = True,
    seed: int = 0,
    observers: Sequence[Observer] = (),
) -> Curve:
    """Groups of 8 rollouts, advantages by the group's standard deviation, truncated replies kept, groups without a
    difference too; everything else as by default.

    warmup: updates in which the learning rate rises. schedule: how it goes on until the last of them. apart: sample in
    a process beside this one. repeatable: without lag, nothing in a run depends on time, at the price of speed.
    """
    model = ModelConfig(path=str(folder), lora=lora)
    policy = load_policy(model, seed=seed)
    trainer = TrainerConfig(lr=lr, warmup_steps=warmup, schedule=schedule, total_steps=steps, seed=seed)
    curve = Curve(learner=TorchLearner(policy, trainer, LossConfig()))
    engine: Any = _engine(folder, policy, seed, ordered=repeatable and max_lag == 0) if not apart else None
    engine = engine or await ProcessSampler(folder, max_context=256, seed=seed).start()
    client = SamplerClient(engine, TokenizerRenderer(policy.tokenizer, 256))
    curve.prompts = client.counts
    sampling = {"temperature": 1.0, "max_tokens": max_tokens}
    player = Engine(env, client, "policy", sampling, options_of(seed, max_retries=0))
    async with GroupSource(env.get_dataset(), lambda request: player) as source:
        loop = AsyncLoop(
            [EnvironmentSource("toy", source, source.task_ids)],
            engine,
            curve.learner,
            make_algorithm(AdvantageConfig(std=True, overlong="keep")),
            LoopConfig(
                steps=steps, groups_per_batch=groups, max_lag=max_lag, seed=seed, filter_zero_advantage=False
            ),
            sampling=sampling,
            checks=checks_of(policy),
            observers=[curve.reports.append, *observers],
        )
        await loop.run()
    assert not any(curve.of("rows/none/invalid")), "our own engines do not lie"
    await engine.close()
    return curve


def _engine(folder: Path, policy: Policy, seed: int, *, ordered: bool) -> TorchEngine:
    return TorchEngine(
        load_policy(ModelConfig(path=str(folder))).model,
        max_context=256,
        decode=policy.tokenizer.decode,
        seed=seed,
        deterministic=ordered,
        threaded=not ordered,
        record_routes=bool(len(policy.routers)),
        adapter=policy.model.peft_config["default"] if policy.adapter else None,
    )


def imitate(folder: Path, to: Path, *, right: float = 0.5, called: float = 1.0, seed: int = 0) -> Path:
    """Fine-tune the model in `folder` on single turns and on uses of the tool, in 30 updates.

    right: share of the replies that are of the wanted class; that of the others is drawn from all. called: share of
    the conversations about the tool that use it; the others answer at once.

    Which character of a class follows is chance, too: batches of 32 taught some seeds nothing of what the prompt asks.
    """
    rng = random.Random(seed)
    policy = load_policy(ModelConfig(path=str(folder)))
    rows = []
    for number in range(30 * IMITATED):
        asked = "Aa0?"[number % 4]
        rows += rows_of_conversation(_shown(asked, rng, right, called), policy.tokenizer)
    loop = SftLoop(rows, SftLoopConfig(rows_per_batch=IMITATED, seed=seed))
    learner = make_sft_learner(policy, TrainerConfig(lr=6e-3), loop.total_steps)
    loop.run(learner)
    learner.export(to)
    return to


def _shown(asked: str, rng: random.Random, right: float, called: float) -> dict[str, Any]:
    """A conversation of a single turn, or for "?" of a call and what is made of its result."""
    wanted = rng.choice("Aa") if asked == "?" else asked
    written = wanted if rng.random() < right else rng.choice("Aa0")
    reply = {"role": "assistant", "content": "".join(rng.choice(MEMBERS[written]) for _ in range(LENGTH))}
    question = {"role": "user", "content": asked}
    if asked != "?" or rng.random() >= called:
        return {"messages": [question, reply]}
    look = {"name": "look", "arguments": json.dumps({"at": rng.choice(PLACES)})}
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "0", "type": "function", "function": look}]}
    result = {"role": "tool", "tool_call_id": "0", "content": wanted}
    return {"messages": [question, call, result, reply], "tools": TOOLS}
