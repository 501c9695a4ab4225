"""Evidence is held against the model and its text: what lies is counted and explained, and never trained."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from verifiers.errors import EvidenceError
from verifiers.train.evidence import Checks, turns_of
from verifiers.train.merge import MergeOptions, rows_of

END, BEGIN = 256, 258


def record(ids: list[int], reason: str = "stop", said: str = "a", **fields: Any) -> dict[str, Any]:
    """A scored rollout of one turn, sampled with no wishes unless they are given."""
    tokens = {"prompt_ids": [1], "completion_ids": ids, "completion_logprobs": [-0.5] * len(ids)}
    message = {"role": "assistant", "content": said, "finish_reason": reason}
    response = {"message": message, **fields.pop("response", {})}
    truncated = reason == "length"
    step = {"prompt": "u", "completion": said, "response": response, "tokens": tokens, "is_truncated": truncated}
    return {"outcome": "ok", "reward": 1.0, "sampling_args": {}, "trajectory": [step], **fields}


def decode(ids: list[int]) -> str:
    """A letter an id; 256 and above are special."""
    return "".join(f"<{number}>" if number in (END, BEGIN) else chr(number) for number in ids)


CHECKS = Checks(vocabulary=300, stop_ids={END}, decode=decode, decode_share=1.0, special_ids={END, BEGIN})


@pytest.mark.parametrize(
    "rollout",
    [
        record([97, END]),
        record([97], sampling_args=None),
        record([97], sampling_args={"stop": ["b"]}),
        record([97], sampling_args={"extra_body": {"stop_token_ids": [97]}}),
        record([97], response={"sampling_args": {"stop": "b"}}),
        record([97, END], "length", sampling_args={"max_tokens": 2}),
        record([97, BEGIN, 98, END], said="ab"),
        record([97, BEGIN, 98, END], said="a<258>b"),
        record([32, 97, 32, 98, END], said="ab"),
        record([97, 0xFFFD, 0xFFFD, 98, END], said="a\ufffdb"),
    ],
    ids=[
        *("stopped", "unknown wishes", "a text ended it", "an id of the request ended it", "a text ended this reply"),
        *("a stop token at the limit", "specials left out", "specials kept", "white space", "bytes"),
    ],
)
def test_honest_replies_pass(rollout: dict[str, Any]) -> None:
    """What engines report truthfully, each in its own way."""
    ids = rollout["trajectory"][0]["tokens"]["completion_ids"]
    (row,) = rows_of(rollout, MergeOptions(checks=Checks(70_000, CHECKS.stop_ids, decode, 1.0, CHECKS.special_ids)))
    assert row.tokens == [1, *ids]


@pytest.mark.parametrize(
    ("rollout", "said"),
    [
        (record([97, 301, END]), "no id of the vocabulary"),
        (record([98, END]), "its ids say 'b<256>', its message 'a'"),
        (record([97]), "ended by 'stop', but not in a stop token"),
        (record([97], sampling_args={"stop": ["b"]}, response={"sampling_args": {"seed": 1}}), "not in a stop token"),
        (record([97] * 3, sampling_args={"extra_body": {"max_tokens": 2}}), "3 tokens where at most 2"),
    ],
    ids=["id", "text", "ending", "ending of this reply", "length"],
)
def test_lies_are_refused(rollout: dict[str, Any], said: str) -> None:
    """Each with what is wrong."""
    with pytest.raises(EvidenceError, match=said):
        rows_of(rollout, MergeOptions(checks=CHECKS))


async def test_a_reply_names_its_sampling_arguments_where_they_are_not_the_rollouts() -> None:
    """An environment may ask for one turn in another way; the evidence of that turn is judged by it."""
    import verifiers as vf
    from verifiers.clients.scripted import ScriptedClient

    class Brief(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: vf.State, **_: Any) -> Any:
            return [vf.UserMessage("and?")]

        async def get_model_response(self, state: vf.State, prompt: Any, **more: Any) -> Any:
            if state["trajectory"]:
                more["sampling_args"] = {**state["sampling_args"], "stop": ["."]}
            return await super().get_model_response(state, prompt, **more)

    env = Brief(dataset=[{"question": "q"}], rubric=vf.Rubric([lambda: 1.0]), max_turns=2)
    columns = ["trajectory", "sampling_args"]
    done = await env.generate(env.get_dataset(), ScriptedClient(["a", "b"]), "m", {"seed": 3}, state_columns=columns)
    first, second = turns_of(done["outputs"][0])
    assert first.sampling is not None and first.sampling["seed"] == 3 and "stop" not in first.sampling
    assert second.sampling == {**first.sampling, "stop": ["."]}


# --- in a run ---------------------------------------------------------------------------------------------------

ENVIRONMENT = """
import verifiers as vf


def load_environment():
    def marked(completion):
        return float("!" in completion[-1]["content"])

    rows = [{"question": f"{n}", "answer": ""} for n in range(8)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[marked]))
"""

MARK, LETTER, LIE = 0, 64, 67
"""Ids of "!", "a" and "d"; only lies hold the last one."""


class Liar:
    """An engine every third reply of which is a lie."""

    def __init__(self, engine: Any, lie: list[int]) -> None:
        self._engine = engine
        self._lie = lie
        self._numbers = itertools.count()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, token_ids: list[int], params: dict[str, Any]) -> Any:
        from verifiers.clients.sampler import Completion

        await asyncio.sleep(0)
        number = next(self._numbers)
        tokens = self._lie if number % 3 == 0 else [(MARK, LETTER)[number % 2], END]
        version = self._engine.info().version
        return Completion(tokens, [-5.5] * len(tokens), [version] * len(tokens), "stop")


@pytest.mark.train
@pytest.mark.parametrize(
    ("lie", "said"),
    [([LIE, 259, END], "no id of the vocabulary"), ([LIE, END], "its ids say"), ([LIE], "not in a stop token")],
    ids=["id", "text", "ending"],
)
async def test_a_sampler_that_lies_trains_nothing(
    lie: list[int], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a run as vf-train builds it: its lies are in no row, they are counted, and the first is explained."""
    pytest.importorskip("torch")
    from tests.support.tiny_model import save_tiny
    from verifiers.clients.local import TokenizerRenderer
    from verifiers.train import build, evidence
    from verifiers.train.config_files import load_config
    from verifiers.train.environments import find
    from verifiers.train.run_folder import RunFolder

    (tmp_path / "environments" / "marks").mkdir(parents=True)
    (tmp_path / "environments" / "marks" / "marks.py").write_text(ENVIRONMENT)
    save_tiny(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    config = load_config(
        [],
        [
            "model.path=model", "env=marks", "output=run", "sampling.max_tokens=8", "sampler.max_context=128",
            "trainer.tokens_per_microbatch=2048", "loop.groups_per_batch=2", "loop.group_size=6", "loop.steps=2",
            "loop.filter_zero_advantage=false", "log.save_rows=true",
        ],
    )  # fmt: skip
    engine, truth = build._engine, TokenizerRenderer.decode
    monkeypatch.setattr(build, "_engine", lambda *arguments: Liar(engine(*arguments), lie))
    if "say" in said:
        monkeypatch.setattr(evidence, "_is_chosen", lambda *_: True)
        monkeypatch.setattr(
            TokenizerRenderer, "decode", lambda self, ids, **more: "no" if LIE in ids else truth(self, ids, **more)
        )
    figures = []
    folder = RunFolder.create(tmp_path / "run")
    async with build.built(config, build.make_learner(config), [find(config.env[0])], [], folder) as run:
        run.loop.observe(lambda report: figures.append(report.figures))
        await run.loop.run()
    kept = (tmp_path / "run" / "rows").iterdir()
    rows = [json.loads(line) for file in kept for line in file.read_text().splitlines()]
    assert len(rows) == sum(one["batch/rows"] for one in figures) > 8
    assert all(row["tokens"][-1] == END and LIE not in row["tokens"] for row in rows)
    invalid, errors = (sum(one.get(name, 0) for one in figures) for name in ("rows/none/invalid", "errors/evidence"))
    assert invalid == errors >= 8
    [told] = [entry.getMessage() for entry in caplog.records if "is not trained on" in entry.getMessage()]
    assert said in told
