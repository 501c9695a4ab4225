"""From a configuration to a run: each kind of sampler trains, and what is started ends with the block."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch")

from tests.support.fake_vllm import FakeVllm  # noqa: E402
from tests.support.tiny_model import save_tiny  # noqa: E402
from verifiers.errors import ConfigError  # noqa: E402
from verifiers.train.build import built, make_learner  # noqa: E402
from verifiers.train.config import TrainConfig  # noqa: E402
from verifiers.train.config_files import load_config  # noqa: E402
from verifiers.train.environments import find  # noqa: E402
from verifiers.train.report import StepReport  # noqa: E402
from verifiers.train.run_folder import RunFolder  # noqa: E402

ENVIRONMENT = """
import verifiers as vf


def load_environment():
    def low(completion):
        return sum(byte < 64 for byte in (completion[-1]["content"] or "").encode("utf-8", "replace")) / 8

    rows = [{"question": f"{n}", "answer": ""} for n in range(8)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[low]))
"""


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a tiny model and an environment."""
    folder = tmp_path / "environments" / "low_bytes"
    folder.mkdir(parents=True)
    (folder / "low_bytes.py").write_text(ENVIRONMENT)
    (folder / "pyproject.toml").write_text('[project]\nname = "low-bytes"\nversion = "0.1.0"\n')
    save_tiny(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config_of(workplace: Path, *settings: str) -> TrainConfig:
    return load_config(
        [],
        [
            "model.path=model", "env=low_bytes", f"output={workplace / 'run'}", "sampling.max_tokens=8",
            "advantage.overlong=keep", "sampler.max_context=128", "trainer.tokens_per_microbatch=2048",
            "trainer.lr=3e-3", "loop.groups_per_batch=2", "loop.max_lag=1", "loop.steps=2", *settings,
        ],
    )  # fmt: skip


async def trained(config: TrainConfig) -> list[StepReport]:
    """The reports of a whole run."""
    reports: list[StepReport] = []
    learner = make_learner(config)
    found = [find(one) for one in config.env]
    async with built(config, learner, found, [], RunFolder.create(config.output)) as run:
        run.loop.observe(reports.append)
        outcome = await run.loop.run()
    assert (outcome.step, outcome.version, outcome.stopped) == (2, 2, False)
    assert run.environments[0]["version"] == "0.1.0" and run.went_on_from is None
    return reports


async def test_a_sampler_in_this_process(workplace: Path) -> None:
    """Two updates, each of exact rows: the sampler computes what the trainer does."""
    reports = await trained(config_of(workplace))
    assert [report.version for report in reports] == [1, 2]
    assert reports[0].figures["loss/mismatch_kl"] < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, True], ids=["whole", "lora"])
async def test_servers_of_vllm(workplace: Path, monkeypatch: pytest.MonkeyPatch, lora: bool) -> None:
    """They get every version of the weights, as a folder, in the routes that they have for it, and the key."""
    monkeypatch.setenv("FLEET_KEY", "of-the-fleet")
    more = ["sampler.max_context=48", "sampling.max_tokens=40"]
    more += ["sampler.api_key_var=FLEET_KEY", *(["model.lora.rank=4"] if lora else [])]
    async with FakeVllm(workplace / "model", key="of-the-fleet") as server:
        reports = await trained(config_of(workplace, "sampler.kind=vllm", f"sampler.urls={server.url}", *more))
        assert "/resume" in server.paths
        assert ("/v1/load_lora_adapter" in server.paths) == lora
        asked = [body for body in server.bodies if "token_ids" in (body or {})]
        longest = {len(body["token_ids"]) + body["sampling_params"]["max_tokens"] for body in asked}
        assert asked and max(longest) == 48, "a row has no more tokens than sampler.max_context"
    assert reports[0].figures["loss/mismatch_kl"] < 1e-6
    assert [path.name for path in sorted((workplace / "run" / "weights").iterdir())] == ["v00000001", "v00000002"]


@pytest.mark.slow
async def test_a_process_beside(workplace: Path) -> None:
    """It begins with the model of the configuration, and ends with the run."""
    reports = await trained(config_of(workplace, "sampler.kind=process"))
    assert reports[0].figures["loss/mismatch_kl"] < 1e-6


async def test_a_model_without_a_chat_template_is_refused_before_anything_is_sampled(workplace: Path) -> None:
    """With what to do about it, not after the failures of ten batches."""
    (workplace / "model" / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="low_bytes can not be played: the chat template refuses") as raised:
        await trained(config_of(workplace))
    assert "completion mode" in str(raised.value.hint)


async def test_rows_are_kept_if_asked_for(workplace: Path) -> None:
    """A file a step, named after the version that it made."""
    await trained(config_of(workplace, "log.save_rows=true"))
    files = sorted((workplace / "run" / "rows").iterdir())
    assert [file.name for file in files] == ["v00000001.jsonl", "v00000002.jsonl"]
    row = json.loads(files[1].read_text().splitlines()[0])
    assert row["env"]["name"] == "low_bytes" and row["advantages"]
