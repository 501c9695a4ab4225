"""Settings that nothing would read: every entry of the table, in every section."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from verifiers.errors import ConfigError
from verifiers.train.config import (
    AdvantageConfig,
    EnvironmentConfig,
    LogConfig,
    LossConfig,
    SamplerConfig,
    SftConfig,
    TrainerConfig,
)
from verifiers.train.config_files import load_config, read_config, to_file
from verifiers.train.config_unread import READ_BY, Read, check_section

SECTIONS: dict[str, type[BaseModel]] = {
    "sampler": SamplerConfig,
    "env": EnvironmentConfig,
    "eval.environments": EnvironmentConfig,
    "trainer": TrainerConfig,
    "advantage": AdvantageConfig,
    "loss": LossConfig,
    "log": LogConfig,
}
OTHERS = {"betas": (0.5, 0.5), "urls": ["u"], "api_key_var": "KEY", "ray_options": {"num_cpus": 1}, "dual_clip": 4.0}
OTHERS |= {"total_steps": 5, "tis_cap": 2.0, "max_tokens": 5, "ray": "auto", "prometheus_port": 0}


def other_than(section: type[BaseModel], name: str, taken: tuple[Any, ...] = ()) -> Any:
    """A value of a setting that is neither its default nor one of those."""
    field = section.model_fields[name]
    if name in OTHERS:
        return OTHERS[name]
    if choices := [one for one in get_args(field.annotation) if isinstance(one, str)]:
        return next(one for one in choices if one not in (*taken, *(() if taken else (field.default,))))
    if isinstance(field.default, bool | str):
        return not field.default if isinstance(field.default, bool) else f"{field.default}1"
    return field.default * 2


def refused(section: BaseModel, place: str) -> ConfigError | None:
    try:
        check_section(section, place)
    except ConfigError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("place", "name"), [(place, name) for place, entries in READ_BY.items() for name in entries]
)
def test_a_setting_is_refused_exactly_where_nothing_reads_it(place: str, name: str) -> None:
    """By its name and that of what it depends on, with what to do; its default, and where it is read, pass."""
    kind, read = SECTIONS[place], READ_BY[place][name]
    # Without validators: a value alone may be half of a pair that they look at.
    plain = {field: info.get_default(call_default_factory=True) for field, info in kind.model_fields.items()}
    default = kind.model_construct(**plain)
    assert refused(default, place) is None
    unread: dict[str, Any] = {name: other_than(kind, name)}
    if read.values:
        unread[read.switch] = other_than(kind, read.switch, read.values)
    error = refused(default.model_copy(update=unread), place)
    assert error is not None and f"{place}.{name} " in str(error) and error.hint.startswith("Leave it out")
    assert f"{place}.{read.switch}" in f"{error} {error.hint}"
    for given in read.values or ([other_than(kind, read.switch)] if read.switch else []):
        assert refused(default.model_copy(update={**unread, read.switch: given}), place) is None
    if read == Read():
        assert "Leave it out." in error.hint


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["sampler.deterministic=true"], "sampler.deterministic has no effect with sampler.kind = 'vllm'"),
        (["sampler.max_batch=8", "sampler.device=cpu"], "sampler.device has no effect"),
        (["env.0.ray_options.num_cpus=1"], "env.0.ray_options has no effect without env.0.ray"),
        (["env.0.pool_weight=0.5"], "env.0.pool_weight has no effect without env.0.pools"),
        (["eval.environments=b", "eval.environments.0.ratio=2"], "eval.environments.0.ratio has no effect"),
        (["trainer.optimizer=sgd", "trainer.eps=1e-7"], "trainer.eps has no effect with trainer.optimizer = 'sgd'"),
        (["trainer.total_steps=9"], "trainer.total_steps has no effect with trainer.schedule = 'constant'"),
        (["trainer.total_steps=9", "loss.max_tokens=5"], "loss.max_tokens has no effect"),
    ],
)
def test_a_configuration_tells_all_that_it_sets_in_vain(tmp_path: Path, settings: list[str], told: str) -> None:
    """When it is read, before anything is loaded. A file with every setting can be read again."""
    needed = ["model.path=m", "env=a", "sampler.kind=vllm", "sampler.urls=u"]
    with pytest.raises(ConfigError) as caught:
        load_config([], [*needed, *settings])
    assert told in str(caught.value) and all(
        one.split("=")[0].removesuffix(".num_cpus") in f"{caught.value} {caught.value.hint}" for one in settings
    )
    (tmp_path / "all.toml").write_text(to_file(load_config([], needed)))
    assert load_config([tmp_path / "all.toml"]) == load_config([], needed)


def test_imitation_measures_what_is_held_out() -> None:
    """How often, if anything is."""
    often = ["model.path=m", "sft.validate_every=5"]
    with pytest.raises(ConfigError, match=r"sft\.validate_every has no effect: nothing is held out"):
        read_config(SftConfig, [], often)
    assert read_config(SftConfig, [], [*often, "data.validation_share=0.1"]).sft.validate_every == 5
