"""The worker keeps TRL's protocol, and its queue holds what was sampled, rewarded and compared."""

import dataclasses
import inspect
import os
import queue
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.train,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"),
]
torch = pytest.importorskip("torch")
accelerate = pytest.importorskip("accelerate")
pytest.importorskip("trl")

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
from trl.experimental.async_grpo import async_grpo_trainer, async_rollout_worker  # noqa: E402

import verifiers as vf  # noqa: E402
from tests.train.adapters.toys import Forgetful, Liar, multi_turn, single_turn, toy_model, toy_tokenizer  # noqa: E402
from verifiers.clients.local import SamplerClient, TokenizerRenderer  # noqa: E402
from verifiers.errors import TrainingError  # noqa: E402
from verifiers.train.adapters.trl_async import RolloutWorker, Sample  # noqa: E402
from verifiers.train.config import AdvantageConfig  # noqa: E402
from verifiers.train.engines.torch_engine import TorchEngine  # noqa: E402
from verifiers.train.evidence import checks_with  # noqa: E402


def worker_of(env: vf.Environment, engine: Any = None, **options: Any) -> RolloutWorker:
    """A worker whose server is an engine of this process."""
    client = SamplerClient(engine or TorchEngine(toy_model()), TokenizerRenderer(toy_tokenizer()))
    settings = {"num_generations": 4, "sampling": {"max_tokens": 3}, "max_rollouts": 8, "buffer": 16, **options}
    settings["advantage"] = AdvantageConfig(overlong="keep")  # three tokens are seldom a whole reply
    return RolloutWorker(env, client, "policy", **settings)


@pytest.fixture
def worker() -> Iterator[RolloutWorker]:
    """Of the toy of one turn; stopped at the end."""
    own = worker_of(single_turn())
    yield own
    own.stop()


def test_it_has_what_the_protocol_asks_for(worker: RolloutWorker) -> None:
    """Every member of TRL's own protocol class, with its parameters; samples have the fields of TRL's."""
    protocol = async_grpo_trainer.RolloutWorkerProtocol
    for name in protocol.__annotations__:
        assert isinstance(getattr(worker, name), queue.Queue)
    methods = [name for name, _ in inspect.getmembers(protocol, inspect.isfunction) if not name.startswith("_")]
    assert sorted(methods) == ["check_health", "start", "stop", "update_model_version"]
    for name in methods:
        theirs = list(inspect.signature(getattr(protocol, name)).parameters)
        assert list(inspect.signature(getattr(RolloutWorker, name)).parameters) == theirs
    fields = [item.name for item in dataclasses.fields(async_rollout_worker.RolloutSample)]
    assert [item.name for item in dataclasses.fields(Sample)] == fields


def test_trls_own_data_set_reads_its_queue(worker: RolloutWorker) -> None:
    """The trainer's reader of the queue takes the samples: ids, mask, logprobs, advantages that sum to 0 in a group."""
    metrics: dict[str, list[float]] = defaultdict(list)
    accelerate.PartialState()  # TRL's logger asks for it
    worker.start()
    reader = iter(
        async_grpo_trainer.RolloutQueueDataset(
            worker.rollout_buffer, lambda: 0, worker.check_health, 60.0, metrics, max_staleness=4, poll_interval_s=0.1
        )
    )
    samples = [next(reader) for _ in range(8)]
    groups: dict[int, list[dict[str, Any]]] = {}
    for sample in samples:
        groups.setdefault(sample["group_id"], []).append(sample)
        length = len(sample["input_ids"])
        assert len(sample["completion_mask"]) == len(sample["old_log_probs"]) == length
        sampled = sample["completion_mask"] == 1
        assert sampled.any() and (sample["old_log_probs"][sampled] < 0).all()
        assert (sample["old_log_probs"][~sampled] == 0).all() and sample["old_log_probs"].dtype == np.float32
        assert 0.0 <= sample["metrics"]["reward"] <= 1.0
    whole = [group for group in groups.values() if len(group) == 4]
    assert whole and all(abs(sum(sample["advantage"] for sample in group)) < 1e-5 for group in whole)
    assert "environment/groups_trained" in worker.metrics_queue.get(timeout=60)


def test_each_row_of_a_forked_rollout_is_a_sample() -> None:
    """Nothing is left out, unlike with rollout_func."""
    own = worker_of(multi_turn(Forgetful))
    own.start()
    try:
        samples = [own.rollout_buffer.get(timeout=60) for _ in range(8)]
    finally:
        own.stop()
    by_group = {sample.group_id for sample in samples}
    assert len([one for one in samples if one.group_id == samples[0].group_id]) == 8 and len(by_group) == 1
    assert samples[0].prompt[0]["role"] == "user"


def test_what_lies_is_no_sample() -> None:
    """Evidence is held against what the caller says of the model; the rest of a group makes samples."""
    worker = worker_of(single_turn(), Liar(), checks=checks_with(toy_tokenizer()))
    worker.start()
    try:
        samples = [worker.rollout_buffer.get(timeout=60) for _ in range(16)]
    finally:
        worker.stop()
    assert max(max(sample.input_ids) for sample in samples) < 259
    assert min(Counter(sample.group_id for sample in samples[:-4]).values()) < 4


def test_samples_are_of_the_version_at_which_their_group_began(worker: RolloutWorker) -> None:
    """After new weights further groups carry the new version."""
    worker.start()
    assert worker.rollout_buffer.get(timeout=60).model_version == 0
    worker.update_model_version(3)
    while worker.rollout_buffer.get(timeout=60).model_version != 3:
        pass


def test_a_full_queue_holds_the_worker_up(worker: RolloutWorker) -> None:
    """It starts no group while enough samples wait, and is healthy all the same."""
    worker.start()
    for _ in range(2000):
        if worker.rollout_buffer.qsize() >= 16:
            break
        time.sleep(0.02)
        worker.check_health(60.0)
    time.sleep(0.3)
    worker.check_health(0.25)
    assert worker.rollout_buffer.qsize() <= 16 + 2 * 8


class Refused(vf.SingleTurnEnv):
    """No rollout can be played: the key is refused."""

    async def setup_state(self, state: vf.State, **_: Any) -> vf.State:
        """Refuse."""
        raise vf.AuthenticationError("the key is refused")


def test_what_makes_every_group_fail_ends_the_worker_with_its_reason() -> None:
    """The trainer asks for health while it waits; what is only slow is told, too."""
    env = Refused(dataset=[{"question": "?", "answer": ""}], rubric=vf.Rubric())
    own = worker_of(env)
    own.start()
    try:
        assert own._work is not None
        own._work.exception(timeout=60)
        with pytest.raises(TrainingError, match="has ended: the key is refused"):
            own.check_health(60.0)
    finally:
        own.stop()


def test_a_worker_that_hears_nothing_says_so(worker: RolloutWorker) -> None:
    """The trainer's limit is passed."""
    worker.start()
    with pytest.raises(TrainingError, match="no group has ended"):
        worker.check_health(-1.0)
