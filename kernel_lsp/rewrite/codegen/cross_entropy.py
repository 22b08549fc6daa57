"""Cross entropy over rows of logits: logsumexp minus the picked logit, then a sum over the rows.

Covered: logits [rows, classes], whole-number targets [rows], mean, sum and none, ignore_index.
Not covered: class weights, label smoothing, probabilities as targets, dimensions after the classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from kernel_lsp.rewrite.codegen import cost, source
from kernel_lsp.rewrite.codegen.pointwise import FLOATS, dtype_name, op_name
from kernel_lsp.rewrite.generated import Generated, Match
from kernel_lsp.rewrite.graph import Graph, argument

PARAMETERS: dict[str, list[Any]] = {"BLOCK_SIZE": [4096, 2048, 8192], "num_warps": [8, 16, 4]}

KERNEL = '''\
@triton.jit
def _{name}_kernel(logits_ptr, target_ptr, loss_ptr, n_cols, BLOCK_SIZE: tl.constexpr):
    """Each program handles one row: the logits are read once and the probabilities never written."""
    row = tl.program_id(0).to(tl.int64)  # int64: row * n_cols can pass 2**31
    lane_max = tl.full([BLOCK_SIZE], float("-inf"), tl.float32)
    lane_sum = tl.full([BLOCK_SIZE], 0.0, tl.float32)
    for start in range(0, n_cols, BLOCK_SIZE):
        cols = start + tl.arange(0, BLOCK_SIZE)
        mask = cols < n_cols  # the last block is not full
        logits = tl.load(logits_ptr + row * n_cols + cols, mask=mask, other=float("-inf")).to(tl.float32)
        new_max = tl.maximum(lane_max, logits)
        # Lanes that saw only -inf: exp(-inf - -inf) would be NaN where it must weigh nothing.
        pivot = tl.where(new_max == float("-inf"), 0.0, new_max)
        lane_sum = lane_sum * tl.exp(lane_max - pivot) + tl.exp(logits - pivot)
        lane_max = new_max
    row_max = tl.max(lane_max, axis=0)
    row_pivot = tl.where(row_max == float("-inf"), 0.0, row_max)
    row_sum = tl.sum(lane_sum * tl.exp(lane_max - row_pivot), axis=0)
    target = tl.load(target_ptr + row)
    kept = target != {ignore}
    # Targets outside of the classes read nothing and give NaN, where eager stops with an assertion.
    valid = kept & (target >= 0) & (target < n_cols)
    picked = tl.load(logits_ptr + row * n_cols + target, mask=valid, other=float("nan")).to(tl.float32)
    loss = row_max + tl.log(row_sum) - picked
    tl.store(loss_ptr + row, tl.where(kept, loss, 0.0))
'''

TOTAL = '''\
@triton.jit
def _{name}_total_kernel(loss_ptr, target_ptr, out_ptr, n_rows, BLOCK_SIZE: tl.constexpr):
    """One program adds the rows in a fixed order."""
    lane_sum = tl.full([BLOCK_SIZE], 0.0, tl.float32)
    lane_count = tl.full([BLOCK_SIZE], 0.0, tl.float32)
    for start in range(0, n_rows, BLOCK_SIZE):
        rows = start + tl.arange(0, BLOCK_SIZE)
        mask = rows < n_rows  # the last block is not full
        lane_sum += tl.load(loss_ptr + rows, mask=mask, other=0.0)
        target = tl.load(target_ptr + rows, mask=mask, other={ignore})
        lane_count += tl.where(target != {ignore}, 1.0, 0.0)
    total = tl.sum(lane_sum, axis=0){divided}
    tl.store(out_ptr, total)
'''

LAUNCHER = '''\
def {name}(logits, target):
    """Cross entropy in {launches}; the probabilities are never written."""
    logits, target = logits.contiguous(), target.contiguous()
    n_rows, n_cols = logits.shape
    loss = torch.empty(n_rows, dtype=torch.{row_dtype}, device=logits.device)
    if n_rows > 0:  # a grid of zero programs cannot be launched
        _{name}_kernel[(n_rows,)](logits, target, loss, n_cols, BLOCK_SIZE={block}, num_warps={warps})
'''


def matches(graph: Graph) -> list[Match]:
    return [_match(graph, node) for node in graph.nodes if _covered(node)]


def _covered(node: fx.Node) -> bool:
    if op_name(node) != "cross_entropy_loss" or argument(node, "weight") is not None:
        return False
    logits, target = (arg.meta["val"] for arg in node.args[:2])
    plain = argument(node, "label_smoothing", 0.0) == 0.0
    return bool(plain and logits.dim() == 2 and logits.dtype in FLOATS and target.dtype == torch.int64)


def _match(graph: Graph, node: fx.Node) -> Match:
    fused_s = cost.read_once_seconds(graph, [node.args[0]], launches=_launches(node))
    return Match(
        nodes=(node,),
        label=graph.label(node),
        summary="compute cross entropy without writing the probabilities",
        benefit=cost.benefit(graph, [node], fused_s, 0.1),
        plain=False,
        data={"nodes": [node.name], "parameters": PARAMETERS, "cross_entropy": True},
    )


def apply(graph: Graph, match: Match, choice: dict[str, Any]) -> None:
    node = next(node for node in graph.nodes if node.name == match.data["nodes"][0])
    kernel = _generate(node, choice, _name(graph))
    call = graph.call_generated(kernel, list(node.args[:2]), like=node.meta["val"], before=node, name="loss")
    graph.replace(node, call)
    graph.caveat("a target outside of the classes gives NaN instead of a device assertion")


def _launches(node: fx.Node) -> int:
    return 1 if argument(node, "reduction", 1) == 0 else 2


def _name(graph: Graph) -> str:
    taken = {node.meta["generated"].name for node in graph.nodes if "generated" in node.meta}
    name, count = "fused_cross_entropy", 1
    while name in taken or name in graph.origin.program:
        count += 1
        name = f"fused_cross_entropy_{count}"
    return name


def _generate(node: fx.Node, choice: dict[str, Any], name: str) -> Generated:
    how, ignore = argument(node, "reduction", 1), argument(node, "ignore_index", -100)
    dtype = dtype_name(node.meta["val"].dtype)
    kernels = [KERNEL.format(name=name, ignore=ignore)]
    launcher = LAUNCHER.format(
        name=name,
        launches="one launch" if how == 0 else "two launches",
        row_dtype=dtype if how == 0 else "float32",
        block=choice["BLOCK_SIZE"],
        warps=choice["num_warps"],
    )
    if how != 0:
        divided = " / tl.sum(lane_count, axis=0)" if how == 1 else ""
        kernels.append(TOTAL.format(name=name, ignore=ignore, divided=divided))
        launcher += f"    out = torch.empty((), dtype=torch.{dtype}, device=logits.device)\n"
        launcher += f"    _{name}_total_kernel[(1,)](loss, target, out, n_rows, BLOCK_SIZE=1024, num_warps=4)"
        launcher += "\n"
    launcher += f"    return {'loss' if how == 0 else 'out'}\n"
    definitions = "\n\n".join([*kernels, launcher])
    return Generated(name=name, imports=source.IMPORTS, definitions=definitions, summary="cross entropy")
