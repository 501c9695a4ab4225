"""Settings of a loss that make no sense are refused, with what to do instead."""

from pathlib import Path
from typing import Any

import pytest

from verifiers.errors import ConfigError
from verifiers.train.config import LossConfig
from verifiers.train.config_files import load_config, to_file
from verifiers.train.config_unread import READ_BY
from verifiers.train.losses.checks import check_loss


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kind": "icepop", "tis_cap": 2.0}, "loss.tis_cap would correct twice with loss.kind = 'icepop'"),
        ({"tis_cap": 2.0}, "loss.tis_cap would correct twice with loss.kind = 'dppo'"),
        ({"kind": "gspo", "dual_clip": 4.0}, "loss.dual_clip has no effect with loss.kind = 'gspo'"),
        ({"clip_high": 0.5}, "loss.clip_high has no effect with loss.kind = 'dppo'"),
        ({"kind": "ppo", "icepop_low": 0.3}, "loss.icepop_low has no effect with loss.kind = 'ppo'"),
        ({"product_cap": 4.0}, "loss.product_cap has no effect with loss.sequence_mask = 'none'"),
        ({"max_tokens": 100}, "loss.max_tokens has no effect with loss.normalise = 'token'"),
        ({"kind": "icepop", "icepop_low": 2.0}, "loss.icepop_low = 2 and loss.icepop_high = 5 would drop"),
        ({"kind": "icepop", "icepop_high": 0.9}, "whose ratio is 1"),
        ({"sequence_mask": "geometric", "geometric_low": 1.005}, "loss.geometric_low = 1.005"),
        ({"sequence_mask": "product", "product_cap": 0.5}, "loss.product_cap = 0.5 would drop rows"),
        ({"kind": "ppo", "clip_low": 1.0}, "loss.clip_low = 1 never clips"),
        ({"kind": "gspo", "gspo_low": 1.5}, "loss.gspo_low = 1.5 never clips"),
        ({"kind": "ppo", "dual_clip": 1.2}, "loss.dual_clip = 1.2 is within the clip range, which ends at 1.28"),
    ],
)
def test_it_says_what_and_what_to_do(settings: dict[str, Any], said: str) -> None:
    """The setting, why it cannot be meant, and a hint of its own."""
    with pytest.raises(ConfigError) as caught:
        check_loss(LossConfig(**settings))
    assert said in str(caught.value) and caught.value.hint.startswith(("Leave", "Set"))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kind": "ppo", "dual_clip": 4.0, "tis_cap": 2.0, "sequence_mask": "geometric", "off_policy_delta": 0.5},
        {"kind": "gspo", "normalise": "sequence", "kl": 0.1, "entropy": 0.01},
        {"kind": "icepop", "icepop_low": 0.125, "icepop_high": 8.0, "normalise": "dr_grpo", "max_tokens": 100},
        {"kind": "reinforce", "tis_cap": 2.0, "sequence_mask": "product", "product_cap": 4.0, "drift": 0.0},
        {"kind": "cispo", "cispo_high": 4.0},
    ],
)
def test_what_makes_sense_passes(settings: dict[str, Any]) -> None:
    """Masks, weights and regularisers combine; a configuration written out with its defaults is the same one."""
    config = LossConfig(**settings)
    check_loss(config)
    check_loss(LossConfig(**config.model_dump()))


def test_every_setting_is_read_or_named() -> None:
    """A new one has to say which settings it belongs to, or that it goes with all."""
    everywhere = {"kind", "sequence_mask", "normalise", "off_policy_delta", "drift", "kl", "entropy"}
    assert set(LossConfig.model_fields) == everywhere | set(READ_BY["loss"])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("loss.tis_cap=2.0", "loss.tis_cap would correct twice"),
        ("advantage.overlong_soft_tokens=513", "advantage.overlong_soft_tokens = 513 has no place below it"),
    ],
)
def test_a_configuration_is_refused_when_it_is_read(override: str, said: str) -> None:
    """Also by a dry run, and before a model is loaded."""
    with pytest.raises(ConfigError, match=said):
        load_config([], ["model.path=x", "env=y", override])


def test_a_configuration_written_out_can_be_read(tmp_path: Path) -> None:
    """Every setting stands in it, those that its loss does not read with their defaults."""
    config = load_config([], ["model.path=x", "env=y", "loss.kind=gspo", "loss.normalise=sequence"])
    (tmp_path / "run.toml").write_text(to_file(config))
    assert load_config([tmp_path / "run.toml"]) == config
