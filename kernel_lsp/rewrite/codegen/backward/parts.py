"""Gradients of the parts of a split tensor, written where they belong in the gradient of the whole.

Behind ``a, b = x.chunk(2, -1)`` autograd copies both gradients into a new tensor once more. Where a
kernel reads every part, its Function takes the whole, and the backward kernel writes into views of
one gradient. Covered: splits of the last dimension in pointwise regions."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.core.body import UniqueNames
from kernel_lsp.rewrite.codegen.core.ir import Operand, Output, Region
from kernel_lsp.rewrite.codegen.pointwise import tiled
from kernel_lsp.rewrite.codegen.regions.lower import LoweredRegion
from kernel_lsp.rewrite.graph import argument, is_op
from kernel_lsp.rewrite.printing.calls import Printer

aten = torch.ops.aten
SPLITS = (aten.chunk, aten.split, aten.split_with_sizes, aten.tensor_split)


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitTensor:
    """A tensor of which a kernel reads every part."""

    whole: fx.Node
    name: str
    """The whole's, among the arguments of the function that a program calls."""
    split: fx.Node
    operands: tuple[Operand, ...]
    """The parts, in their order in memory."""

    def statement(self, prefix: str = "") -> str:
        """The parts, or with a prefix those of another tensor, out of the whole."""
        names = ", ".join(f"{prefix}{operand.name}" for operand in self.operands)
        text, _ = Printer("torch.nn.functional", None).call(
            self.split, lambda item, level: f"{prefix}{self.name}"
        )
        return f"{names} = {text}"

    def gradient_lines(self) -> list[str]:
        """A gradient of the whole, and its parts for the kernel to write to."""
        made = f"torch.empty_like({self.name}, memory_format=torch.contiguous_format)"
        return [f"grad_{self.name} = {made}", self.statement("grad_")]


def parts_of(lowered: LoweredRegion) -> tuple[SplitTensor, ...]:
    """Tensors that the region reads by all of their parts."""
    found: dict[fx.Node, dict[int, Operand]] = {}
    for node, operand in zip(lowered.inputs, lowered.region.operands, strict=True):
        if node.target is operator.getitem and is_op(node.args[0], *SPLITS):
            found.setdefault(node.args[0], {})[node.args[1]] = operand
    taken = UniqueNames(operand.name for operand in lowered.region.operands)
    return tuple(
        SplitTensor(
            whole=split.args[0],
            name=taken.fresh(split.args[0].name),
            split=split,
            operands=tuple(operands[index] for index in sorted(operands)),
        )
        for split, operands in found.items()
        if _is_whole(split, operands) and not lowered.order
    )


def _is_whole(split: fx.Node, operands: dict[int, Operand]) -> bool:
    """All of it is read along its last dimension, next to others."""
    rank = split.args[0].meta["val"].dim()
    last = argument(split, "dim", 0) % rank == rank - 1 > 0
    strided = all(operand.inner is not None for operand in operands.values())
    return last and strided and len(operands) == len(split.meta["val"]) > 1


def written_in_place(
    region: Region, found: Iterable[SplitTensor]
) -> tuple[Region, tuple[SplitTensor, ...]]:
    """The backward region with the gradients of these parts as views that it is given, and of
    which parts this holds: those whose gradients it stores, each in a tensor of its own."""
    outputs = {output.name: output for output in region.outputs}
    kept = tuple(p for p in found if all(f"grad_{o.name}" in outputs for o in p.operands))
    if region.reduced or tiled.rows_of(region) is not None:
        return region, ()
    given = {f"grad_{operand.name}": operand.inner for parts in kept for operand in parts.operands}
    made = [replace(o, inner=given[o.name]) if o.name in given else o for o in region.outputs]
    return replace(region, outputs=tuple(made)), kept


def given_outputs(region: Region) -> list[Output]:
    """The region's outputs that are written into a part of a larger tensor."""
    return [output for output in region.outputs if output.inner is not None]


def names(lowered: LoweredRegion, found: Sequence[SplitTensor]) -> list[str]:
    """The names of the arguments of the function that a program calls: wholes where the kernel gets
    their parts."""
    whole = {operand: parts.name for parts in found for operand in parts.operands}
    return list(dict.fromkeys(whole.get(o, o.name) for o in lowered.region.operands))


def inputs(lowered: LoweredRegion, found: Sequence[SplitTensor]) -> list[fx.Node]:
    """The nodes of these arguments."""
    whole = {operand: parts.whole for parts in found for operand in parts.operands}
    pairs = zip(lowered.region.operands, lowered.inputs, strict=True)
    return list(dict.fromkeys(whole.get(operand, node) for operand, node in pairs))
