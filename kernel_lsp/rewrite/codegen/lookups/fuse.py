"""Bags of embeddings and gradients of tables: which nodes get a kernel, and what it saves.

Covered: ``F.embedding_bag`` that sums or takes means, bags of one length or by offsets, both ways;
the gradient of ``F.embedding``. Not covered: maxima, weights of samples, padding in bags, gradients
scaled by frequency, sparse ones. The kernels' text is `source.py`'s."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import fx

from kernel_lsp.records import Proof
from kernel_lsp.rewrite.codegen.core import launching
from kernel_lsp.rewrite.codegen.core.nodes import FLOATS, WHOLE, dtype_name, op_name
from kernel_lsp.rewrite.codegen.core.source import next_power_of_two
from kernel_lsp.rewrite.codegen.core.space import shape_of
from kernel_lsp.rewrite.codegen.lookups.source import LookupJob, emit
from kernel_lsp.rewrite.codegen.regions import cost
from kernel_lsp.rewrite.generated import GUARDED, GeneratedSource, Match, Miss
from kernel_lsp.rewrite.graph import Graph, argument

MIN_SAVING = 0.1
MAX_BLOCK = 1024
EAGER_SHARE, OWN_SHARE = 0.3, 0.6
"""Of copy speed, of a forward; assumed: a thread of torch's reads one feature of one row after the
other. Too hopeful where a large table is trained: bags of 20 and of 8 rows, with the gradients of
26 and 64 M elements, took as long as torch's on an H200 (2026-11-28: 0.63 and 0.98 ms)."""
SORT_S, SORTED_PER_S = 30e-6, 10e9
"""Of a sort of indices, which torch's backward begins with too; assumed, not measured."""
EAGER_LAUNCHES, OWN_LAUNCHES = 8, 4
"""Kernels of a backward beside the sort. Torch's also waits for the device, to know how many indices
differ."""
MODES = (0, 1)
"""The sum and the mean."""


def find(graph: Graph, node: fx.Node) -> LookupJob | None:
    """The lookup that the node is; None where it is none that is generated."""
    return None if _refusal(graph, node) is not None else _job(graph, node)


def _refusal(graph: Graph, node: fx.Node) -> str | None:
    """Why no kernel is made of a lookup; None where one is. "": of another node."""
    if op_name(node) not in ("embedding", "embedding_bag"):
        return ""
    if (why := _tensors_refusal(node)) is not None:
        return why
    if graph.gradients and (graph.origin.hides_gradients or not graph.carries(node.args[0])):
        return "the table is not trained, and its kernel has a backward"
    if op_name(node) == "embedding":
        return None if graph.gradients else ""
    return _bag_refusal(graph, node)


def _tensors_refusal(node: fx.Node) -> str | None:
    weight, indices = node.args[0].meta["val"], node.args[1].meta["val"]
    if weight.dtype not in FLOATS or indices.dtype not in WHOLE:
        return f"no kernel reads {weight.dtype} by {indices.dtype}"
    if not weight.is_contiguous() or not weight.numel() or weight.shape[0] >= 2**31:
        return "the table is not contiguous, or has no rows"
    if argument(node, "scale_grad_by_freq") or argument(node, "sparse"):
        return "its gradient is sparse, or scaled by frequency"
    return None


def _bag_refusal(graph: Graph, node: fx.Node) -> str | None:
    if argument(node, "mode") not in MODES or argument(node, "include_last_offset"):
        return "it takes maxima, or has an offset more than bags"
    if argument(node, "per_sample_weights") is not None or _padding(node) is not None:
        return "samples have weights, or some are padding"
    others = [user for user in graph.users(node) if user.args[1] != 0]
    return "more than its values is read" if others or graph.is_output(node) else None


def _padding(node: fx.Node) -> int | None:
    """The index that counts as padding."""
    found = argument(node, "padding_idx", None)
    if found is None or (op_name(node) == "embedding" and found == -1):
        return None
    return int(found) % shape_of(node.args[0])[0]


def _job(graph: Graph, node: fx.Node) -> LookupJob:
    table, is_bag = node.args[0].meta["val"], op_name(node) == "embedding_bag"
    return LookupJob(
        name="bag_of_rows" if is_bag else "rows_of_table",
        dtype=dtype_name(table.dtype),
        n_features=math.prod(table.shape[1:]),
        is_bag=is_bag,
        is_mean=is_bag and argument(node, "mode") == 1,
        length=_length(node) if is_bag else None,
        padding=_padding(node),
        is_trained=bool(graph.gradients),
        choice={},
    )


def _length(node: fx.Node) -> int | None:
    """Of bags that all have one: F.embedding_bag makes offsets for the rows of a matrix."""
    flat, offsets = node.args[1:3]
    if op_name(offsets) != "arange" or op_name(flat) not in ("reshape", "view"):
        return None
    base = flat.args[0].meta["val"]
    if base.dim() != 2 or len(offsets.args) != 3:
        return None
    start, end, step = offsets.args
    return int(step) if (start, end, step) == (0, base.numel(), base.shape[1]) else None


def matches(graph: Graph) -> list[Match]:
    """Lookups, each with what kernels are estimated to save."""
    return [
        Match(
            nodes=(node,),
            label=graph.label(node),
            summary="sum rows of a table in one pass"
            if job.is_bag
            else "add up the gradient of a table by sorted indices",
            benefit=_benefit(graph, node, job),
            plain=False,
            differentiable=True,
            data={"parameters": parameters(job)},
        )
        for node in graph.nodes
        if (job := find(graph, node)) is not None
    ]


def misses(graph: Graph) -> Iterator[Miss]:
    """Lookups that no kernel is made of."""
    for node in graph.nodes:
        if why := _refusal(graph, node):
            yield Miss(nodes=(node,), missing=why)


def parameters(job: LookupJob) -> dict[str, list[Any]]:
    """Choices for the kernels, the default first."""
    block = min(MAX_BLOCK, next_power_of_two(job.n_features))
    found: dict[str, list[Any]] = {}
    if job.is_bag:
        items = max(1, min(16, 2048 // block))
        if job.length is not None:
            items = min(items, next_power_of_two(job.length))
        warps = max(1, min(8, block * items // 512))
        found = {"BLOCK_SIZE": [block], "BLOCK_ITEMS": [items], "num_warps": [warps, 2 * warps]}
    if job.is_trained:
        found |= {"BACKWARD_SIZE": [64, 128], "backward_num_warps": [1, 2]}
    return found


def _benefit(graph: Graph, node: fx.Node, job: LookupJob) -> float:
    rates, size = cost.rates(graph), node.args[0].meta["val"].element_size()
    items = math.prod(shape_of(node.args[1]))
    looked_up, results = items * job.n_features * size, cost.bytes_of(node)
    eager_s = ours_s = 0.0
    if job.is_bag:
        moving_s = (looked_up + results) / rates.bytes_per_s
        eager_s += moving_s / EAGER_SHARE + rates.overhead_s
        ours_s += moving_s / OWN_SHARE
    if job.is_trained:
        # Torch writes sums of ten rows at most in float32, and reads them.
        between = 2 * items * job.n_features * 4
        both_s = SORT_S + items / SORTED_PER_S
        both_s += (looked_up + 2 * cost.bytes_of(node.args[0])) / rates.bytes_per_s
        eager_s += both_s + between / rates.bytes_per_s + EAGER_LAUNCHES * rates.overhead_s
        ours_s += both_s + OWN_LAUNCHES * rates.overhead_s
    return cost.share_of(graph, eager_s, cost.launched_seconds(graph, ours_s, 1), MIN_SAVING)


def proofs(graph: Graph, match: Match) -> list[Proof]:
    """What holds of the match, each with its reason."""
    (node,) = match.nodes
    job = find(graph, node)
    return [
        Proof(
            claim="it looks up rows of a table and sums them, or hands them on",
            holds=job is not None,
            because=f"the schema of {node.name}",
        ),
        Proof(
            claim="no gradient is lost",
            holds=True,
            because="that of the table is added up, behind torch.autograd.Function"
            if graph.gradients
            else GUARDED,
        ),
    ]


def apply(graph: Graph, match: Match, choice: dict[str, Any]) -> None:
    """Puts the kernels in the lookup's place."""
    (node,) = match.nodes
    job = find(graph, node)
    assert job is not None, "find it first"
    chosen = {name: choice.get(name, found[0]) for name, found in parameters(job).items()}

    def make(name: str) -> GeneratedSource:
        made = emit(replace(job, name=name, choice=chosen))
        return replace(made, supports_autograd=graph.gradients)

    kernel = launching.make_named(graph, job.name, make)
    indices = node.args[1] if job.length is None else node.args[1].args[0]
    inputs = [node.args[0], indices, *([node.args[2]] if job.has_offsets else [])]
    if not job.is_bag:
        launching.launch(graph, kernel, inputs, [node], node)
        return
    for values in graph.users(node):
        launching.launch(graph, kernel, inputs, [values], node)
    graph.caveat("an index that is not in the table gives NaN instead of an error")
