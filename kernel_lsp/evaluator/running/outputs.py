"""How far two outputs are apart, seen quickly: it chooses what the judge looks at, and decides
nothing.

Bound before a candidate is loaded, like clock and random numbers (timing.py).
"""

from __future__ import annotations

import math
from typing import Any

import torch

from kernel_lsp.evaluator.tensors import tensor_leaves

_norm = torch.linalg.vector_norm


def norms_of(output: Any) -> list[float]:
    """The norm of every tensor in an output; one number at least."""
    return [_size(t.detach()) for t in tensor_leaves(output)] or [0.0]


def num_bytes(output: Any) -> int:
    """Bytes of all tensors of an output."""
    return sum(t.numel() * t.dtype.itemsize for t in tensor_leaves(output))


def _size(tensor: torch.Tensor) -> float:
    """Euclidean norm, in at least float32."""
    if tensor.is_complex():
        tensor = tensor.abs()
    if not tensor.is_floating_point() or tensor.dtype.itemsize == 1:
        tensor = tensor.double()
    return float(
        _norm(tensor, dtype=torch.float64 if tensor.dtype == torch.float64 else torch.float32)
    )


def apart(one: float, other: float) -> float:
    """Relative difference; two that are not finite in the same way are equal."""
    if one == other or (one != one and other != other):
        return 0.0
    if not math.isfinite(one - other):
        return math.inf
    return abs(one - other) / max(abs(one), abs(other))


def is_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both are within 1 % of the norm: tells a stale result, not an inaccurate one."""
    if not other.dtype.is_floating_point:
        return torch.equal(one, other)
    a, b = one.double().nan_to_num(), other.detach().double().nan_to_num()
    return float((a - b).norm()) <= 0.01 * float(b.norm())
