"""What is proved about a tensor's values: abstract interpretation over the graph.

A fact holds for every input and every parameter value, NaN and infinity included: ``lo`` and ``hi``
bound the elements that are not NaN, and ``may_be_nan`` says whether NaN can occur.
Covered: constants, ranges through pointwise and shape ops, softmax, comparisons, whole numbers.
The rules, one per operation, are in transfer_functions.py.
Not covered: relations between two tensors, ranges through matrix products, parameter values
(they can change between two calls, so nothing is ever concluded from them).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

INF = math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorFact:
    """See the top of the file. Shapes are sizes of the workload."""

    shape: tuple[int, ...] = ()
    dtype: torch.dtype | None = None
    stride: tuple[int, ...] = ()
    lo: float = -INF
    hi: float = INF
    may_be_nan: bool = True
    may_be_inf: bool = True
    """Some element can be +inf or -inf."""
    integer: bool = False
    """Every element is a whole number (or NaN, infinity)."""

    @property
    def const(self) -> float | None:
        """The value of every element, when they are all the same known number."""
        return self.lo if self.lo == self.hi and self.finite else None

    @property
    def finite(self) -> bool:
        """Whether it is proved to hold neither NaN nor infinity."""
        return not self.may_be_nan and not self.may_be_inf

    @property
    def singleton_dims(self) -> tuple[int, ...]:
        """The axes of size 1."""
        return tuple(i for i, size in enumerate(self.shape) if size == 1)

    @property
    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def floating(self) -> bool:
        """Whether it is of a floating-point type; False for values that are no tensors."""
        return self.dtype is not None and self.dtype.is_floating_point

    @property
    def contiguous(self) -> bool:
        """Whether its elements lie one after the other, the last axis fastest."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    @property
    def channels_last(self) -> bool:
        """Whether the strides are dense NHWC (4-D only); false when contiguous NCHW is the same
        thing."""
        if len(self.shape) != 4 or self.contiguous:
            return False
        _, c, h, w = self.shape
        return self.stride == (c * h * w, 1, w * c, c)


def unknown_fact(value: Any) -> TensorFact:
    """A fact with shape, dtype and layout only; whole numbers and booleans are finite by type."""
    if not isinstance(value, torch.Tensor):
        return TensorFact()
    base = TensorFact(shape=tuple(value.shape), dtype=value.dtype, stride=tuple(value.stride()))
    if value.dtype == torch.bool:
        return replace(base, lo=0.0, hi=1.0, may_be_nan=False, may_be_inf=False, integer=True)
    if not value.dtype.is_floating_point and not value.dtype.is_complex:
        return replace(base, may_be_nan=False, may_be_inf=False, integer=True)
    return base
