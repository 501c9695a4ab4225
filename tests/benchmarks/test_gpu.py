"""The script for a GPU, in its tiny shape."""

import json

import pytest

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")]
torch = pytest.importorskip("torch")

from benchmarks.gpu.train import main  # noqa: E402


def test_training_is_measured(capsys):
    """Updates of both kinds and the hand-over of weights; the engine in fp32 says what the trainer says."""
    main(["--tiny", "--steps", "1"])
    rl, sft, weights = map(json.loads, capsys.readouterr().out.splitlines())
    assert [rl["case"], sft["case"], weights["case"]] == ["rl", "sft", "weights"]
    assert rl["tokens_per_s"] > 0 and 0 < sft["mfu"] < 1
    assert 0 <= weights["mismatch_kl/float32"] < weights["mismatch_kl/bfloat16"] < 1e-2
