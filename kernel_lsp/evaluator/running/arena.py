"""Memory in which the inputs of timed calls are written anew, at another address every time.

Fresh values and fresh addresses mean that nothing can be remembered from the call before, and that
every provider of a round meets the same memory traffic."""

from __future__ import annotations

import random
from typing import Any

import torch

from kernel_lsp.evaluator.tensors import (
    as_stored,
    is_storage,
    map_tensors,
    tensor_leaves,
    with_arithmetic,
)

ALIGNMENT = 512
"""What PyTorch's caching allocator gives; kernels choose wider loads by it."""


class Arena:
    """Memory for the inputs of timed calls: one block, with room to put them elsewhere every
    time."""

    def __init__(self, sets: list[Any], place: str, room: int) -> None:
        self.sets, self.room = sets, room
        self.size = max((sum(map(_padded_bytes, tensor_leaves(one))) for one in sets), default=0)
        block = torch.empty(self.size + room, dtype=torch.uint8, device=place)
        self._storage, self._place = block.untyped_storage(), place

    def offset(self, draw: random.Random) -> int:
        """A random place for the inputs of one round."""
        return draw.randrange(self.last_offset // ALIGNMENT + 1) * ALIGNMENT

    @property
    def last_offset(self) -> int:
        """The farthest place for them."""
        return self.room // ALIGNMENT * ALIGNMENT

    def fill(self, number: int, scale: float, offset: int) -> Any:
        """Arguments with the values of one set times ``scale``, written at ``offset``."""
        at = offset

        def put(source: torch.Tensor) -> torch.Tensor:
            nonlocal at
            if not source.numel():
                return source.detach().clone().requires_grad_(source.requires_grad)
            made = self._put(source, scale, at)
            at += _padded_bytes(source)
            return made

        return map_tensors(put, self.sets[number])

    def _put(self, source: torch.Tensor, scale: float, at: int) -> torch.Tensor:
        """A new tensor object each time: nothing but the values tells a memo that they are new."""
        shape = [
            1 if step == 0 else n for n, step in zip(source.shape, source.stride(), strict=True)
        ]
        values = source.detach().as_strided(shape, source.stride())
        written = self._view(source.dtype, at, shape, source.stride())
        with torch.no_grad():
            if is_storage(source.dtype):
                written.copy_(as_stored(with_arithmetic(values) * scale, source.dtype))
            elif source.dtype.is_floating_point:
                torch.mul(values, scale, out=written)
            else:
                written.copy_(values)
        fresh = self._view(source.dtype, at, source.shape, source.stride())
        return fresh.requires_grad_(source.requires_grad)

    def _view(self, dtype: torch.dtype, at: int, shape: Any, stride: Any) -> torch.Tensor:
        made = torch.empty(0, dtype=dtype, device=self._place)
        return made.set_(self._storage, at // dtype.itemsize, tuple(shape), tuple(stride))


def _padded_bytes(tensor: torch.Tensor) -> int:
    """Bytes that a tensor spans, rounded up to the alignment."""
    if not tensor.numel():
        return 0
    span = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return -(-span * tensor.dtype.itemsize // ALIGNMENT) * ALIGNMENT
