"""Value families for inputs and parameters: what tests with default values never see.

A candidate that is right only for values in [0, 1), or only while gamma is 1 and beta is 0,
fails here. Every family keeps shapes, dtypes and strides. Integers, booleans and indices stay in
their range: they are only redrawn by the program itself. Does not cover other shapes or layouts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection
from typing import Any

import torch

from kernel_lsp.evaluator.tensors import as_stored, map_tensors, with_arithmetic

Family = Callable[[torch.Tensor, torch.Generator], torch.Tensor]


def _as_given(values: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    return values


def shift_values(values: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """The values shifted by three spreads, so that signs and means change."""
    return values - 3 * _spread(values)


def _negate_values(values: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    return -values


def _scaled_up(values: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    return values * 32


def _scaled_down(values: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    return values / 1024


def heavy_tailed(values: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """The values centered, then stretched by a log-normal factor: a few entries dominate."""
    stretch = torch.exp(_normal(values, draw))
    return (values - _mean(values)) * stretch.to(values.dtype)


def zeros_and_repeats(values: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """A third exact zeros, a third one repeated value (ties), a sixth multiples of a quarter (what
    rounds half up and what rounds half to even differ there, and so do bounds that are taken in
    or not)."""
    kind = torch.rand(values.shape, generator=draw, device=draw.device).to(values.device)
    tied = values.flatten()[:1] if values.numel() else values.new_zeros(1)
    quarters = torch.round(values * 4) / 4
    others = torch.where(kind < 5 / 6, quarters, values)
    return torch.where(
        kind < 1 / 3, torch.zeros_like(values), torch.where(kind < 2 / 3, tied, others)
    )


TIED = "zeros_and_repeats"
FAMILIES: dict[str, Family] = {
    "as_given": _as_given,
    "shifted": shift_values,
    "negated": _negate_values,
    "heavy_tailed": heavy_tailed,
    TIED: zeros_and_repeats,
    "scaled_up": _scaled_up,
    "scaled_down": _scaled_down,
    "as_given_again": _as_given,
}
INFINITE, NOT_A_NUMBER, EXTREME = "infinite", "not_a_number", "extreme"
EDGES = (INFINITE, NOT_A_NUMBER, EXTREME)
"""Families with a few values at the edge of what a type holds; see `numerics.compare_edges`."""
PLACES = 4
"""Elements of one tensor that each special value takes."""


def special_values(dtype: torch.dtype, family: str) -> list[float]:
    """What stands in a tensor of this type in a family of edges."""
    if family == INFINITE:
        return [math.inf, -math.inf]
    if family == NOT_A_NUMBER:
        return [math.nan]
    info = torch.finfo(dtype)
    return [info.max, -info.max, info.smallest_normal / 4, 0.0, -0.0]


def with_edges(values: torch.Tensor, family: str, draw: torch.Generator) -> torch.Tensor:
    """``values`` with special ones at a few places, in one row or some: others must stay as they
    are. Among the largest and smallest one row is zero, as padding is."""
    if not values.dtype.is_floating_point or values.dtype.itemsize < 2 or values.numel() < 2:
        return values
    made = values.detach().clone().flatten()
    special = special_values(values.dtype, family)
    count = max(1, min(PLACES, values.numel() // (4 * len(special))))
    places = torch.randint(
        made.numel(), (count * len(special),), generator=draw, device=draw.device
    )
    kinds = torch.tensor(special * count, dtype=torch.float64)
    made[places.to(made.device)] = kinds.to(made.device, made.dtype)
    made = made.view(values.shape)
    if family == EXTREME and values.dim() > 1 and math.prod(values.shape[:-1]) > 1:
        rows = made.view(-1, values.shape[-1])
        rows[int(torch.randint(len(rows), (1,), generator=draw, device=draw.device))] = 0.0
    return made


IN_RANGE = ("as_given", "as_given_again", "as_given_once_more", "as_given_at_last")
"""For programs whose floating inputs are probabilities or indices: leaving the range is an error
there."""


def vary(arguments: Any, family: str, draw: torch.Generator, fixed: Collection[int] = ()) -> Any:
    """Nested arguments with every floating tensor mapped by the family; ``fixed``: numbers of
    tensors that keep their values (masks, tables)."""
    change, numbers = FAMILIES.get(family, _as_given), itertools.count()
    if family in EDGES:

        def change(values: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
            return with_edges(values, family, draw)

    def varied(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if next(numbers) in fixed else _vary_tensor(tensor, change, draw)

    return map_tensors(varied, arguments)


def _vary_tensor(tensor: torch.Tensor, change: Family, draw: torch.Generator) -> torch.Tensor:
    if not tensor.dtype.is_floating_point or change is _as_given:
        return tensor
    changed = change(with_arithmetic(tensor.detach()), draw)
    changed = as_stored(changed, tensor.dtype)
    if 0 not in tensor.stride() and not tensor.is_contiguous():
        changed = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        ).copy_(changed)
    return changed.requires_grad_(tensor.requires_grad)


def random_state(module: torch.nn.Module, draw: torch.Generator) -> dict[str, torch.Tensor]:
    """A state_dict like the module's own, with no value left at its default.

    Parameters keep their scale; constant ones (gamma 1, beta 0) get spread. Running means move and
    running variances stay positive. Other buffers (masks, tables, counters) are structure: kept.
    """
    parameters = dict(module.named_parameters(remove_duplicate=False))
    state = module.state_dict()
    for name, old in state.items():
        if not isinstance(old, torch.Tensor) or not old.dtype.is_floating_point or not old.numel():
            continue
        if name in parameters:
            state[name] = _redraw(old, draw)
        elif name.endswith("running_mean"):
            state[name] = (0.3 * _normal(old, draw)).to(old)
        elif name.endswith("running_var"):
            state[name] = torch.exp(0.5 * _normal(old, draw)).to(old)
    return state


def _redraw(old: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    spread, center = float(_spread(old)), float(_mean(old))
    noise = _normal(old, draw)
    if old.numel() == 1 and center > 0:  # a temperature or an epsilon may have to stay positive
        new = center * torch.exp(0.3 * noise)
    elif spread > 1e-6 * abs(center):
        new = center + spread * noise
    else:  # gamma, beta, layer scale: constant by default
        new = center + (0.5 * abs(center) or 0.2) * noise
    return as_stored(new, old.dtype).to(old)


def _normal(like: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    made = torch.randn(like.shape, generator=draw, dtype=torch.float32, device=draw.device)
    return made.to(like.device)


def _spread(values: torch.Tensor) -> torch.Tensor:
    return values.detach().double().std(unbiased=False).nan_to_num().to(values.dtype)


def _mean(values: torch.Tensor) -> torch.Tensor:
    return values.detach().double().mean().nan_to_num().to(values.dtype)
