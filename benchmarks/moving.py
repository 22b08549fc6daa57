"""The roof of streaming work: kernels that read and write given numbers of bytes, and no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

WIDTH = 4
"""Bytes of an element."""
FORMS = {"4k": (4096, 8), "8k": (8192, 8), "2k": (2048, 4)}
"""Elements of a block and warps."""


@triton.jit
def _move(source, target, n_read, n_written, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """A block of what is read and the share of what is written that belongs to it: the longer of
    both decides how many programs there are."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(source + at, mask=at < n_read, other=0)
    if tl.program_id(0).to(tl.int64) * BLOCK < n_written:
        tl.store(target + at, values, mask=at < n_written)
    else:  # never true: what was loaded must be needed
        tl.store(target + at, values, mask=values == -2147483648)


def movers(read: int, written: int) -> dict[str, Callable[[], Any]]:
    """Kernels by the size of their blocks. All elements of the source are other than the one that
    would be stored."""
    n_read, n_written = read // WIDTH, max(1, written // WIDTH)
    longest = max(n_read, n_written)
    source = torch.ones(longest, dtype=torch.int32, device="cuda")
    target = torch.empty(longest, dtype=torch.int32, device="cuda")

    def mover(block: int, warps: int) -> Callable[[], Any]:
        grid = (triton.cdiv(longest, block),)

        def move() -> Any:
            _move[grid](source, target, n_read, n_written, BLOCK=block, num_warps=warps)
            return target

        return move

    return {name: mover(*sizes) for name, sizes in FORMS.items()}
