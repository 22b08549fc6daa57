"""Matrix products with what follows them: from nodes of the graph to a match, from a match to a
launch."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Proof
from kernel_lsp.rewrite.codegen.core import launching, strides
from kernel_lsp.rewrite.codegen.core.nodes import Unsupported, op_name
from kernel_lsp.rewrite.codegen.matmul import cost as matmul_cost
from kernel_lsp.rewrite.codegen.matmul import tail as matmul_tail
from kernel_lsp.rewrite.codegen.matmul.operands import MatmulProduct, product_of
from kernel_lsp.rewrite.codegen.matmul.plan import MatmulJob, MatmulPlan
from kernel_lsp.rewrite.codegen.matmul.source import emit
from kernel_lsp.rewrite.codegen.regions.lower import LoweredRegion, is_identity
from kernel_lsp.rewrite.codegen.regions.program_names import apply_program_names
from kernel_lsp.rewrite.cost import operations as roofline
from kernel_lsp.rewrite.generated import GUARDED, GeneratedSource, Match
from kernel_lsp.rewrite.graph import Graph

HOPPER = "torch.cuda.get_device_properties(torch.cuda.current_device()).major >= 9"
"""192 KiB of shared memory for the default plan; an A100 has 164. Without the number torch looks
for an accelerator first, which takes the host longer than the rest of the guard."""


def matches(graph: Graph, *, triangular: bool = False) -> list[Match]:
    """Every matrix product that can be generated, each with its longest tail. ``triangular``:
    those of which tril or triu leave a part; without it the others."""
    products = [product for node in graph.nodes if (product := product_of(node)) is not None]
    found = [_match(graph, product) for product in products if product.triangular == triangular]
    return [match for match in found if match is not None]


def _match(graph: Graph, product: MatmulProduct) -> Match | None:
    nodes = _longest_cover(graph, product)
    if nodes is None:
        return None
    plans = matmul_cost.plans(product)
    return Match(
        nodes=tuple(nodes),
        label=graph.label(*nodes),
        summary=_summary(nodes),
        benefit=matmul_cost.benefit(graph, product, nodes, plans[0]),
        plain=False,
        data={
            "nodes": [node.name for node in nodes],
            "parameters": {"plan": [str(plan) for plan in plans]},
        },
    )


def _longest_cover(graph: Graph, product: MatmulProduct) -> list[fx.Node] | None:
    """The product with the longest tail that can be generated and placed."""
    nodes = matmul_tail.grow(graph, product)
    while nodes:
        try:
            lowered = matmul_tail.lower(graph, product, nodes, "fused")
        except Unsupported:
            nodes.pop()
            continue
        placed = launching.place(graph, nodes, lowered.outputs, lowered.inputs) is not None
        if lowered.outputs and placed:  # none: nobody reads it
            return nodes
        nodes.pop()
    return None


def proofs(graph: Graph, match: Match) -> list[Proof]:
    """What holds of the match, each with its reason."""
    product = product_of(match.nodes[0])
    assert product is not None
    sizes = f"[{product.rows}, {product.inner}] by [{product.inner}, {product.cols}]"
    dtype = product.node.meta["val"].dtype
    kept = {
        torch.float32: "two float16 parts hold 22 bits of each number, after a power of two "
        "per row",
    }.get(dtype, f"{dtype} products are added in float32")
    return [
        Proof(
            claim="it is one matrix product for each batch",
            holds=True,
            because=f"schema and shapes: {sizes}",
        ),
        Proof(claim="rounding stays of the class of the dtype", holds=True, because=kept),
        Proof(
            claim="what follows acts element by element",
            holds=True,
            because="schemas of " + ", ".join(match.data["nodes"]),
        ),
        Proof(
            claim="no gradient is lost",
            holds=True,
            because=GUARDED,
        ),
    ]


def estimate(match: Match, choice: dict[str, Any]) -> float:
    """Seconds of the product alone with these parameters."""
    product = product_of(match.nodes[0])
    assert product is not None
    return matmul_cost.seconds(product, MatmulPlan.parse(choice["plan"]))


def apply(graph: Graph, match: Match, choice: dict[str, Any]) -> None:
    """Replace the product and its tail with launches."""
    nodes = [graph.named(name) for name in match.data["nodes"]]
    product = product_of(nodes[0])
    assert product is not None
    defaults = {name: choices[0] for name, choices in match.data["parameters"].items()}
    known = {name: value for name, value in choice.items() if name in defaults}
    chosen = {**defaults, **known}
    lowered = matmul_tail.lower(graph, product, nodes, "fused")
    before = launching.place(graph, nodes, lowered.outputs, lowered.inputs)
    if before is None:
        raise RewriteError(f"{match.label}: a result is needed before its inputs exist")
    kernel = _generate_named(graph, product, nodes, chosen)
    inputs = [
        *lowered.inputs[:2],
        *(_insert_view(graph, lowered, node, before) for node in lowered.inputs[2:]),
    ]
    launching.launch(graph, kernel, inputs, lowered.outputs, before, lowered.order)
    if MatmulPlan.parse(chosen["plan"]).parts and graph.device == "cuda":
        graph.require(
            HOPPER, "stages of both factors need the shared memory of a Hopper multiprocessor"
        )
    if product.node.meta["val"].dtype == torch.float32:
        graph.caveat(
            "infinity times a number 2**38 times smaller than the largest of its row gives NaN"
        )
    if product.triangular:
        graph.caveat(
            "0 * infinity beside the diagonal is no longer computed: fewer NaN for infinite inputs"
        )
    if len(nodes) > 1:
        graph.caveat(
            "intermediate results stay in float32; eager rounds each of them to the tensor's dtype"
        )
    for (
        node
    ) in graph.nodes:  # what a replay of it takes; by its bytes alone it would be far shorter
        if node.meta.get("generated") == kernel:
            taken = matmul_cost.seconds(product, MatmulPlan.parse(chosen["plan"]))
            node.meta["seconds"] = taken + roofline.gpu_rates(graph).overhead_s


def _insert_view(graph: Graph, lowered: LoweredRegion, node: fx.Node, before: fx.Node) -> fx.Node:
    view = lowered.views.get(node)
    return strides.permute_node(graph, node, view, before) if view else node


def _generate_named(
    graph: Graph, product: MatmulProduct, nodes: list[fx.Node], choice: dict[str, Any]
) -> GeneratedSource:
    left, right = matmul_tail.factor_names(graph, product)
    words = dict.fromkeys(_word(node) for node in nodes if not is_identity(node) and op_name(node))
    stem = "fused_" + "_".join(list(words)[:4])

    def make(name: str) -> GeneratedSource:
        job = MatmulJob(
            product=product,
            region=apply_program_names(
                graph, matmul_tail.lower(graph, product, nodes, name)
            ).region,
            left=left,
            right=right,
            tile=MatmulPlan.parse(choice["plan"]),
            float32=product.node.meta["val"].dtype == torch.float32,
            summary=f"{_summary(nodes).capitalize()}.",
            kept=nodes[-1].meta["val"].dim() == product.node.meta["val"].dim(),
        )
        return emit(job)

    return launching.make_named(graph, stem, make)


def _word(node: fx.Node) -> str:
    return "matmul" if op_name(node) in ("mm", "bmm", "addmm") else op_name(node).strip("_")


def _summary(nodes: list[fx.Node]) -> str:
    words = [_word(node) for node in nodes if not is_identity(node) and op_name(node)]
    exact = nodes[0].meta["val"].dtype == torch.float32
    how = "a float32 product on tensor cores" if exact else "the product"
    tail = words[1:] if len(words) <= 6 else [*words[1:3], "…", *words[-2:]]
    return f"{words[0]} as {how}" + (f", with {', '.join(tail)} in its last step" if tail else "")
