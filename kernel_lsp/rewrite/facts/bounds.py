"""Arithmetic of bounds that the rules of transfer_functions.py share: what rounding and overflow do
to a range."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from kernel_lsp.rewrite.facts.tensors import INF, TensorFact


def like(base: TensorFact, fact: TensorFact) -> TensorFact:
    """``base`` with the bounds of ``fact``; it is known to hold whole numbers if either is."""
    return replace(
        base,
        lo=fact.lo,
        hi=fact.hi,
        may_be_nan=fact.may_be_nan,
        may_be_inf=fact.may_be_inf,
        integer=fact.integer or base.integer,
    )


def round_to_dtype(dtype: torch.dtype | None, value: float) -> float:
    """The number as the dtype stores it."""
    if dtype is None or not dtype.is_floating_point or not math.isfinite(value):
        return value
    return float(torch.tensor(value, dtype=dtype).item())


def widen_bounds(base: TensorFact, lo: float, hi: float, *, nan: bool, inf: bool) -> TensorFact:
    """Bounds moved outward where rounding could cross them; overflow makes infinity possible."""
    if math.isnan(lo) or math.isnan(hi):
        lo, hi = -INF, INF
    if base.dtype is not None and base.dtype.is_floating_point:
        info = torch.finfo(base.dtype)
        lo = lo if round_to_dtype(base.dtype, lo) == lo else lo - abs(lo) * 2 * info.eps
        hi = hi if round_to_dtype(base.dtype, hi) == hi else hi + abs(hi) * 2 * info.eps
        inf = inf or lo < info.min or hi > info.max
        return replace(base, lo=lo, hi=hi, may_be_nan=nan, may_be_inf=inf)
    return replace(base, lo=base.lo, hi=base.hi)  # whole numbers wrap around: no bound is safe


def operand(value: Any, dtype: torch.dtype | None) -> TensorFact:
    """A literal or a tensor as a fact."""
    if isinstance(value, TensorFact):
        return value
    number = round_to_dtype(dtype, float(value))
    inf, nan = math.isinf(number), math.isnan(number)
    whole = not (inf or nan) and number == math.floor(number)
    return TensorFact(lo=number, hi=number, may_be_nan=nan, may_be_inf=inf, integer=whole)
