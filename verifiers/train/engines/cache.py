"""Keys and values of the sequences that are being decoded: one padded tensor a layer, a slot a sequence.

It stands where transformers has a `Cache`: a model's attention calls `update` with the keys and values of the new
tokens and gets those that the new tokens may look at. Where they go is said before each forward pass (`place`).

Memory: slots × capacity × layers × 2 × heads × head size. Slots and capacity (tokens of the longest sequence) grow by
doubling, as they are needed.
"""

from __future__ import annotations

from typing import Any

import torch

GROWTH = 64
"""Capacities are multiples of this; so are the windows that kernels like to have aligned."""


class KvCache:
    """Keys and values, [slots, capacity + 1, heads, head size] a layer. The last place is never read: what is written
    for padding goes there."""

    is_compileable = False
    is_sliding = (False,)

    def __init__(self, max_slots: int, max_capacity: int) -> None:
        self.slots = 0
        self.capacity = 0
        self._max = (max_slots, max_capacity)
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._rows: Any = None
        self._places: Any = None
        self._window = 0

    def reserve(self, slots: int, capacity: int) -> None:
        """Have room for that many slots of so many tokens."""
        wanted = (_grown(self.slots, slots, 1, self._max[0]), _grown(self.capacity, capacity, GROWTH, self._max[1]))
        if wanted == (self.slots, self.capacity):
            return
        self._keys = [self._enlarged(tensor, *wanted) for tensor in self._keys]
        self._values = [self._enlarged(tensor, *wanted) for tensor in self._values]
        self.slots, self.capacity = wanted

    def place(self, rows: Any, positions: Any, window: int) -> None:
        """Say where the tokens of the next forward pass are.

        rows: [B] int64 slots, or a number n for the slots 0..n-1. positions: [B, T] int64, `capacity` for padding.
        window: how many places are read.
        """
        self._rows, self._window = rows, window
        slots = torch.arange(rows, device=positions.device) if isinstance(rows, int) else rows
        self._places = (slots[:, None] * (self.capacity + 1) + positions).view(-1)

    def update(self, keys: Any, values: Any, layer: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Store [B, heads, T, head size] of a layer; what that layer reads: [B, heads, window, head size]."""
        while len(self._keys) <= layer:
            self._keys.append(self._made(keys))
            self._values.append(self._made(values))
        return self._stored(self._keys[layer], keys), self._stored(self._values[layer], values)

    def copy(self, sources: list[int], targets: list[int], length: int) -> None:
        """Copy the first `length` tokens from slots to slots, two lists of one length."""
        for tensor in (*self._keys, *self._values):
            tensor[targets, :length] = tensor[sources, :length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Asked by models that number positions themselves; they are always given here."""
        return 0

    def _stored(self, tensor: Any, new: Any) -> Any:
        tensor.view(-1, *tensor.shape[2:])[self._places] = new.transpose(1, 2).flatten(0, 1)
        held = tensor[: self._rows] if isinstance(self._rows, int) else tensor[self._rows]
        return held[:, : self._window].transpose(1, 2)

    def _made(self, like: Any) -> Any:
        return like.new_zeros(self.slots, self.capacity + 1, like.shape[1], like.shape[3])

    def _enlarged(self, tensor: Any, slots: int, capacity: int) -> Any:
        larger = tensor.new_zeros(slots, capacity + 1, *tensor.shape[2:])
        larger[: tensor.shape[0], : tensor.shape[1] - 1] = tensor[:, :-1]
        return larger


def _grown(present: int, needed: int, step: int, most: int) -> int:
    if needed <= present:
        return present
    return max(needed, min(most, max(2 * present, -(-needed // step) * step)))
