"""Settings of a `GRPOTrainer` with which rollouts of environments would be trained wrongly, and what to set instead."""

from __future__ import annotations

from typing import Any

from verifiers.errors import ConfigError


def check_trainer(trainer: Any, reward: Any, *, group_rewards: bool) -> None:
    """Raise ConfigError for a trainer with which a mask, a reward or a logprob would go wrong.

    reward: the function that hands the environment's rewards on. group_rewards: the environment compares rollouts.
    """
    _check_sampling(trainer)
    _check_rewards(trainer, reward)
    processes = trainer.accelerator.num_processes
    problems = {
        "tools or environment_factory": bool(trainer.tools or trainer.environment_factories),
        "mask_truncated_completions": bool(trainer.mask_truncated_completions),
        f"{processes} processes": group_rewards and processes > 1,
        "FSDP or DeepSpeed": bool(trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled),
    }
    reasons = {
        "tools or environment_factory": (
            "TRL would run tools of its own and ignore the mask of the environment's tokens",
            "Leave them out: the environment has its tools.",
        ),
        "mask_truncated_completions": (
            "TRL takes for truncated whatever does not end in an end token, which a tool call or a stop text need not",
            "Leave it False and pass mask_truncated=True to make_rollout_func, which knows what was truncated.",
        ),
        f"{processes} processes": (
            "the environment scores the rollouts of a task together, and TRL deals them out to the processes",
            "Use one process, or reward functions of single rollouts.",
        ),
        "FSDP or DeepSpeed": (
            "no process holds the weights that rollouts are to be sampled with",
            "Use vf-train under torchrun, or TRL with one process a GPU (DDP).",
        ),
    }
    for name, wrong in problems.items():
        if wrong:
            why, hint = reasons[name]
            raise ConfigError(f"GRPOTrainer with {name}: {why}", hint=hint)


def _check_sampling(trainer: Any) -> None:
    neutral = {"top_p": (None, 1.0), "top_k": (None, 0, -1), "min_p": (None, 0.0), "repetition_penalty": (None, 1.0)}
    for name, values in neutral.items():
        if (given := getattr(trainer, name)) not in values:
            raise ConfigError(
                f"GRPOConfig({name}={given}) samples from another distribution than the policy's logprobs are of "
                "(huggingface/trl#6789)",
                hint=f"Leave {name} out; set the temperature instead.",
            )


def _check_rewards(trainer: Any, reward: Any) -> None:
    if list(trainer.reward_funcs) != [reward]:
        raise ConfigError(
            "GRPOTrainer needs reward_funcs=rollout.reward, and nothing else: it hands on what the environment scored, "
            "and None for what failed, for which another function would make up a reward",
            hint="Put further reward functions into the environment's rubric.",
        )


def check_gap(trainer: Any, gap: float, most: float) -> None:
    """Raise ConfigError if sampler and trainer disagree on logprobs, and TRL would not correct for it."""
    if gap <= most or (trainer.use_vllm and trainer.vllm_importance_sampling_correction):
        return
    raise ConfigError(
        f"the sampler's logprobs are {gap:.3g} nats a token away from the trainer's, and TRL ignores them without "
        "use_vllm=True: nothing would correct for the difference",
        hint="Sample with the trainer's own weights, precision and template (as sampler=None does), or raise max_gap.",
    )
