import pytest

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch")

from tests.support.tiny_model import END, START, tiny_model, tiny_tokenizer  # noqa: E402
from tests.support.toy_tasks import CLASSES, LENGTH, score  # noqa: E402
from tests.train.reference_loop import train  # noqa: E402


@torch.no_grad()
def decode(model, prompt, n, generator):
    """`n` replies to one prompt as rows without reward."""
    ids, logprobs = torch.tensor([prompt] * n), []
    for _ in range(LENGTH):
        policy = model(input_ids=ids).logits[:, -1].log_softmax(-1)
        ids = torch.cat([ids, torch.multinomial(policy.exp(), 1, generator=generator)], 1)
        logprobs.append(policy.gather(-1, ids[:, -1:]))
    for tokens, values in zip(ids.tolist(), torch.cat(logprobs, 1).tolist(), strict=True):
        reply = tokens[len(prompt) :]
        size = reply.index(END) + 1 if END in reply else len(reply)
        context = len(prompt)
        yield {
            "tokens": tokens[: context + size],
            "mask": [False] * context + [True] * size,
            "logprobs": [0.0] * context + values[:size],
        }


def test_it_learns():
    """The reference learns the single-turn toy task from random weights in 40 updates."""
    tokenizer, generator = tiny_tokenizer(), torch.Generator().manual_seed(0)

    def sample(model, step):
        groups = []
        for name in [*CLASSES, *CLASSES]:
            prompt = [START, *tokenizer.encode(f"u{name}"), END, START, *tokenizer.encode("a")]
            rows = list(decode(model, prompt, 8, generator))
            for row in rows:
                reply = tokenizer.decode(row["tokens"][len(prompt) :], skip_special_tokens=True)
                row["reward"] = score(reply, name)
            groups.append(rows)
        return groups

    curve = train(tiny_model(initializer_range=0.1), sample, steps=40, lr=6e-3, std=True)
    assert curve[0] < 0.25
    assert sum(curve[-5:]) / 5 >= 0.9
