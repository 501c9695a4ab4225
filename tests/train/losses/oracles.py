"""Losses in plain numpy, written from the papers' formulas: values and gradients with respect to log π. No torch.

Gradients are derived by hand where that is short, and by central differences otherwise (`numeric`). Nothing here is
shared with the package.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass
class Tokens:
    """N tokens of rows: log π, log μ, A, the row of each, its weight; log π_old, log ref and entropy where used."""

    lp: Array
    mu: Array
    a: Array
    row: NDArray[np.int64]
    w: Array = field(default_factory=lambda: np.zeros(0))
    old: Array | None = None
    ref: Array | None = None
    ent: Array | None = None

    def before(self) -> Array:
        return self.lp if self.old is None else self.old

    def per_row(self, values: Array, function: Callable[[Array], float]) -> Array:
        """[N]: of each token's row, a function of the values of the row's tokens."""
        return np.array([function(values[self.row == row]) for row in self.row], dtype=np.float64)


def random_tokens(seed: int, lengths: tuple[int, ...] = (3, 1, 4, 2), spread: float = 0.7) -> Tokens:
    """Tokens with ratios on all sides of every threshold, and every field."""
    draw = np.random.default_rng(seed)
    n = sum(lengths)
    row = np.repeat(np.arange(len(lengths)), lengths)
    mu = -draw.exponential(1.5, n) - 1e-3
    lp = np.minimum(mu + draw.normal(0, spread, n), -1e-4)
    a = draw.normal(0, 1, len(lengths))[row]
    old = np.minimum(mu + draw.normal(0, spread / 2, n), -1e-4)
    ref = -draw.exponential(1.5, n)
    ent = draw.exponential(1.0, n)
    return Tokens(lp, mu, a, row, draw.uniform(0.2, 1, len(lengths))[row], old, ref, ent)


def numeric(value: Callable[[Tokens], Array], tokens: Tokens, step: float = 1e-6) -> Array:
    """[N] gradient of Σ value with respect to log π, by central differences. π_old and masks of it must be fixed."""
    gradient = np.zeros_like(tokens.lp)
    for index in range(len(tokens.lp)):
        up, down = tokens.lp.copy(), tokens.lp.copy()
        up[index] += step
        down[index] -= step
        gradient[index] = (value(replace(tokens, lp=up)).sum() - value(replace(tokens, lp=down)).sum()) / (2 * step)
    return gradient


# --- surrogates: (value, gradient) a token --------------------------------------------------------------------------


def reinforce(t: Tokens) -> tuple[Array, Array]:
    return -t.a * t.lp, -t.a


def importance(t: Tokens) -> tuple[Array, Array]:
    r = np.exp(t.lp - t.mu)
    return -t.a * r, -t.a * r


def icepop(t: Tokens, low: float, high: float) -> tuple[Array, Array]:
    r = np.exp(t.lp - t.mu)
    kept = np.array([low <= x <= high for x in r])
    return np.where(kept, -t.a * r, 0), np.where(kept, -t.a * r, 0)


def dppo_kept(t: Tokens, delta: float) -> NDArray[np.bool_]:
    kept = []
    for lp, mu, a in zip(t.lp, t.mu, t.a, strict=True):
        moved = np.exp(lp) - np.exp(mu)
        kept.append(not ((a > 0 and moved > delta) or (a < 0 and moved < -delta)))
    return np.array(kept, dtype=bool)


def dppo(t: Tokens, delta: float) -> tuple[Array, Array]:
    value, gradient = importance(t)
    kept = dppo_kept(t, delta)
    return np.where(kept, value, 0), np.where(kept, gradient, 0)


def ppo(
    t: Tokens, low: float, high: float, dual: float | None = None, before: Array | None = None
) -> tuple[Array, Array]:
    """Case by case: the objective is min(rA, clip(r)A), at least dual·A for A < 0."""
    before = t.mu if before is None else before
    value, gradient = [], []
    for lp, mu, a in zip(t.lp, before, t.a, strict=True):
        r = np.exp(lp - mu)
        objective, slope = r * a, r * a
        if a > 0 and r > 1 + high:
            objective, slope = (1 + high) * a, 0.0
        elif a < 0 and r < 1 - low:
            objective, slope = (1 - low) * a, 0.0
        elif dual is not None and a < 0 and r > dual:
            objective, slope = dual * a, 0.0
        value.append(-objective)
        gradient.append(-slope)
    return np.array(value), np.array(gradient)


def gspo_ratio(t: Tokens) -> Array:
    return np.exp(t.per_row(t.lp - t.mu, lambda values: float(np.mean(values))))


def gspo(t: Tokens, low: float, high: float) -> tuple[Array, Array]:
    """The sequence objective, times its length: every token has its row's value and the row's gradient s·A."""
    s = gspo_ratio(t)
    kept = np.where(t.a >= 0, s <= 1 + high, s >= 1 - low)
    value = -np.minimum(s * t.a, np.clip(s, 1 - low, 1 + high) * t.a)
    return value, np.where(kept, -s * t.a, 0)


def cispo(t: Tokens, high: float) -> tuple[Array, Array]:
    weight = np.minimum(np.exp(t.lp - t.mu), 1 + high)
    return -weight * t.a * t.lp, -weight * t.a


def tis(t: Tokens, cap: float) -> Array:
    return np.minimum(np.exp(t.before() - t.mu), cap)


# --- row masks: kept ------------------------------------------------------------------------------------------------


def geometric_kept(t: Tokens, low: float, high: float) -> NDArray[np.bool_]:
    mean = np.exp(t.per_row(t.before() - t.mu, lambda values: float(np.mean(values))))
    return (mean >= low) & (mean <= high)


def product_kept(t: Tokens, cap: float) -> NDArray[np.bool_]:
    return t.per_row(np.exp(t.before() - t.mu), lambda values: float(np.prod(values))) <= cap


def off_policy_kept(t: Tokens, delta: float) -> NDArray[np.bool_]:
    gap = t.per_row(t.mu - t.lp, lambda values: float(np.mean(values)))
    return ~((gap > delta) & (t.a < 0))


# --- regularisers ---------------------------------------------------------------------------------------------------


def drift(t: Tokens) -> tuple[Array, Array]:
    log_r = t.lp - t.mu
    return log_r**2, 2 * log_r


def reference_kl(t: Tokens) -> tuple[Array, Array]:
    """r·k3 and its gradient r·k3 + r·(1 − e^d), which is −r·d."""
    assert t.ref is not None
    r, d = np.exp(t.lp - t.mu), t.ref - t.lp
    return r * (np.exp(d) - d - 1), -r * d


# --- normalisation --------------------------------------------------------------------------------------------------


def token_mean(t: Tokens, values: Array) -> float:
    return float(values.sum() / len(values))


def rollout_mean(t: Tokens, values: Array) -> float:
    """Each row's token mean by its weight, over the sum of the rows' weights."""
    rows = sorted(set(t.row.tolist()))
    parts = [float(t.w[t.row == row][0] * values[t.row == row].mean()) for row in rows]
    return sum(parts) / sum(float(t.w[t.row == row][0]) for row in rows)
