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
    """Keys and values, [slots, heads, capacity + 1, head size] a layer. The last place is never read: what is written
    for padding goes there. What a head reads lies together: attention of few queries over long contexts is as fast as
    that memory is read."""

    is_compileable = False
    is_sliding = (False,)

    def __init__(self, max_slots: int, max_capacity: int) -> None:
        self.slots = 0
        self.capacity = 0
        self._max = (max_slots, max_capacity)
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._rows: Any = None
        self._positions: Any = None
        self._places: dict[int, Any] = {}
        """Where the new tokens go in a layer, by its heads: [B, heads, T]."""
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
        self._rows, self._positions, self._window = rows, positions[:, None], window
        self._places = {}

    def update(self, keys: Any, values: Any, layer: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Store [B, heads, T, head size] of a layer; what that layer reads: [B, heads, window, head size]."""
        while len(self._keys) <= layer:
            self._keys.append(self._made(keys))
            self._values.append(self._made(values))
        return self._stored(self._keys[layer], keys), self._stored(self._values[layer], values)

    def copy(self, sources: list[int], targets: list[int], length: int) -> None:
        """Copy the first `length` tokens from slots to slots, two lists of one length."""
        to, of = torch.tensor(targets), torch.tensor(sources)
        for tensor in (*self._keys, *self._values):
            tensor[to, :, :length] = tensor[of, :, :length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Asked by models that number positions themselves; they are always given here."""
        return 0

    def _stored(self, tensor: Any, new: Any) -> Any:
        places = self._places.get(new.shape[1])
        if places is None:
            places = self._places[new.shape[1]] = self._placed(new.shape[1])
        tensor.view(-1, tensor.shape[3]).index_put_((places,), new)
        read = tensor[:, :, : self._window]
        return read[: self._rows] if isinstance(self._rows, int) else read[self._rows]

    def _placed(self, heads: int) -> Any:
        device = self._positions.device
        slots = torch.arange(self._rows, device=device) if isinstance(self._rows, int) else self._rows
        first = slots[:, None] * heads + torch.arange(heads, device=device)
        return first[:, :, None] * (self.capacity + 1) + self._positions

    def _made(self, like: Any) -> Any:
        return like.new_zeros(self.slots, like.shape[1], self.capacity + 1, like.shape[3])

    def _enlarged(self, tensor: Any, slots: int, capacity: int) -> Any:
        larger = tensor.new_zeros(slots, tensor.shape[1], capacity + 1, tensor.shape[3])
        larger[: tensor.shape[0], :, : tensor.shape[2] - 1] = tensor[:, :, :-1]
        return larger


def _grown(present: int, needed: int, step: int, most: int) -> int:
    if needed <= present:
        return present
    return max(needed, min(most, max(2 * present, -(-needed // step) * step)))
