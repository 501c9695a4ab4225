"""TRL's own trainer learns from environments, and is refused where it would learn something else."""

import math
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = [
    pytest.mark.train,
    # TRL and transformers warn of each other's names, and of functions that are experimental.
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"),
]
torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl")

import verifiers as vf  # noqa: E402
from tests.train.adapters.toys import (  # noqa: E402
    Forgetful,
    Liar,
    multi_turn,
    share,
    single_turn,
    toy_model,
    toy_tokenizer,
)
from verifiers.errors import ConfigError, DatasetError, InexactEvidenceError  # noqa: E402
from verifiers.train.adapters.trl import RolloutFunc, make_rollout_func  # noqa: E402
from verifiers.train.adapters.trl_checks import check_gap, check_trainer  # noqa: E402
from verifiers.train.engines.torch_engine import TorchEngine  # noqa: E402


def trainer_of(rollout: RolloutFunc, folder: Path, seed: int = 0, **changes: Any) -> Any:
    """A GRPOTrainer on a CPU."""
    more = {name: changes.pop(name) for name in ("peft_config", "eval_dataset") if name in changes}
    settings = {
        "output_dir": str(folder),
        "use_cpu": True,
        "report_to": "none",
        "per_device_train_batch_size": 32,
        "num_generations": 8,
        "max_completion_length": 3,
        "max_steps": 25,
        "learning_rate": 2e-3,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": 8,  # AdamW's first steps are as large as any, and one task of four was never learned after them
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "seed": seed,
    }
    return trl.GRPOTrainer(
        model=toy_model(seed),
        processing_class=toy_tokenizer(),
        args=trl.GRPOConfig(**{**settings, **changes}),
        train_dataset=rollout.dataset(4),
        reward_funcs=rollout.reward,
        rollout_func=rollout,
        **more,
    )


UPDATES = 35


def rewards(trainer: Any) -> list[float]:
    """The mean reward of each step."""
    return [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]


def test_it_learns_within_sixty_updates(tmp_path: Path) -> None:
    """From random weights to nine tenths of the reward, sampled with the weights trained; no thread is left."""
    before = set(threading.enumerate())
    with make_rollout_func(single_turn()) as rollout:
        trainer = trainer_of(rollout, tmp_path, max_steps=UPDATES)
        trainer.train()
        curve = rewards(trainer)
        assert sum(curve[:3]) / 3 < 0.5 and sum(curve[-5:]) / 5 >= 0.9
        gaps = [entry["environment/logprob_gap"] for entry in trainer.state.log_history if "reward" in entry]
        assert len(gaps) == UPDATES and max(gaps) < 1e-3, "the sampler has the trainer's weights in every step"
        assert rollout.counts["rollouts"] == UPDATES * 32 and rollout.counts["failed"] == 0
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("verifiers-")]


@pytest.mark.slow
def test_it_learns_over_two_turns(tmp_path: Path) -> None:
    """The second question is part of the row and is not learned; within sixty updates both are answered."""
    with make_rollout_func(multi_turn()) as rollout:
        trainer = trainer_of(rollout, tmp_path, max_steps=60)
        trainer.train()
        assert max(rewards(trainer)) >= 0.9


def test_turns_are_masked_as_they_were_sampled(tmp_path: Path) -> None:
    """What the environment said between two replies is in the completion, with mask 0."""
    seen: list[dict[str, Any]] = []

    with make_rollout_func(multi_turn()) as rollout:
        call = RolloutFunc.__call__
        trainer = trainer_of(rollout, tmp_path, max_steps=2)
        trainer.rollout_func = lambda prompts, own: seen.append(call(rollout, prompts, own)) or seen[-1]
        trainer.train()
    tokenizer = toy_tokenizer()
    assert len(seen) == 2 and len(seen[0]["prompt_ids"]) == 32
    columns = [seen[0][name] for name in ("prompt_ids", "completion_ids", "env_mask")]
    for prompt, completion, mask in zip(*columns, strict=True):
        assert tokenizer.decode(prompt).endswith("<|im_start|>a")
        assert mask[-1] == 1 and len(mask) == len(completion)
        said = tokenizer.decode([one for one, on in zip(completion, mask, strict=True) if not on])
        assert said == "" or "<|im_start|>u" in said
    assert any(0 in mask for mask in seen[0]["env_mask"])


def test_forked_rollouts_are_counted(tmp_path: Path) -> None:
    """An environment that forgets gives two rows a rollout: one is trained and one counted, or training is refused."""
    with make_rollout_func(multi_turn(Forgetful)) as rollout:
        trainer_of(rollout, tmp_path, max_steps=1).train()
        assert rollout.counts["forked"] == rollout.counts["rows_left_out"] == 32
    with make_rollout_func(multi_turn(Forgetful), forks="refuse") as rollout:
        trainer = trainer_of(rollout, tmp_path, max_steps=1)
        with pytest.raises(ConfigError, match="gave 2 rows"):
            trainer.train()


class Flaky(vf.SingleTurnEnv):
    """Every third rollout fails."""

    played = 0

    async def setup_state(self, state: vf.State, **_: Any) -> vf.State:
        """Fail, or not."""
        Flaky.played += 1
        if Flaky.played % 3 == 0:
            raise vf.EndpointUnavailableError("connection refused")
        return state


def flaky() -> Flaky:
    """Scored as the toy is, and higher."""

    def of_kind(completion: Any, answer: str) -> float:
        return 1.0 + share(completion[-1]["content"] or "", answer)

    return Flaky(dataset=[{"question": kind, "answer": kind} for kind in "Aa"], rubric=vf.Rubric([of_kind]))


def test_failed_rollouts_are_in_no_baseline(tmp_path: Path) -> None:
    """Every reward is at least 1, so a mean below it would have a failure in it; failed ones have advantage 0."""
    with make_rollout_func(flaky()) as rollout:
        trainer = trainer_of(rollout, tmp_path, max_steps=2)
        trainer.train()
        logs = trainer._logs
        given, advantages = logs["rewards"]["reward"], list(logs["advantages"])
        lost = [number for number, reward in enumerate(given) if math.isnan(reward)]
        assert lost and all(advantages[number] == 0.0 for number in lost)
        assert min(rewards(trainer)) >= 1.0 and rollout.counts["failed"] >= len(lost)
        first = [number for number in range(8) if number not in lost]
        assert sum(advantages[number] for number in first) == pytest.approx(0.0, abs=1e-3)
    assert all(torch.isfinite(value).all() for value in trainer.model.parameters())


def test_nothing_but_failures_ends_the_run_with_their_error(tmp_path: Path) -> None:
    """After so many generations in a row; before, no weight moved."""

    def broken(completion: Any) -> float:
        raise RuntimeError("no grader")

    env = vf.SingleTurnEnv(dataset=[{"question": kind, "answer": ""} for kind in "Aa"], rubric=vf.Rubric([broken]))
    with make_rollout_func(env, max_failed=2) as rollout:
        trainer = trainer_of(rollout, tmp_path, weight_decay=0.0)
        before = [value.clone() for value in trainer.model.parameters()]
        with pytest.raises(ConfigError, match=r"2 generations in a row .* no grader"):
            trainer.train()
        assert all(map(torch.equal, before, trainer.model.parameters()))


class Silent(vf.MultiTurnEnv):
    """Over before the model is asked."""

    @vf.stop
    async def at_once(self, state: vf.State) -> bool:
        """It is."""
        return True

    async def env_response(self, messages: Any, state: vf.State, **_: Any) -> Any:
        """Nothing."""
        return []


def test_rollouts_that_asked_nothing_are_explained(tmp_path: Path) -> None:
    """They were scored, and no error says why there is nothing to train on."""
    env = Silent(dataset=[{"question": "A", "answer": ""}] * 4, rubric=vf.Rubric([lambda: 1.0]))
    with make_rollout_func(env) as rollout, pytest.raises(InexactEvidenceError, match="their rollouts sampled nothing"):
        trainer_of(rollout, tmp_path).train()


class Stale:
    """An engine whose weights are never replaced."""

    def __init__(self) -> None:
        self.engine = TorchEngine(toy_model(5))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def update_weights(self, source: Any, version: int) -> None:
        """Nothing."""


def test_a_sampler_with_other_weights_is_found_out(tmp_path: Path) -> None:
    """TRL ignores logprobs without vLLM: where they differ from its own, training would be silently wrong."""
    with make_rollout_func(single_turn(), Stale()) as rollout:
        trainer = trainer_of(rollout, tmp_path)
        with pytest.raises(ConfigError, match="nothing would correct for the difference"):
            trainer.train()


def test_what_lies_is_not_trained(tmp_path: Path) -> None:
    """Its evidence is held against the trainer's model; the other rollouts of its group are trained."""
    with make_rollout_func(single_turn(), Liar()) as rollout:
        trainer_of(rollout, tmp_path, max_steps=2).train()
        assert (rollout.counts["rollouts"], rollout.counts["no_evidence"]) == (64, 16)


def test_an_adapter_is_sampled_with(tmp_path: Path) -> None:
    """Of a LoRA model the engine gets the adapter, and its logprobs stay the trainer's."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    with make_rollout_func(single_turn()) as rollout:
        trainer = trainer_of(rollout, tmp_path, max_steps=3, peft_config=config, learning_rate=5e-2)
        trainer.train()
        gaps = [entry["environment/logprob_gap"] for entry in trainer.state.log_history if "reward" in entry]
        assert len(gaps) == 3 and max(gaps) < 1e-3


def test_evaluation_plays_the_tasks_of_the_evaluation(tmp_path: Path) -> None:
    """TRL's evaluate goes the same way, with its own number of rollouts a task."""
    with make_rollout_func(single_turn()) as rollout:
        trainer = trainer_of(rollout, tmp_path, eval_dataset=rollout.eval_dataset(), num_generations_eval=2)
        told = trainer.evaluate()
        assert 0.0 <= told["eval_reward"] <= 1.0


def test_equal_prompts_of_two_tasks_are_told_apart() -> None:
    """By a field of the first message; plain text has no room for one, so equal texts are refused."""
    rows = [{"question": "?", "answer": "a"}, {"question": "?", "answer": "b"}]
    with make_rollout_func(vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric())) as rollout:
        ids = {prompt[0]["task_id"] for prompt in rollout.dataset()["prompt"]}
        assert len(ids) == 2
        with pytest.raises(ConfigError, match="belongs to no task"):
            rollout._task_of([{"role": "user", "content": "?"}])
    texts = [{"prompt": "?", "answer": "a"}, {"prompt": "?", "answer": "b"}]
    env = vf.SingleTurnEnv(dataset=texts, rubric=vf.Rubric(), message_type="completion")
    with pytest.raises(DatasetError, match="two tasks have the prompt"):
        make_rollout_func(env)
    with make_rollout_func(single_turn()) as rollout, pytest.raises(ConfigError, match="no rewards"):
        rollout.reward(completions=[])


def settings(**changes: Any) -> SimpleNamespace:
    """A trainer that is fine but for what is changed."""
    accelerator = SimpleNamespace(num_processes=changes.pop("processes", 1))
    fine = {
        "top_p": 1.0,
        "top_k": 0,
        "min_p": None,
        "repetition_penalty": 1.0,
        "tools": [],
        "environment_factories": None,
        "mask_truncated_completions": False,
        "is_fsdp_enabled": False,
        "is_deepspeed_enabled": False,
        "reward_funcs": [print],
        "use_vllm": False,
        "vllm_importance_sampling_correction": True,
    }
    return SimpleNamespace(accelerator=accelerator, **{**fine, **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"top_p": 0.9}, "another distribution"),
        ({"top_k": 50}, "another distribution"),
        ({"min_p": 0.1}, "another distribution"),
        ({"repetition_penalty": 1.1}, "another distribution"),
        ({"tools": [print]}, "ignore the mask"),
        ({"mask_truncated_completions": True}, "knows what was truncated"),
        ({"is_deepspeed_enabled": True}, "no process holds the weights"),
        ({"processes": 2}, "deals them out"),
        ({"reward_funcs": [print, repr]}, "make up a reward"),
        ({"reward_funcs": [repr]}, "make up a reward"),
    ],
    ids=["top_p", "top_k", "min_p", "penalty", "tools", "truncated", "sharded", "processes", "more", "other"],
)
def test_settings_that_would_train_wrongly_are_refused(changes: dict[str, Any], said: str) -> None:
    """Each trap has its error, with what to set instead."""
    check_trainer(settings(), print, group_rewards=True)
    with pytest.raises(ConfigError) as caught:
        check_trainer(settings(**changes), print, group_rewards=True)
    assert said in f"{caught.value} {caught.value.hint}"


def test_a_gap_is_fine_where_trl_corrects_for_it() -> None:
    """With vLLM's importance correction the sampler's logprobs are used."""
    check_gap(settings(use_vllm=True), 1.0, 0.05)
    check_gap(settings(), 0.01, 0.05)
    with pytest.raises(ConfigError):
        check_gap(settings(use_vllm=True, vllm_importance_sampling_correction=False), 1.0, 0.05)


def test_another_temperature_than_the_trainers_is_refused(tmp_path: Path) -> None:
    """TRL divides logits by its own (huggingface/trl#4159)."""
    with make_rollout_func(single_turn(), sampling={"temperature": 0.7}) as rollout:
        trainer = trainer_of(rollout, tmp_path)
        with pytest.raises(ConfigError, match="wrong one"):
            trainer.train()
