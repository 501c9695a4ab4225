"""TRL's GRPOTrainer learns from an environment.

    python examples/train_trl.py [MODEL_FOLDER]

Needs `pip install 'verifiers[trl]>=1'`. Without a folder it trains a random model of 90,000 parameters on this
machine's CPU, in seconds. What TRL can not express is in docs/guides/training-trl.md.
"""

import os
import sys
import tempfile

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func is experimental there

try:
    import torch
    from toy_model import toy_environment, toy_model, toy_tokenizer
    from trl import GRPOConfig, GRPOTrainer
except ImportError as error:
    sys.exit(f"{error}. This example needs: pip install 'verifiers[trl]>=1'")

import verifiers as vf
from verifiers.train.adapters.trl import make_rollout_func
from verifiers.train.models import load_model

torch.set_num_threads(1)
folder = sys.argv[1] if len(sys.argv) > 1 else None
try:
    model, tokenizer = load_model(folder, "cpu") if folder else (toy_model(), toy_tokenizer())
except vf.Error as error:
    sys.exit(f"{error}. {error.hint}")

with make_rollout_func(toy_environment()) as rollout:
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        train_dataset=rollout.dataset(repeat=8),
        reward_funcs=rollout.reward,
        rollout_func=rollout,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            max_steps=30,
            learning_rate=1e-5 if folder else 2e-3,
            lr_scheduler_type="constant",  # the default falls to 0 within the run
            per_device_train_batch_size=32,
            num_generations=8,
            max_completion_length=3,
            use_cpu=not torch.cuda.is_available(),
            bf16=False,
            gradient_checkpointing=False,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
    )
    trainer.train()
    curve = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    print("reward", *(f"{reward:.2f}" for reward in curve[::5]), f"… {max(curve[-5:]):.2f}")
    print(f"{rollout.counts['rollouts']} rollouts, {rollout.counts['failed']} of them failed")
