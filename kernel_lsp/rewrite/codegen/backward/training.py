"""Fused kernels in training: which template runs a backward region, and whether forward and
backward together are faster than eager.

Rates and passes are the cost model's (regions/cost.py); nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from kernel_lsp.errors import RewriteError
from kernel_lsp.rewrite.codegen.backward import kernels as backward
from kernel_lsp.rewrite.codegen.core.ir import Region
from kernel_lsp.rewrite.codegen.core.nodes import Unsupported
from kernel_lsp.rewrite.codegen.core.space import RegionShape
from kernel_lsp.rewrite.codegen.regions import cost, templates
from kernel_lsp.rewrite.codegen.regions.lower import LoweredRegion
from kernel_lsp.rewrite.generated import GeneratedSource
from kernel_lsp.rewrite.graph import Graph

MAX_COLUMNS = 8192
"""Longest row that a backward keeps in registers: it holds the inputs and the incoming gradient at
once."""
BACKWARD = "backward_"
"""Before the name of a parameter that is the backward kernel's own."""
MIN_ROWS = 64
"""Fewer rows leave most of the device idle while each is walked by one program."""


def with_backward(
    graph: Graph,
    nodes: Sequence[fx.Node],
    lowered: LoweredRegion,
    space: RegionShape,
    forward: GeneratedSource,
    choice: Mapping[str, Any],
) -> GeneratedSource:
    """The forward's source with a backward beside it. Raises RewriteError when the group has no
    backward; `pays` has said so before.

    ``choice``: of :func:`parameters`."""
    made = backward.differentiable(
        graph,
        nodes,
        lowered,
        forward,
        lambda region, summary: _emit(region, space, summary, choice),
    )
    if made is None:
        raise RewriteError(
            f"{forward.name} has no backward", "keep the original path while training"
        )
    return made


def parameters(
    graph: Graph, nodes: Sequence[fx.Node], lowered: LoweredRegion, space: RegionShape
) -> dict[str, list[Any]]:
    """Finite search space of the backward kernel, default first; empty where there is none."""
    planned = backward.plan(graph, nodes, lowered)
    if planned is None or not planned.region.outputs:
        return {}
    template = _template(planned.region, space)
    found = template.parameters if template is not None else {}
    return {f"{BACKWARD}{name}": choices for name, choices in found.items()}


def is_trainable(
    graph: Graph, nodes: Sequence[fx.Node], lowered: LoweredRegion, space: RegionShape
) -> bool:
    """Every operation has a derivative, and a template runs them."""
    if graph.origin.hides_gradients:
        return False
    planned = backward.plan(graph, nodes, lowered)
    return planned is not None and (
        not planned.region.outputs or _template(planned.region, space) is not None
    )


def benefit(
    graph: Graph,
    nodes: Sequence[fx.Node],
    lowered: LoweredRegion,
    space: RegionShape,
    forward_s: float,
    launches: int,
    least: float,
) -> float:
    """Share of forward and backward that is saved; 0 when less than ``least`` of the nodes' own
    time. ``forward_s``, ``launches``: of the forward kernels."""
    ours, planned = forward_s, backward.plan(graph, nodes, lowered)
    assert planned is not None, "ask is_trainable first"
    region = planned.region
    if region.outputs and (template := _template(region, space)) is not None:
        ours += cost.region_seconds(graph, region, template.launches, template.passes)
        launches += template.launches
    ours += sum(
        cost.summing_seconds(graph, region, g.stored) for g in planned.gradients if g.is_summed
    )
    return cost.trained_benefit(graph, nodes, ours, launches, least)


def _template(region: Region, space: RegionShape) -> templates.Template | None:
    """None where rows are too long for one program each and reductions depend on one another."""
    as_space = RegionShape(sizes=space.sizes, reduced=_reduced_dims(region, space))
    try:
        template = templates.template_for(region, as_space)
    except Unsupported:
        return None
    columns = templates.points(region.dims[axis].size for axis in region.reduced)
    lines = templates.points(region.dims[axis].size for axis in region.row_axes)
    if template.kind != "rows":
        return template
    if lines < MIN_ROWS and columns > MAX_COLUMNS:
        return None
    block = template.parameters["BLOCK_SIZE"][0]
    if block == 0 and columns > MAX_COLUMNS:
        return replace(
            template, parameters={"BLOCK_SIZE": [4096], "num_warps": [16], "BLOCK_ROWS": [1]}
        )
    return template


def _reduced_dims(region: Region, space: RegionShape) -> tuple[int, ...]:
    if not backward.by_rows(region):
        return ()
    return space.reduced or (len(space.sizes) - 1,)


def _emit(
    region: Region, space: RegionShape, summary: str, choice: Mapping[str, Any]
) -> GeneratedSource | None:
    template = _template(region, space)
    if template is None:
        return None
    chosen = {
        name: choice.get(f"{BACKWARD}{name}", choices[0])
        for name, choices in template.parameters.items()
    }
    return templates.emit(region, template, chosen, summary)
