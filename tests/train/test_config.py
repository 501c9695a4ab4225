"""Settings of a training run: merged in order, overridden, written back, and refused with a reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_origin

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import BaseModel

from verifiers.errors import ConfigError
from verifiers.train.config import SftConfig, TrainConfig
from verifiers.train.config_files import load_config, read_config, to_file

BASE = """
[model]
path = "m"
[trainer]
lr = 1e-4
betas = [0.9, 0.99]
[[env]]
id = "sums"
args = { level = 1, signs = ["+", "-"] }
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A file that is complete."""
    file = tmp_path / "base.toml"
    file.write_text(BASE)
    return file


def refused(*arguments: object) -> ConfigError:
    """The error that loading ends with."""
    with pytest.raises(ConfigError) as raised:
        load_config(*arguments)  # type: ignore[arg-type]
    return raised.value


def test_files_are_merged_from_left_to_right(base: Path, tmp_path: Path) -> None:
    """Tables key by key, lists replaced whole, and overrides on top of all files."""
    mine = tmp_path / "mine.toml"
    mine.write_text('[trainer]\nbetas = [0.8, 0.9]\nwarmup_steps = 3\n[[env]]\nid = "words"\n')
    config = load_config([base, mine], ["trainer.warmup_steps=4"])
    assert (config.trainer.lr, config.trainer.betas, config.trainer.warmup_steps) == (1e-4, (0.8, 0.9), 4)
    assert [one.id for one in config.env] == ["words"] and config.env[0].args == {}


def test_overrides_reach_into_lists_and_tables(base: Path) -> None:
    """An entry of a list by its number; sections and arguments that no file has are made; text needs no quotes."""
    overrides = ["env.0.args.level=2", "env.0.name=easy one", "model.lora.rank=4", "sampling.extra.stop=['###']"]
    config = load_config([base], overrides)
    assert config.env[0].args == {"level": 2, "signs": ["+", "-"]} and config.env[0].name == "easy one"
    assert config.model.lora is not None and config.model.lora.rank == 4
    assert config.sampling.extra == {"stop": ["###"]}


def test_a_run_needs_no_file() -> None:
    """One environment may be named by its id alone."""
    config = load_config([], ["model.path=m", "env=sums", "env.0.args.level=3"])
    assert (config.env[0].id, config.env[0].args) == ("sums", {"level": 3})
    config = load_config([], ["model.path=m", "env.0.id=sums", "eval.environments.0.id=words"])
    assert config.env[0].id == "sums"
    assert config.eval is not None and config.eval.environments is not None
    assert config.eval.environments[0].id == "words"


def test_none_unsets_what_may_be_unset(base: Path) -> None:
    """TOML has no null; a choice that is called `none` stays that choice."""
    config = load_config([base], ["trainer.max_grad_norm=none", "loss.sequence_mask=none", "trainer.autocast=none"])
    assert config.trainer.max_grad_norm is None
    assert (config.loss.sequence_mask, config.trainer.autocast) == ("none", "none")


@settings(deadline=None, max_examples=30)
@given(
    st.floats(1e-9, 1.0),
    st.one_of(st.none(), st.floats(1e-3, 10.0)),
    st.dictionaries(st.text(min_size=1, max_size=5), st.one_of(st.integers(), st.text(), st.booleans()), max_size=3),
    st.booleans(),
)
def test_a_written_file_gives_the_same_configuration(
    tmp_path_factory: pytest.TempPathFactory, lr: float, norm: float | None, args: dict[str, object], lora: bool
) -> None:
    """Whatever the settings are, also what was unset."""
    config = TrainConfig.model_validate(
        {
            "model": {"path": "m", "lora": {} if lora else None},
            "trainer": {"lr": lr, "max_grad_norm": norm},
            "env": [{"id": "a", "args": args}, {"id": "b"}],
            "eval": {"every": 5},
        }
    )
    file = tmp_path_factory.mktemp("config") / "resolved.toml"
    file.write_text(to_file(config), encoding="utf-8")
    assert load_config([file]) == config


def test_all_mistakes_are_told_with_their_file(base: Path, tmp_path: Path) -> None:
    """Unknown settings with near misses, wrong values with what is right."""
    mine = tmp_path / "mine.toml"
    mine.write_text('[trainer]\nschedul = "cosine"\nlr = "fast"\n')
    error = refused([base, mine], ["env.0.ratoi=2"])
    assert f"unknown setting 'trainer.schedul' in {mine}" in str(error)
    assert f"trainer.lr in {mine} is 'fast', and has to be a number above 0" in str(error)
    assert "unknown setting 'env.0.ratoi'" in str(error)
    assert "'schedule'" in error.hint and "'ratio'" in error.hint


@pytest.mark.parametrize(
    ("override", "told", "hint"),
    [
        ("modl.path=x", "unknown setting 'modl'", "'model'"),
        ("sampling.top_p=0.9", "top_p", "Leave it out"),
        ("sampling.extra.top_k=5", "top_k", "Leave it out"),
        ("sampling.extra.seed=5", "seed", "loop.seed"),
        ("sampling.extra.stpo=['x']", "sampling.extra: the engine has no sampling argument 'stpo'", "stop"),
        ("sampling.extra.stop_token_ids=[-1]", "sampling.extra: ", "at least 0"),
        ("sampling.extra.response_format.type=text", "sampling.extra: ", "response_format"),
        ("sampler.kind=vllm", "no server is named", "sampler.urls"),
        ("sampler.urls=['http://127.0.0.1:1']", "sampler.kind = 'inproc'", "sampler.kind to 'vllm'"),
        ("sampler.api_key_var=KEY", "sampler.kind = 'inproc'", "sampler.kind to 'vllm'"),
        ("sampler.transfer=nccl", "sampler.transfer has no effect with sampler.kind = 'inproc'", "sampler.kind"),
        ("loop.group_size=1", "group_size is 1", "loop.group_size=2"),
        ("loop.max_rollouts=4", "a group has 8", "loop.max_rollouts=8"),
        ("sampling.max_tokens=4096", "no room for a prompt", "sampler.max_context"),
        ("trainer.tokens_per_microbatch=64", "a row may have 4096", "trainer.tokens_per_microbatch"),
        ("trainer.warmup_steps=100", "loop.steps=100 has 100 updates", "fewer updates"),
        ("trainer.updates_per_batch=65", "a batch has 64", "fewer updates"),
        ("env.0.hard=0.9", "hard is 0.9", "below"),
        ("env.1.id=x", "a list of 1", "from 0"),
        ("device=cuda", "unknown setting 'device'", "model.device or sampler.device"),
        ("trainer.lr=inf", "trainer.lr", "train-config.md"),
        ("trainer.lr", "neither a file nor a setting", "section.name=value"),
    ],
)
def test_what_can_not_work_is_refused(base: Path, override: str, told: str, hint: str) -> None:
    """Before anything is loaded, with what to do about it."""
    error = refused([base], [override])
    assert told in str(error)
    assert hint in error.hint


def test_what_a_request_may_ask_beside_is_taken(base: Path) -> None:
    """Ends of a reply, and arguments of the template."""
    extra = ["sampling.extra.stop=['x']", "sampling.extra.chat_template_kwargs.enable_thinking=false"]
    assert set(load_config([base], extra).sampling.extra) == {"stop", "chat_template_kwargs"}


def test_settings_that_contradict_each_other_are_refused(base: Path) -> None:
    """Sampling in turn leaves no room for more groups; figures of two environments need two names."""
    assert "oversample" in str(refused([base], ["loop.max_lag=0", "loop.oversample=1.5"]))
    assert "'sums'" in str(refused([], ["model.path=m", 'env=["sums", "sums"]']))
    error = refused([base], ['eval.environments=["a", {id="b", name="a"}]'])
    assert "two entries of eval.environments are called 'a'" in str(error)
    assert "eval.environments.0.name=" in error.hint


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """With how to set it."""
    error = refused([], ["trainer.lr=1"])
    assert "model is missing" in str(error) and "env is missing" in str(error)
    assert "model.path=FOLDER" in error.hint and "[[env]]" in error.hint
    assert "can not read" in str(refused([tmp_path / "absent.toml"]))


def settings_of(section: type[BaseModel], name: str = "") -> Iterator[str]:
    """The names of all settings of a section and of those in it."""
    for field, info in section.model_fields.items():
        yield f"{name}{field}"
        kinds = (info.annotation, *get_args(info.annotation))
        if inner := next((one for one in kinds if isinstance(one, type) and issubclass(one, BaseModel)), None):
            index = "0." if get_origin(info.annotation) is list else ""
            yield from settings_of(inner, f"{name}{field}.{index}")


@pytest.mark.parametrize("model", [TrainConfig, SftConfig])
def test_a_value_of_the_wrong_kind_is_told_by_name_value_and_what_fits(model: type[BaseModel]) -> None:
    """Of every setting there is, in one form, and in no library's words."""
    names = list(settings_of(model))
    assert len(names) > (100 if model is TrainConfig else 50)
    for name in names:
        needed = ["model.path=m", *(["env=a"] if model is TrainConfig else [])]
        with pytest.raises(ConfigError) as caught:
            read_config(model, [], [*needed, f"{name}=1979-05-27"])
        said = f"{name} is 1979-05-27, and has to be "
        assert said in str(caught.value) and "nput" not in str(caught.value), name


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("trainer.lr=true", "number"),
        ("loop.steps=true", "number"),
        ("log.prometheus_port=true", "number"),
        ("trainer.betas=[0.9, 1.0]", "0 or more, below 1"),
        ("model.lora.dropout=1", "0 or more, below 1"),
        ("loop.seed=-1", "0 or more"),
        ("trainer.seed=4294967296", "below 4294967296"),
        ("loop.max_lag=99999999999999999999", "at most 2147483647"),
        ("sampler.max_batch=1000000", "from 1 to 65536"),
        ("loop.oversample=1e308", "from 1 to 100"),
        ("log.prometheus_port=-1", "from 0 to 65535"),
        ("log.prometheus_port=65536", "from 0 to 65535"),
        ("loop.groups_per_batch=2147483647", "rollouts"),
    ],
)
def test_what_no_library_below_can_take_is_refused_here(base: Path, override: str, why: str) -> None:
    """Truth values for numbers, shares of 1 that divide by 0, seeds and counts beyond what is held: by name."""
    error = refused([base], [override])
    assert override.partition("=")[0].split(".")[-1] in str(error) and why in str(error)
