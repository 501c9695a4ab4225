"""What happens when the engine breaks: everyone is told, nobody waits for ever, and it says that it is of no use."""

import asyncio
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.support.tiny_model import tiny_model  # noqa: E402
from verifiers.errors import EngineError  # noqa: E402
from verifiers.train.engines.torch_engine import TorchEngine  # noqa: E402

pytestmark = pytest.mark.train

BOTH = pytest.mark.parametrize("threaded", [True, False])


class Breaks:
    """A hook that raises from the n-th forward pass on."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, *_: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("out of memory, say")


@BOTH
async def test_a_failing_pass_ends_every_request(threaded: bool) -> None:
    """Running and waiting requests get an EngineError with the cause; so does whatever is asked later."""
    model = tiny_model()
    engine = TorchEngine(model, max_batch=2, max_context=64, threaded=threaded, stop_token_ids=[])
    model.get_input_embeddings().register_forward_hook(Breaks(5))
    outcomes = await asyncio.gather(
        *(engine.generate([seed], {"max_tokens": 50}) for seed in range(4)), return_exceptions=True
    )
    assert all(isinstance(outcome, EngineError) and "out of memory, say" in str(outcome) for outcome in outcomes)
    assert len({id(outcome) for outcome in outcomes}) == 4
    assert isinstance(engine.failure, EngineError)
    for later in (engine.generate([1], {}), engine.score([1, 2]), engine.update_weights({}, 1)):
        with pytest.raises(EngineError):
            await later
    await engine.close()


@BOTH
async def test_logits_that_are_no_numbers_are_a_failure(threaded: bool) -> None:
    """Weights that went bad are told, instead of sampling from NaN."""
    engine = TorchEngine(tiny_model(), max_batch=2, max_context=64, threaded=threaded)
    bad = {name: torch.full_like(weight, torch.nan) for name, weight in tiny_model().state_dict().items()}
    await engine.update_weights(bad, 1)
    with pytest.raises(EngineError, match="not finite"):
        await engine.generate([1, 2], {"max_tokens": 5})
    await engine.close()


@BOTH
async def test_closing_ends_what_runs(threaded: bool) -> None:
    """`close` ends running, paused and waiting requests, and may be called again."""
    engine = TorchEngine(tiny_model(), max_batch=1, max_context=2000, threaded=threaded, stop_token_ids=[])
    tasks = [asyncio.ensure_future(engine.generate([seed], {})) for seed in range(3)]
    while engine.load()["running"] == 0:  # noqa: ASYNC110 - the engine may be in another thread
        await asyncio.sleep(0.001)
    await engine.pause()
    await engine.close()
    await engine.close()
    for task in tasks:
        with pytest.raises(EngineError, match="closed"):
            await task


def test_one_engine_serves_loop_after_loop() -> None:
    """Each `asyncio.run` has a loop of its own; requests of one that ended harm nobody."""
    engine = TorchEngine(tiny_model(), max_batch=2, max_context=2000, stop_token_ids=[])

    async def leave() -> None:
        task = asyncio.ensure_future(engine.generate([1], {}))
        await asyncio.sleep(0.01)
        del task

    async def ask() -> list[int]:
        return (await engine.generate([1, 2], {"max_tokens": 4, "seed": 1})).tokens

    asyncio.run(leave())
    assert asyncio.run(ask()) == asyncio.run(ask())
    asyncio.run(engine.close())
