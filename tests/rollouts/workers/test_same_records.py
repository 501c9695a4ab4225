"""An environment gives the same records in workers as in this process, timings aside."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.mock_openai import MockOpenAI, chat
from verifiers.clients.client import as_client
from verifiers.envs.load import load_environment
from verifiers.rollouts.encoding import encode_record, from_json
from verifiers.rollouts.engine import Engine, EngineOptions
from verifiers.rollouts.plan import plan_rollouts
from verifiers.rollouts.workers.messages import Load
from verifiers.rollouts.workers.pool import PoolOptions, WorkerPool
from verifiers.rollouts.workers.process import ProcessLink
from verifiers.types import ClientConfig

ROOT = Path(__file__).parents[3]
PACKAGES = [path.parent for path in sorted((ROOT / "environments").glob("*/pyproject.toml"))]
ERAS = sorted((ROOT / "tests" / "conformance" / "environments").glob("era_*.py"))
CASES = [(path.name.replace("_", "-"), path) for path in PACKAGES]
CASES += [(path.stem.replace("_", "-"), path.parent) for path in ERAS]
ARGS: dict[str, dict[str, Any]] = {"era-e-bundle": {"count": 2}}
WAITS = ("sandbox_ready_wait_time", "sandbox_command_execution_time", "python_ready_wait_time")
WAITS += ("sandbox_state", "python_state", "start_s", "waited_s", "hit")
"""What a clock, or the pool's luck, says of sandboxes: metrics and facts."""


def model(request: Any) -> Any:
    """A model whose reply depends on nothing but the conversation: numbers, tags, a tool call now and then."""
    messages = request.json["messages"]
    number = int(hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).hexdigest()[:8], 16)
    tools = request.json.get("tools")
    if tools and number % 3:
        function = tools[number % len(tools)]["function"]
        properties = function["parameters"]["properties"]
        arguments = {name: number % 9 if one.get("type") != "string" else "cup" for name, one in properties.items()}
        call = {"name": function["name"], "arguments": json.dumps(arguments)}
        return chat({"content": None, "tool_calls": [{"id": "c", "type": "function", "function": call}]}, "tool_calls")
    return chat(f"<think>{number}</think><answer>{number % 10}</answer><guess>crane</guess>{number % 10} yes")


def comparable(record: Any) -> dict[str, Any]:
    """A record as it is saved, without what a clock says."""
    saved = from_json(encode_record(record))
    del saved["timing"]
    for facts in (saved, saved["metrics"], saved.get("sandbox_info", {})):
        for name in WAITS:
            facts.pop(name, None)
    return saved


def by_id(records: list[Any]) -> dict[str, Any]:
    """Records by their rollout."""
    return {one["rollout_id"]: comparable(one) for one in records}


@pytest.mark.slow
@pytest.mark.parametrize(("env_id", "folder"), CASES, ids=[name for name, _ in CASES])
async def test_the_records_are_those_of_the_engine(env_id, folder, monkeypatch):
    """The same plan, the same ids, the same records, for every environment of the repository."""
    if env_id == "gsm8k" and not os.environ.get("VF_DATA_DIR"):
        pytest.skip("needs VF_DATA_DIR")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("SUMMARY_KEY", "k")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    args = ARGS.get(env_id, {})
    options = {"max_concurrent": 4, "seed": 7, "state_columns": ("advantage",)}
    with MockOpenAI(model) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        config = ClientConfig(api_base_url=server.base_url)
        sys.modules.pop(env_id.replace("-", "_"), None)
        importlib.invalidate_caches()
        env = load_environment(env_id, **args)
        rows = env.get_eval_dataset(3, 1)
        plan = plan_rollouts(rows, 2, 7)
        ours: list[Any] = []
        client = as_client(config)
        engine = Engine(env, client, "m", {"max_tokens": 64}, EngineOptions(**options))
        await engine.play(rows, plan, lambda record, state: ours.append(record))
        await client.close()

        load = Load(
            env_id,
            args,
            paths=list(sys.path),
            client=config.model_dump(),
            model="m",
            sampling_args={"max_tokens": 64},
            options=options,
            num_examples=3,
            shuffle_seed=1,
        )
        pool = WorkerPool(lambda number: ProcessLink(load, number=number), 2, PoolOptions(max_concurrent=4))
        theirs: list[Any] = []
        try:
            facts = await pool.start()
            carried = await pool.rows()
            assert list(plan_rollouts(carried, 2, 7)) == list(plan)
            await pool.play(carried, plan, lambda record, state: theirs.append(record))
        finally:
            await pool.close()
    assert facts["tools"] == ([dict(tool) for tool in env.tool_defs] or None)
    assert by_id(theirs) == by_id(ours) and len(ours) == len(plan)
    assert any(one["outcome"] == "ok" for one in ours)
