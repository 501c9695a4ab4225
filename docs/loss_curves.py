"""Draw docs/guides/loss-curves.svg: what each loss makes of the ratio between policy and sampler.

    python docs/loss_curves.py          # writes the picture; needs the extra `train`

Each curve is the weight that a token's ∇ log π has in the update, computed by the losses themselves.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from verifiers.train.config import LossConfig
from verifiers.train.losses.loss import make_loss
from verifiers.train.losses.tokens import TokenBatch

PICTURE = Path(__file__).parent / "guides" / "loss-curves.svg"
SAMPLED = 0.1
"""Probability that the sampler gave the token: DPPO's region is of probabilities."""
PANELS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("reinforce", {"kind": "reinforce"}),
    ("icepop 0.5 … 5", {"kind": "icepop"}),
    ("dppo 0.2, sampled at 0.1", {"kind": "dppo"}),
    ("ppo 0.2 / 0.28, dual clip 4", {"kind": "ppo", "dual_clip": 4.0}),
    ("gspo 0.2 / 0.28, one token", {"kind": "gspo", "gspo_low": 0.2, "gspo_high": 0.28}),
    ("cispo 0.28", {"kind": "cispo"}),
)
WIDTH, HEIGHT, GAP, TOP = 200, 130, 40, 40
LEFT, RIGHT, HIGHEST = 1 / 8, 8.0, 8.0
COLOURS = {1.0: "#1a7f37", -1.0: "#b3261e"}


def weights(settings: dict[str, Any], advantage: float, ratios: list[float]) -> list[float]:
    """−∂loss/∂log π · A of one token at these ratios: how much of the plain REINFORCE step is left."""
    n = len(ratios)
    sampler = torch.full((n,), math.log(SAMPLED), dtype=torch.float64)
    logprobs = (sampler + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    batch = TokenBatch(
        logprobs=logprobs,
        sampler_logprobs=sampler,
        advantages=torch.full((n,), advantage, dtype=torch.float64),
        sequence=torch.arange(n),
        weights=torch.ones(n, dtype=torch.float64),
    )
    make_loss(LossConfig(drift=0.0, **settings))(batch).total.backward()
    return [float(-gradient * advantage) for gradient in logprobs.grad]


def x_of(ratio: float) -> float:
    """Place of a ratio on the logarithmic axis, in pixels."""
    return WIDTH * (math.log(ratio) - math.log(LEFT)) / (math.log(RIGHT) - math.log(LEFT))


def y_of(weight: float) -> float:
    """Place of a weight, in pixels from the top; the axis is that of log(1 + weight)."""
    return HEIGHT * (1 - math.log1p(weight) / math.log1p(HIGHEST))


def panel(title: str, settings: dict[str, Any]) -> str:
    """One drawing: both signs, the axes, and the ratio of 1."""
    ratios = [LEFT * (RIGHT / LEFT) ** (step / 240) for step in range(241)]
    lines = [f'<text x="0" y="-8" class="title">{title}</text>']
    lines.append(f'<rect width="{WIDTH}" height="{HEIGHT}" class="frame"/>')
    for ratio in (0.25, 0.5, 1.0, 2.0, 4.0):
        x = x_of(ratio)
        kind = "one" if ratio == 1 else "grid"
        lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{HEIGHT}" class="{kind}"/>')
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT + 12}" class="tick" text-anchor="middle">{ratio:g}</text>')
    lines += [
        f'<text x="-4" y="{y_of(weight) + 3:.1f}" class="tick" text-anchor="end">{weight}</text>'
        for weight in (0, 1, 4)
    ]
    for advantage, colour in COLOURS.items():
        shift = -1 if advantage > 0 else 1  # where both are one curve both are seen
        places = zip(ratios, weights(settings, advantage, ratios), strict=True)
        points = corners([(f"{x_of(r):.1f}", f"{y_of(weight) + shift:.1f}") for r, weight in places])
        lines.append(f'<polyline points="{" ".join(map(",".join, points))}" stroke="{colour}"/>')
    return "\n".join(lines)


def corners(points: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The points without those in the middle of a level stretch."""
    inner = zip(points, points[1:], points[2:], strict=False)
    return [points[0], *(here for before, here, after in inner if not before[1] == here[1] == after[1]), points[-1]]


def picture() -> str:
    """The whole SVG."""
    style = (
        "text{font:11px sans-serif;fill:#222}.title{font-weight:bold}.tick{font-size:9px;fill:#555}"
        ".frame{fill:none;stroke:#999}.grid{stroke:#ddd}.one{stroke:#999;stroke-dasharray:3 3}"
        "polyline{fill:none;stroke-width:1.6}"
    )
    total_width, total_height = GAP + 3 * (WIDTH + GAP), 2 * (HEIGHT + TOP + GAP) - 15
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total_width} {total_height}" width="{total_width}">',
        f"<style>{style}</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{GAP}" y="18">Weight of a token in the update, by the ratio policy / sampler:</text>',
        f'<text x="{GAP + 360}" y="18" style="fill:{COLOURS[1.0]}">advantage above 0</text>',
        f'<text x="{GAP + 480}" y="18" style="fill:{COLOURS[-1.0]}">below 0</text>',
    ]
    for number, (title, settings) in enumerate(PANELS):
        x, y = GAP + number % 3 * (WIDTH + GAP), TOP + 15 + number // 3 * (HEIGHT + 2 * GAP - 20)
        parts.append(f'<g transform="translate({x} {y})">\n{panel(title, settings)}\n</g>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(picture())
    print(PICTURE)
