"""How a token is chosen from logits: by a number of the request's own, exactly, in pieces or as a whole."""

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from verifiers.train.engines import decoder  # noqa: E402
from verifiers.train.engines.decoder import _choose  # noqa: E402
from verifiers.train.engines.requests import Request  # noqa: E402
from verifiers.train.engines.sampling import Sampling  # noqa: E402
from verifiers.train.engines.slots import Slots  # noqa: E402

pytestmark = pytest.mark.train


def test_the_draw_decides_and_pieces_change_nothing(monkeypatch) -> None:
    """The token is where the distribution function passes the draw, its logprob the log-softmax; at temperature 0 it is
    the likeliest. Rows that are worked on in pieces give the same bits."""
    logits = 3 * torch.randn(7, 400, generator=torch.Generator().manual_seed(0))
    temperatures = np.array([1, 1, 0.5, 2, 0, 1, 1], np.float32)
    draws = np.array([0.0, 0.3, 0.5, 0.9, 0.2, 0.999, 1 - 2.0**-40])
    tokens, logprobs = _choose(logits, temperatures, draws)
    scaled = logits / torch.tensor([1, 1, 0.5, 2, 1, 1, 1])[:, None]
    shares = torch.softmax(scaled.double(), -1)
    sums = np.cumsum(shares.numpy(), axis=1)
    expected = [int(np.searchsorted(row, draw, side="right")) for row, draw in zip(sums, draws, strict=True)]
    expected[4] = int(logits[4].argmax())
    assert tokens.tolist()[:6] == expected[:6]
    assert tokens[6] <= expected[6]
    assert logprobs.tolist() == pytest.approx(torch.log(shares.gather(1, tokens[:, None]))[:, 0].tolist(), abs=1e-6)
    monkeypatch.setattr(decoder, "CACHED", 800)
    for whole, pieces in zip((tokens, logprobs), _choose(logits, temperatures, draws), strict=True):
        assert torch.equal(whole, pieces)


def test_numbers_follow_from_key_and_place_and_are_uniform() -> None:
    """Two requests of one key draw alike, wherever they sit; over keys and over places the numbers are uniform, and
    those of neighbours have nothing in common."""
    slots = Slots(200, 10)
    for slot in range(200):
        request = Request([1], Sampling(), lambda _: None)
        request.key = slot % 100
        slots.seat(slot, request, np.array([1]), 0, 0)
    drawn = []
    for place in range(200):
        slots.fed[:] = place
        drawn.append(slots.draws(np.arange(200)))
    numbers = np.array(drawn)
    assert (numbers[:, :100] == numbers[:, 100:]).all()
    numbers = numbers[:, :100]
    assert ((numbers >= 0) & (numbers < 1)).all()
    counts, _ = np.histogram(numbers, 20, (0, 1))
    assert ((counts - 1000) ** 2 / 1000).sum() < 44  # chi square of 19: one in a thousand is above
    for near in (numbers[1:] - numbers[:-1], numbers[:, 1:] - numbers[:, :-1]):
        assert abs(np.abs(near).mean() - 1 / 3) < 0.01
    # Of independent columns of n numbers, correlations have a variance of 1 / (n - 1): here over all pairs of requests.
    pairs = np.corrcoef(numbers.T)[np.triu_indices(100, 1)]
    assert abs((pairs**2).mean() * 199 - 1) < 0.1 and abs(pairs.mean()) < 0.005
    for lag in range(1, 9):  # and between a request's own numbers
        assert abs(np.corrcoef(numbers[lag:].ravel(), numbers[:-lag].ravel())[0, 1]) < 0.03
