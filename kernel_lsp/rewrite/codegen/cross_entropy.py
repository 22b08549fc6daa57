"""Cross entropy over rows of logits: logsumexp minus the picked logit, then a sum over the rows.

Covered: cross_entropy, and nll_loss of log_softmax; logits [rows, classes], whole-number targets [rows];
mean, sum and none; ignore_index; label smoothing.
Not covered: class weights, probabilities as targets, dimensions after the classes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import fx

from kernel_lsp.rewrite.codegen import backward, cost, launching, source
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
{before}    for start in range(0, n_cols, BLOCK_SIZE):
        cols = start + tl.arange(0, BLOCK_SIZE)
        mask = cols < n_cols  # the last block is not full
        logits = tl.load(logits_ptr + row * n_cols + cols, mask=mask, other=float("-inf")).to(tl.float32)
        new_max = tl.maximum(lane_max, logits)
        # Lanes that saw only -inf: exp(-inf - -inf) would be NaN where it must weigh nothing.
        pivot = tl.where(new_max == float("-inf"), 0.0, new_max)
        lane_sum = lane_sum * tl.exp(lane_max - pivot) + tl.exp(logits - pivot)
        lane_max = new_max
{step}    row_max = tl.max(lane_max, axis=0)
    row_pivot = tl.where(row_max == float("-inf"), 0.0, row_max)
    row_sum = tl.sum(lane_sum * tl.exp(lane_max - row_pivot), axis=0)
    target = tl.load(target_ptr + row)
    kept = target != {ignore}
    # Targets outside of the classes read nothing and give NaN, where eager stops with an assertion.
    valid = kept & (target >= 0) & (target < n_cols)
    picked = tl.load(logits_ptr + row * n_cols + target, mask=valid, other=float("nan")).to(tl.float32)
    loss = tl.log(row_sum) + (row_max - picked)  # in this order: a common shift of the logits cancels exactly
{smoothed}    tl.store(loss_ptr + row, tl.where(kept, loss, 0.0))
'''

SMOOTHING = {
    "before": """\
    lane_total = tl.full([BLOCK_SIZE], 0.0, tl.float32)
    anchor = tl.load(logits_ptr + row * n_cols).to(tl.float32)
    anchor = tl.where(tl.abs(anchor) < float("inf"), anchor, 0.0)  # a common shift costs no digits
""",
    "step": """\
        lane_total += tl.where(mask, logits - anchor, 0.0)
""",
    "smoothed": """\
    every = tl.log(row_sum) + (row_max - anchor) - tl.sum(lane_total, axis=0) / n_cols  # mean over classes
    loss = {rest} * loss + {smoothing} * every
""",
}
"""What smoothed labels add to the kernel."""

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


BACKWARD = '''\
@triton.jit
def _{name}_backward_kernel(
    logits_ptr, target_ptr, log_sum_ptr, {scale_arguments}, grad_logits_ptr, n_cols, BLOCK_SIZE: tl.constexpr,
):
    """Each program handles a block of one row: probability, less one at the target, times the gradient."""
    row = tl.program_id(0).to(tl.int64)  # int64: row * n_cols can pass 2**31
    cols = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = cols < n_cols  # the last block is not full
    logits = tl.load(logits_ptr + row * n_cols + cols, mask=mask).to(tl.float32)
    target = tl.load(target_ptr + row)
    row_max, log_sum = tl.load(log_sum_ptr + row), tl.load(log_sum_ptr + tl.num_programs(0) + row)
    probability = tl.exp((logits - row_max) - log_sum)
    scale = {scale}
    grad = (probability - tl.where(cols == target, {rest}, 0.0){smoothed}) * scale
    tl.store(grad_logits_ptr + row * n_cols + cols, tl.where(target == {ignore}, 0.0, grad), mask=mask)


class _{title}(torch.autograd.Function):
    """Cross entropy; two numbers a row are kept for the backward, which makes the probabilities again."""

    @staticmethod
    def forward(ctx, logits, target):
        out, log_sum{count_name} = {name}_forward(logits, target)
        ctx.save_for_backward(logits, target)
        ctx.kept = log_sum{count_name}
        return out

    @staticmethod
    def backward(ctx, grad_out):
        if torch.is_grad_enabled():  # create_graph=True: a kernel has no derivative of its own
            return differentiate_again(ctx, {name}_eager, grad_out)
        (logits, target), log_sum{count_name} = ctx.saved_tensors, {kept}
        logits, target, grad_out = logits.contiguous(), target.contiguous(), grad_out.contiguous()
        n_rows, n_cols = logits.shape
        grad_logits = torch.empty_like(logits)
        if n_rows > 0:  # a grid of zero programs cannot be launched
            _{name}_backward_kernel[(n_rows, (n_cols + 4095) // 4096)](
                logits, target, log_sum, {scale_values}, grad_logits, n_cols, BLOCK_SIZE=4096, num_warps=8,
            )
        return grad_logits, None


def {name}_eager(logits, target):
    """The same in PyTorch, for gradients of gradients."""
    return torch.nn.functional.cross_entropy(logits, target, ignore_index={ignore}, reduction="{how}"{labels})


def {name}(logits, target):
    return _{title}.apply(logits, target)
'''


def matches(graph: Graph) -> list[Match]:
    return [_match(graph, node) for node in graph.nodes if _covered(node) and _is_trainable(graph)]


def _is_trainable(graph: Graph) -> bool:
    return not (graph.gradients and graph.origin.hides_gradients)


def _logits(node: fx.Node) -> fx.Node | None:
    """The logits of a cross entropy; also of nll_loss(log_softmax(logits, 1)) when nobody else reads the
    logarithms. None for anything else."""
    name = op_name(node)
    if name not in ("cross_entropy_loss", "nll_loss_nd", "nll_loss"):
        return None
    first: fx.Node = node.args[0]
    if name == "cross_entropy_loss":
        return first
    if op_name(first) != "log_softmax" or len(first.users) != 1:
        return None
    same = first.meta["val"].dtype == first.args[0].meta["val"].dtype
    return first.args[0] if same and argument(first, "dim") in (1, -1) else None


def _covered(node: fx.Node) -> bool:
    given = _logits(node)
    if given is None or argument(node, "weight") is not None:
        return False
    logits, target = given.meta["val"], node.args[1].meta["val"]
    return bool(logits.dim() == 2 and logits.dtype in FLOATS and target.dtype == torch.int64)


def _smoothing(node: fx.Node) -> float:
    return float(argument(node, "label_smoothing", 0.0) or 0.0)


def _match(graph: Graph, node: fx.Node) -> Match:
    logits = _logits(node)
    assert logits is not None
    nodes = [node] if node.args[0] is logits else [node.args[0], node]
    fused_s = cost.read_once_seconds(graph, [logits], launches=_launches(node))
    benefit = cost.benefit(graph, nodes, fused_s, 0.1)
    if graph.gradients:
        fused_s += cost.read_once_seconds(graph, [logits, logits], launches=1)
        benefit = cost.trained_benefit(graph, nodes, fused_s, 0.1)
    return Match(
        nodes=tuple(nodes),
        label=graph.label(*nodes),
        summary="compute cross entropy without writing the probabilities",
        benefit=benefit,
        plain=False,
        differentiable=True,
        data={"nodes": [node.name], "parameters": PARAMETERS, "cross_entropy": True},
    )


def apply(graph: Graph, match: Match, choice: dict[str, Any]) -> None:
    node = graph.named(match.data["nodes"][0])
    kernel = _generate(node, choice, launching.unique_name(graph, "fused_cross_entropy"))
    if graph.gradients:
        kernel = _trained(node, kernel)
    call = graph.call_generated(
        kernel, [_logits(node), node.args[1]], like=node.meta["val"], before=node, name="loss"
    )
    graph.replace(node, call)
    graph.caveat("a target outside of the classes gives NaN instead of a device assertion")


def _trained(node: fx.Node, kernel: Generated) -> Generated:
    """The forward also leaves each row's log of the sum, and for a mean how many rows count."""
    how, ignore, name = argument(node, "reduction", 1), argument(node, "ignore_index", -100), kernel.name
    text = kernel.definitions.replace(f"def {name}(", f"def {name}_forward(")
    text = text.replace("loss_ptr, n_cols, BLOCK", "loss_ptr, log_sum_ptr, n_cols, BLOCK")
    text = text.replace(
        "    tl.store(loss_ptr",
        "    tl.store(log_sum_ptr + row, row_max)  # apart: their sum would lose digits\n"
        "    tl.store(log_sum_ptr + tl.num_programs(0) + row, tl.log(row_sum))\n"
        "    tl.store(loss_ptr",
    )
    text = text.replace(
        "device=logits.device)\n    if n_rows",
        "device=logits.device)\n"
        "    log_sum = torch.empty((2, n_rows), dtype=torch.float32, device=logits.device)\n"
        "    if n_rows",
    )
    text = text.replace("logits, target, loss, n_cols,", "logits, target, loss, log_sum, n_cols,")
    if how == 1:
        text = text.replace("out_ptr, n_rows,", "out_ptr, count_ptr, n_rows,")
        text = text.replace("    tl.store(out_ptr, total)", "    tl.store(out_ptr, total)\n"
                            "    tl.store(count_ptr, tl.sum(lane_count, axis=0))")  # fmt: skip
        text = text.replace("(loss, target, out, n_rows", "(loss, target, out, count, n_rows")
        text = text.replace("    out = torch.empty((),", "    count = torch.empty((), dtype=torch.float32, "
                            "device=logits.device)\n    out = torch.empty((),")  # fmt: skip
        text = text.replace("    return out\n", "    return out, log_sum, count\n")
    text = text.replace("    return out\n", "    return out, log_sum\n")
    text = text.replace("    return loss\n", "    return loss, log_sum\n")
    smoothing = _smoothing(node)
    scale = "tl.load(grad_out_ptr" + (" + row)" if how == 0 else ")") + ".to(tl.float32)"
    text += "\n\n" + backward.AGAIN + "\n\n" + BACKWARD.format(
        name=name,
        title=source.title(name),
        ignore=ignore,
        how={0: "none", 1: "mean", 2: "sum"}[how],
        scale=f"{scale} / tl.load(count_ptr)" if how == 1 else scale,
        scale_arguments="grad_out_ptr, count_ptr" if how == 1 else "grad_out_ptr",
        scale_values="grad_out, count" if how == 1 else "grad_out",
        count_name=", count" if how == 1 else "",
        kept="*ctx.kept" if how == 1 else "ctx.kept",
        rest=1.0 - smoothing,
        smoothed=f" - {smoothing} / n_cols" if smoothing else "",
        labels=f", label_smoothing={smoothing}" if smoothing else "",
    )  # fmt: skip
    return replace(kernel, definitions=text, supports_autograd=True)


def _launches(node: fx.Node) -> int:
    return 1 if argument(node, "reduction", 1) == 0 else 2


def _generate(node: fx.Node, choice: dict[str, Any], name: str) -> Generated:
    how, ignore = argument(node, "reduction", 1), argument(node, "ignore_index", -100)
    dtype = dtype_name(node.meta["val"].dtype)
    smoothing, more = _smoothing(node), dict.fromkeys(SMOOTHING, "")
    if smoothing:
        more = {
            key: text.format(smoothing=smoothing, rest=1.0 - smoothing) for key, text in SMOOTHING.items()
        }
    kernels = [KERNEL.format(name=name, ignore=ignore, **more)]
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
