"""Where a candidate's inputs lie: storage with guard bands, at old or new addresses, checked after
the call.

Inputs lie in storage that is reused, as new objects with fresh version counters: nothing but the
values tells a memo that they have changed. Around every input, and in the gaps between its rows,
lies poison: 0xFF bytes (NaN, -1), at new addresses 0x7F (huge), so that what reads there is wrong
and what writes there is seen. Bands are 4 KiB, which also keeps the alignment that an allocator
gives. Does not cover: expanded inputs (they overlap themselves and are only compared), reads that
do not change a result, writes beyond a band."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch

from kernel_lsp.evaluator.tensors import OFFSETS, map_tensors, same_bits, span

BAND_BYTES = 4096
POISON, OTHER_POISON = 0xFF, 0x7F


@dataclass(frozen=True, slots=True)
class PlacedInput:
    """One input and what its whole storage held before the call."""

    tensor: torch.Tensor
    room: torch.Tensor
    """All bytes of its storage; for an expanded input the tensor itself."""
    before: torch.Tensor


class Memory:
    """The inputs of one worker."""

    def __init__(self, place: str) -> None:
        self.place_name = place
        self.rooms: dict[tuple[Any, ...], torch.Tensor] = {}
        self.placed: list[PlacedInput] = []

    def place(self, arguments: Any, *, fresh: bool) -> Any:
        """Arguments on the device; ``fresh``: at new addresses with other poison around them."""
        self.placed = []
        counter = itertools.count()
        return map_tensors(lambda tensor: self._place(tensor, next(counter), fresh), arguments)

    def problems(self, writes: Collection[int] = ()) -> list[dict[str, str]]:
        """What the call wrote into its inputs or around them; ``writes``: inputs that it should
        write."""
        found = []
        for number, placed in enumerate(self.placed):
            if number in writes or same_bits(placed.room, placed.before):
                continue
            touched = not same_bits(placed.tensor, _like(placed.tensor, placed.before))
            if touched:
                found.append(
                    {"name": "inputs-untouched", "detail": "the candidate writes into its inputs"}
                )
            else:
                detail = "the candidate writes outside its inputs, where other tensors may lie"
                found.append({"name": "guard-bands", "detail": detail})
        return found

    def _place(self, tensor: torch.Tensor, index: int, fresh: bool) -> torch.Tensor:
        if 0 in tensor.stride() or not tensor.numel():
            moved = tensor.detach().to(self.place_name).requires_grad_(tensor.requires_grad)
            self.placed.append(PlacedInput(moved, moved, moved.detach().clone()))
            return moved
        offset = tensor.storage_offset() % OFFSETS
        size = (offset + span(tensor.shape, tensor.stride())) * tensor.element_size()
        room = self._room(index, tensor.dtype, size, fresh)
        storage, start = room.untyped_storage(), BAND_BYTES // tensor.element_size() + offset
        with torch.no_grad():
            made = torch.empty(0, dtype=tensor.dtype, device=self.place_name)
            made.set_(storage, start, tensor.shape, tensor.stride())
            made.copy_(tensor)
            fresh_object = torch.empty(0, dtype=tensor.dtype, device=self.place_name)
            fresh_object.set_(storage, start, tensor.shape, tensor.stride())
        self.placed.append(PlacedInput(fresh_object, room, room.clone()))
        return fresh_object.requires_grad_(tensor.requires_grad)

    def _room(self, index: int, dtype: torch.dtype, size: int, fresh: bool) -> torch.Tensor:
        """Poisoned bytes: two bands and, rounded up, what the tensor needs."""
        total = 2 * BAND_BYTES + -(-size // BAND_BYTES) * BAND_BYTES
        key = (index, dtype, total)
        if fresh:
            return torch.full((total,), OTHER_POISON, dtype=torch.uint8, device=self.place_name)
        if key not in self.rooms:
            self.rooms[key] = torch.empty(total, dtype=torch.uint8, device=self.place_name)
        return self.rooms[key].fill_(POISON)


def _like(tensor: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
    """The values that ``tensor`` had while its storage held ``room``."""
    if room.dtype is not torch.uint8 or room.shape == tensor.shape:
        return room
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    with torch.no_grad():
        return made.set_(
            room.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
        )
