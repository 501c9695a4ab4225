"""The engine in this process: the contract of samplers, in a thread and on the event loop."""

import pytest

torch = pytest.importorskip("torch")

from tests.support.tiny_model import tiny_model, tiny_tokenizer  # noqa: E402
from tests.train.engines.contract import CONTEXT, SamplerContract  # noqa: E402
from verifiers.train.engines.torch_engine import TorchEngine  # noqa: E402

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


class TestThreaded(SamplerContract):
    """Decoding in a thread of its own."""

    @pytest.fixture
    async def sampler(self, tokenizer):
        engine = TorchEngine(tiny_model(), max_batch=4, max_context=CONTEXT, decode=tokenizer.decode)
        yield engine
        await engine.close()


class TestInline(SamplerContract):
    """Decoding on the event loop, with bits that do not depend on the company."""

    @pytest.fixture
    async def sampler(self, tokenizer):
        engine = TorchEngine(
            tiny_model(), max_batch=4, max_context=CONTEXT, decode=tokenizer.decode, threaded=False, deterministic=True
        )
        yield engine
        await engine.close()
