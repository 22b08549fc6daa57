"""Caches that grow by each call: which sizes of the arguments a rewritten forward may leave free.

`growth_of(graph, tensors)` finds the dimension that a call makes longer: a tensor of the arguments
is replaced by a longer one (``keys = torch.cat((keys, new), dim=2)``). `decides_by_length` proves
that the program does not decide by that length: the call runs on fake tensors of which it is a
symbol, and nothing may have asked for its value. Without both, a rewrite holds for one length, and
a decoding loop would take its fast path once. Lengths of 0 and 1 are left to the original path:
such sizes broadcast, and are free of strides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from kernel_lsp.rewrite.graph import FreeLength, Graph, GrowingSize


def growth_of(graph: Graph, tensors: Sequence[torch.Tensor]) -> FreeLength | None:
    """What grows together, by one number; None where nothing does. ``tensors``: all of the
    arguments; another capture is given their places."""
    places = {id(tensor): place for place, tensor in enumerate(tensors)}
    inputs = {one.source: one.value for one in graph.inputs if one.node is not None}
    longer = dict(_longer(graph, inputs))
    if len({(length, after) for _, length, after in longer.values()}) != 1:
        return None
    lead, (_, length, after) = next(iter(longer.items()))
    dims = {places[id(inputs[source])]: dim for source, (dim, _, _) in longer.items()}
    sizes = {}
    for source, value in inputs.items():
        place, last = places[id(value)], value.dim() - 1
        if place in dims:
            sizes[source] = GrowingSize(place=place, dim=dims[place], more=0)
        elif last > 0 and value.shape[last] == after:  # a mask: a column for each key
            sizes[source] = GrowingSize(place=place, dim=last, more=after - length)
    return FreeLength(length=length, lead=lead, sizes=sizes)


def _longer(
    graph: Graph, inputs: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Source of each input that is replaced by a longer one; which dimension that is, and its size
    before and after."""
    leaves = list(graph.outputs[graph.output_spec.num_leaves :])
    for one in graph.origin.replaced:
        count = one.spec.num_leaves if one.spec is not None else 0
        own, leaves = leaves[:count], leaves[count:]
        if count != 1 or one.source not in inputs or not isinstance(own[0], torch.fx.Node):
            continue
        was, now = inputs[one.source].shape, graph.val(own[0]).shape
        other = [dim for dim in range(len(was)) if len(was) == len(now) and was[dim] != now[dim]]
        if len(other) == 1 and 1 < was[other[0]] < now[other[0]]:
            yield one.source, (other[0], was[other[0]], now[other[0]])


def with_length(
    tensors: Sequence[torch.Tensor], free: FreeLength, length: Any
) -> list[torch.Tensor]:
    """The tensors of the arguments for another length, an int or a symbol."""
    made = list(tensors)
    for size in free.sizes.values():
        old = made[size.place]
        shape = list(old.shape)
        shape[size.dim] = length + size.more
        made[size.place] = old.new_empty(shape, requires_grad=old.requires_grad)
    return made


def decides_by_length(call: Callable[[Any], Any], length: int, mode: FakeTensorMode) -> bool:
    """Whether the value of the length is asked for while ``call`` runs on a symbol for it. Unknown
    is yes: what cannot run on a symbol."""
    env = mode.shape_env
    assert isinstance(env, ShapeEnv)
    source = ConstantSource("length")
    symbol = env.create_symbol(length, source=source, dynamic_dim=DimDynamic.DYNAMIC)
    number = env.create_symintnode(symbol, hint=length, source=source)
    try:
        call(number)
    except (Exception, SystemExit):
        return True
    return bool(env.guards)
