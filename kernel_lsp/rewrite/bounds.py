"""Arithmetic of bounds that the rules of transfer.py share: what rounding and overflow do to a range."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from kernel_lsp.rewrite.facts import INF, Fact


def like(base: Fact, fact: Fact) -> Fact:
    return replace(
        base,
        lo=fact.lo,
        hi=fact.hi,
        may_be_nan=fact.may_be_nan,
        may_be_inf=fact.may_be_inf,
        integer=fact.integer or base.integer,
    )


def rounded(dtype: torch.dtype | None, value: float) -> float:
    """The number as the dtype stores it."""
    if dtype is None or not dtype.is_floating_point or not math.isfinite(value):
        return value
    return float(torch.tensor(value, dtype=dtype).item())


def widened(base: Fact, lo: float, hi: float, *, nan: bool, inf: bool) -> Fact:
    """Bounds moved outward where rounding could cross them; overflow makes infinity possible."""
    if math.isnan(lo) or math.isnan(hi):
        lo, hi = -INF, INF
    if base.dtype is not None and base.dtype.is_floating_point:
        info = torch.finfo(base.dtype)
        lo = lo if rounded(base.dtype, lo) == lo else lo - abs(lo) * 2 * info.eps
        hi = hi if rounded(base.dtype, hi) == hi else hi + abs(hi) * 2 * info.eps
        inf = inf or lo < info.min or hi > info.max
        return replace(base, lo=lo, hi=hi, may_be_nan=nan, may_be_inf=inf)
    return replace(base, lo=base.lo, hi=base.hi)  # whole numbers wrap around: no bound is safe


def operand(value: Any, dtype: torch.dtype | None) -> Fact:
    """A literal or a tensor as a fact."""
    if isinstance(value, Fact):
        return value
    number = rounded(dtype, float(value))
    inf, nan = math.isinf(number), math.isnan(number)
    whole = not (inf or nan) and number == math.floor(number)
    return Fact(lo=number, hi=number, may_be_nan=nan, may_be_inf=inf, integer=whole)
