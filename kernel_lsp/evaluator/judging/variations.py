"""What a trial varies besides values: memory layout, batch size, the way in which parameters
change.

A candidate that is right only for contiguous inputs, only for the batch size that it was written
for, or only for the parameters that it saw first, fails here. What the *reference* does not accept
is not asked. Does not cover: other sizes than the first dimension's; other dtypes."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Collection
from typing import Any

import torch

from kernel_lsp.evaluator.tensors import map_tensors, tensor_leaves

LAYOUTS = ("transposed", "sliced", "offset")
"""The last asks least: it is for references that refuse the others."""
ALIGNMENT = 16
DELICATE = ("attention", "Attention", "Transformer")
"""Names in a reference whose inputs stay aligned on a GPU: torch's own attention kernels fault on
bf16 rows that begin elsewhere (cudaErrorMisalignedAddress, torch 2.11 on an H200), and a fault
ends the judge."""
UPDATES = ("load_state_dict", "copy", "data", "round_trip")
"""load_state_dict; copy_() under no_grad, as an optimizer steps; a new p.data; through float64 and
back."""
BIG = 2**20
"""Elements of all arguments together above which a trial must not cost a full run: layout and
batch size are then varied in one trial of about this many elements."""


def relay_memory(tensor: torch.Tensor, layout: str, *, aligned: bool = False) -> torch.Tensor:
    """The same values in other memory, one element into its storage: ``transposed`` (last two
    dimensions), ``sliced`` (gaps of half a row between rows: who ignores them reads other numbers,
    not nearly the same ones), ``offset`` (contiguous). Expanded and one-element tensors stay.

    ``aligned``: every row begins at a multiple of 16 bytes all the same, where rows have such a
    length."""
    if tensor.numel() < 2 or 0 in tensor.stride() or layout == "as_given":
        return tensor
    shape, values = tensor.shape, tensor.detach()
    into = max(1, ALIGNMENT // tensor.element_size()) if aligned else 1
    if layout == "offset":
        made = values.new_zeros(values.numel() + into)[into:].view(shape)
    elif values.dim() < 2:
        made = values.new_zeros(2 * values.numel() + into)[into::2]
    elif layout == "transposed":
        turned = (*shape[:-2], shape[-1], shape[-2])
        made = values.new_zeros(values.numel() + into)[into:].view(turned).transpose(-1, -2)
    else:
        gap = 3 * into + shape[-1] // 2 // into * into
        made = values.new_zeros(*shape[:-1], shape[-1] + gap)[..., into : shape[-1] + into]
    return made.copy_(values).requires_grad_(tensor.requires_grad)


def relay_weights(weights: torch.Tensor, layout: str) -> torch.Tensor:
    """Weights of gradients as a program may pass them on: ``transposed``, or ``expanded``, where
    all are one number, as after ``sum()``."""
    if layout == "expanded":
        return weights.flatten()[0].expand(weights.shape) if weights.numel() else weights
    return relay_memory(weights, layout)


def batches(arguments: Any) -> list[tuple[int, ...]]:
    """Which tensors might share a batch dimension, likeliest first: places among the arguments'
    tensors."""
    tensors = tensor_leaves(arguments)
    sized = [i for i, t in enumerate(tensors) if t.dim() and t.shape[0]]
    first = next((i for i in sized if tensors[i].dtype.is_floating_point), None)
    if first is None:
        return []
    alike = tuple(i for i in sized if tensors[i].shape[0] == tensors[first].shape[0])
    return [alike, (first,)] if len(alike) > 1 else [alike]


def sizes(arguments: Any, which: tuple[int, ...]) -> list[int]:
    """Other sizes of the batch dimension that are worth a trial, the smallest first."""
    tensors = tensor_leaves(arguments)
    now, elements = tensors[which[0]].shape[0], sum(t.numel() for t in tensors)
    if elements > BIG:
        return [max(1, now * BIG // elements)] if now > 1 else []
    return [n for n in sorted({now - 1, now // 2 + 1, now + 1, 2 * now + 1}) if n > 1 and n != now]


def change_batch(arguments: Any, which: tuple[int, ...], size: int, draw: torch.Generator) -> Any:
    """Arguments whose tensors at ``which`` have ``size`` rows, drawn from their own."""
    now = tensor_leaves(arguments)[which[0]].shape[0]
    rows = torch.randint(now, (size,), generator=draw, device=draw.device)
    places = itertools.count()

    def pick(tensor: torch.Tensor) -> torch.Tensor:
        if next(places) not in which:
            return tensor
        return (
            tensor.detach()
            .index_select(0, rows.to(tensor.device))
            .requires_grad_(tensor.requires_grad)
        )

    return map_tensors(pick, arguments)


Group = tuple[tuple[int, int], ...]
"""Dimensions that have one size: (place among the arguments' tensors, dimension)."""


def groups(arguments: Any) -> list[Group]:
    """Which dimensions might change their size together besides the batch, likeliest first."""
    tensors = tensor_leaves(arguments)
    first = next((i for i, t in enumerate(tensors) if t.dim() and t.dtype.is_floating_point), None)
    if first is None:
        return []
    found: dict[Group, None] = {}
    for dim in range(tensors[first].dim() - 1, -1, -1):
        size = tensors[first].shape[dim]
        from_end = dim - tensors[first].dim()
        alike = [(i, t.dim() + from_end) for i, t in enumerate(tensors) if t.dim() >= -from_end]
        same = tuple((i, d) for i, d in alike if tensors[i].shape[d] == size)
        every = tuple(
            (i, d) for i, t in enumerate(tensors) for d in range(t.dim()) if t.shape[d] == size
        )
        if size > 1:
            found |= dict.fromkeys((same, ((first, dim),), every))
    return list(found)


def other_sizes(arguments: Any, group: Group) -> list[int]:
    """Sizes at the edges: 0, 1, the neighbors, a prime; of big workloads only those that make it
    small."""
    tensors = tensor_leaves(arguments)
    now, elements = tensors[group[0][0]].shape[group[0][1]], sum(t.numel() for t in tensors)
    most = now + 1 if elements <= BIG else max(1, now * BIG // elements)
    return sorted(
        {n for n in (0, 1, now - 1, now + 1, _prime(min(most, now - 1))) if n != now and n <= most}
    )


def _prime(below: int) -> int:
    """The largest prime up to ``below``; 1 where there is none."""
    primes = (n for n in range(below, 1, -1) if all(n % d for d in range(2, math.isqrt(n) + 1)))
    return next(primes, 1)


def resize_inputs(arguments: Any, group: Group, size: int, draw: torch.Generator) -> Any:
    """Arguments whose dimensions in ``group`` have another size, made of their own values."""
    places = itertools.count()

    def pick(tensor: torch.Tensor) -> torch.Tensor:
        place = next(places)
        made = tensor.detach()
        for dim in (d for i, d in group if i == place):
            which = torch.randint(tensor.shape[dim], (size,), generator=draw, device=draw.device)
            made = made.index_select(dim, which.to(tensor.device))
        return made.requires_grad_(tensor.requires_grad)

    return map_tensors(pick, arguments)


def overfull(
    arguments: Any, which: tuple[int, ...], rows: torch.Tensor, draw: torch.Generator
) -> tuple[Any, list[int | None]]:
    """Arguments whose tensors at ``which`` have these rows, followed by others, drawn at random;
    and how many of each are its own (`first_rows`). A reference that counts rows by anything else
    than these tensors reads on behind them, and answers otherwise when others stand there."""
    now = tensor_leaves(arguments)[which[0]].shape[0]
    places = itertools.count()
    own: list[int | None] = []

    def pick(tensor: torch.Tensor) -> torch.Tensor:
        kept = next(places) not in which
        if not tensor.dim() or not tensor.shape[0] or (kept and not tensor.is_contiguous()):
            own.append(None)
            return tensor
        count = tensor.shape[0]
        mine = torch.arange(count, device=draw.device) if kept else rows
        more = max(1, max(now, len(rows)) - len(mine))
        behind = torch.randint(count, (more,), generator=draw, device=draw.device)
        own.append(len(mine))
        made = tensor.detach().index_select(0, torch.cat([mine, behind]).to(tensor.device))
        return made.requires_grad_(tensor.requires_grad)

    return map_tensors(pick, arguments), own


def first_rows(arguments: Any, counts: list[int | None]) -> Any:
    """The arguments with so many rows of each tensor, in the memory of all of them; None: all."""
    left = iter(counts)

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        count = next(left)
        return (
            tensor
            if count is None
            else tensor.detach()[:count].requires_grad_(tensor.requires_grad)
        )

    return map_tensors(cut, arguments)


def with_row_of(tensor: torch.Tensor, other: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """``tensor`` with one row, never the first, taken from ``other``; what has one row or overlaps
    stays."""
    if (
        not tensor.dim()
        or tensor.shape[0] < 2
        or 0 in tensor.stride()
        or tensor.shape != other.shape
    ):
        return tensor
    row = int(torch.randint(1, tensor.shape[0], (), generator=draw, device=draw.device))
    made = tensor.detach().clone()
    made[row] = other.detach()[row]
    return made.requires_grad_(tensor.requires_grad)


def is_ordered(tensor: torch.Tensor) -> bool:
    """Whether its numbers are one row in ascending order, as bounds of intervals are."""
    return tensor.dim() == 1 and tensor.numel() > 2 and bool((tensor.diff() >= 0).all())


def in_order(arguments: Any, places: Collection[int]) -> Any:
    """The arguments with the tensors of these numbers in ascending order; what is not a number,
    and has none, is infinite."""
    numbers = itertools.count()

    def ordered(tensor: torch.Tensor) -> torch.Tensor:
        if next(numbers) not in places:
            return tensor
        values = torch.where(tensor.isnan(), torch.inf, tensor.detach())
        return values.sort().values.requires_grad_(tensor.requires_grad)

    return map_tensors(ordered, arguments)


def updates(state: dict[str, torch.Tensor], count: int, pick: random.Random) -> list[str]:
    """How the parameters change before each trial: the first by load_state_dict, then every way in
    turn."""
    if not state:
        return ["none"] * count
    floating = {t.dtype for t in state.values() if t.dtype.is_floating_point or t.dtype.is_complex}
    ways = [way for way in UPDATES if way != "round_trip" or _survives_float64(floating)]
    order: list[str] = []
    while len(order) < count:
        order += pick.sample(ways, len(ways))
    return ["load_state_dict", *order[: count - 1]]


def _survives_float64(dtypes: set[torch.dtype]) -> bool:
    return len(dtypes) == 1 and dtypes <= {torch.float32, torch.float16, torch.bfloat16}
