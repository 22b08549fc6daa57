"""Cross entropy over rows of logits: logsumexp minus the picked logit, then a sum over the rows.

Covered: cross_entropy, and nll_loss of log_softmax; logits [rows, classes], whole-number targets
[rows]; mean, sum and none; ignore_index; label smoothing; class weights; training, but not with
both of these. Not covered: probabilities as targets. Dimensions after the classes:
cross_entropy_maps.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from kernel_lsp.rewrite.capture import read_conditions
from kernel_lsp.rewrite.codegen.backward import kernels as backward
from kernel_lsp.rewrite.codegen.core import launching, source
from kernel_lsp.rewrite.codegen.core.nodes import FLOATS, dtype_name, op_name
from kernel_lsp.rewrite.codegen.loss.cross_entropy_source import (
    BACKWARD,
    COUNTED,
    KERNEL,
    LAUNCHER,
    ROW,
    SCALED,
    SMOOTHING,
    TOTAL,
    WEIGHTED,
    WEIGHTED_SMOOTHING,
)
from kernel_lsp.rewrite.codegen.regions import cost
from kernel_lsp.rewrite.generated import GeneratedSource, Match
from kernel_lsp.rewrite.graph import Graph, argument, is_op
from kernel_lsp.rewrite.printing import guard

aten = torch.ops.aten
VIEWS = (aten.view, aten.reshape, aten.flatten, aten.slice, aten.contiguous, aten.clone)
"""What may stand between a cast of logits and their loss: it acts on narrow ones alike."""
PARAMETERS: dict[str, list[Any]] = {"BLOCK_SIZE": [4096, 2048, 8192], "num_warps": [8, 16, 4]}


def matches(graph: Graph) -> list[Match]:
    """Cross entropies over rows that one kernel can compute, with their gradients where the graph
    has them."""
    return [
        _match(graph, node)
        for node in graph.nodes
        if _is_covered(node) and is_trainable(graph, node)
    ]


def is_trainable(graph: Graph, node: fx.Node) -> bool:
    """No gradient is recorded, or there is a backward for it: not for weights, which have none in
    torch."""
    if not graph.gradients or (weight := weight_of(node)) is None:
        return not (graph.gradients and graph.origin.hides_gradients)
    return not (graph.origin.hides_gradients or smoothing_of(node) or graph.carries(weight))


def require_weight(graph: Graph, node: fx.Node) -> None:
    """What the guard checks of the weights: one for each class, and constant where gradients are
    recorded."""
    weight = weight_of(node)
    if weight is None:
        return
    if (path := graph.state.get(weight)) is not None:
        size = tuple(graph.val(weight).shape)
        graph.require(
            f"{read_conditions.self_path(path)}.shape == {size}",
            "the kernel reads one for each class",
        )
    for text in guard.flags(graph, weight) if graph.gradients else ():
        graph.require(f"not (torch.is_grad_enabled() and {text})", "no gradient is computed for it")


def logits_of(node: fx.Node) -> fx.Node | None:
    """The logits of a cross entropy; also of nll_loss(log_softmax(logits, 1)) when nobody else
    reads the logarithms. None for anything else."""
    name = op_name(node)
    if name not in ("cross_entropy_loss", "nll_loss_nd", "nll_loss", "nll_loss2d"):
        return None
    first: fx.Node = node.args[0]
    if name == "cross_entropy_loss":
        return first
    if op_name(first) != "log_softmax" or len(first.users) != 1:
        return None
    value = first.args[0].meta["val"]
    same = first.meta["val"].dtype == value.dtype and value.dim() > 1
    return first.args[0] if same and argument(first, "dim") % value.dim() == 1 else None


def widening(graph: Graph, node: fx.Node) -> list[fx.Node]:
    """The nodes from a cast of 16-bit logits to float32 down to what the loss reads: the cast, then
    views and copies, each read by the next alone. Empty where nothing is cast, and for nll_loss.
    The kernels compute in float32 anyway, so the wide logits need not be written."""
    if op_name(node) != "cross_entropy_loss":
        return []
    above, reader = node.args[0], node
    path: list[fx.Node] = []
    while isinstance(above, fx.Node) and graph.only_user(above) is reader:
        path.insert(0, above)
        if is_op(above, aten.to, aten._to_copy):
            return path if _is_widened(above) else []
        if not is_op(above, *VIEWS) or above.kwargs:
            return []
        above, reader = above.args[0], above
    return []


def _is_widened(cast: fx.Node) -> bool:
    narrow, wide = cast.args[0], cast.meta["val"]
    if not isinstance(narrow, fx.Node) or wide.dtype != torch.float32:
        return False
    return narrow.meta["val"].dtype in (torch.bfloat16, torch.float16)


def _read_narrow(graph: Graph, node: fx.Node) -> None:
    """Let the loss read the logits as they were before they were cast."""
    path = widening(graph, node)
    if not path:
        return
    cast, *views = path
    narrow: fx.Node = cast.args[0]
    for view in views:
        narrow = graph.call(view.target, (narrow, *view.args[1:]), before=node)
    node.replace_input_with(path[-1], narrow)
    graph.caveat("logits are read as they were before their cast to float32: no digit is lost")


def weight_of(node: fx.Node) -> fx.Node | None:
    """The weights of the classes; None: they count alike."""
    weight: fx.Node | None = argument(node, "weight")
    return weight


def covered_rank(node: fx.Node) -> int:
    """Dimensions of the logits, where they and targets and weights are of types that are covered;
    else 0."""
    given = logits_of(node)
    if given is None:
        return 0
    logits, target, weight = given.meta["val"], node.args[1].meta["val"], weight_of(node)
    plain = logits.dtype in FLOATS and target.dtype == torch.int64
    return (
        int(logits.dim()) if plain and (weight is None or weight.meta["val"].dtype in FLOATS) else 0
    )


HOW = {0: "none", 1: "mean", 2: "sum"}


def settings_of(node: fx.Node) -> str:
    """The loss' keyword arguments as source, where logits, targets and weights have these names."""
    how, smoothing = HOW[argument(node, "reduction", 1)], smoothing_of(node)
    weight = ", weight=weight" if weight_of(node) is not None else ""
    labels = f", label_smoothing={smoothing}" if smoothing else ""
    return (
        f'{weight}, ignore_index={argument(node, "ignore_index", -100)}, reduction="{how}"{labels}'
    )


def _is_covered(node: fx.Node) -> bool:
    return covered_rank(node) == 2


def smoothing_of(node: fx.Node) -> float:
    """The label smoothing, 0.0 for none."""
    return float(argument(node, "label_smoothing", 0.0) or 0.0)


def operands(node: fx.Node) -> list[fx.Node]:
    """Logits, targets and the classes' weights, where there are some."""
    found = (logits_of(node), node.args[1], weight_of(node))
    return [item for item in found if item is not None]


def _match(graph: Graph, node: fx.Node) -> Match:
    data = {"parameters": PARAMETERS, "cross_entropy": True}
    path = widening(graph, node)
    read = [path[0].args[0]] if path else operands(node)[:1]
    return match_loss(graph, node, read, "cross entropy", data, path)


def match_loss(
    graph: Graph,
    node: fx.Node,
    read: list[fx.Node],
    what: str,
    data: dict[str, Any],
    path: Sequence[fx.Node] = (),
) -> Match:
    """The loss with the log_softmax before it, where there is one, and the `widening` before that.
    ``read``: what is read once, forward."""
    logits = logits_of(node)
    nodes = [*path, *([node] if node.args[0] is logits else [node.args[0], node])]
    launches = 1 if argument(node, "reduction", 1) == 0 else 2
    fused_s = cost.read_once_seconds(graph, read, launches=launches)
    benefit = cost.benefit(graph, nodes, fused_s, 0.1)
    if graph.gradients:
        fused_s += cost.read_once_seconds(graph, [read[0]] * 2, launches=1)
        benefit = cost.trained_benefit(graph, nodes, fused_s, launches + 1, 0.1)
    return Match(
        nodes=tuple(nodes),
        label=graph.label(*nodes),
        summary=f"compute {what} without writing the probabilities",
        benefit=benefit,
        plain=False,
        differentiable=True,
        data={"nodes": [node.name], **data},
    )


def apply(graph: Graph, match: Match, choice: dict[str, Any]) -> None:
    """Puts the generated kernel in the loss's place."""
    node = graph.named(match.data["nodes"][0])
    _read_narrow(graph, node)
    kernel = _generate(node, choice, launching.unique_name(graph, "fused_cross_entropy"))
    if graph.gradients:
        kernel = _generate_trained(node, kernel)
    put(graph, node, kernel)


def _reads_narrow(node: fx.Node) -> bool:
    """The logits are of 16 bits, and the loss of 32."""
    return operands(node)[0].meta["val"].dtype.itemsize < node.meta["val"].dtype.itemsize


def put(graph: Graph, node: fx.Node, kernel: GeneratedSource) -> None:
    """The kernel's call in the place of the loss."""
    require_weight(graph, node)
    call = graph.call_generated(
        kernel, operands(node), like=node.meta["val"], before=node, name="loss"
    )
    graph.replace(node, call)
    graph.caveat("a target outside of the classes gives NaN instead of a device assertion")


def _generate_trained(node: fx.Node, kernel: GeneratedSource) -> GeneratedSource:
    """The forward also leaves each row's log of the sum, and for a mean how many rows count."""
    how, ignore, name = (
        argument(node, "reduction", 1),
        argument(node, "ignore_index", -100),
        kernel.name,
    )
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
    text = text.replace(", loss, n_cols,", ", loss, log_sum, n_cols,")
    if how == 1:
        text = text.replace("out_ptr, n_rows,", "out_ptr, count_ptr, n_rows,")
        text = text.replace("    tl.store(out_ptr, total)", "    tl.store(out_ptr, total)\n"
                            "    tl.store(count_ptr, tl.sum(lane_count, axis=0))")  # fmt: skip
        text = text.replace(", out, n_rows", ", out, count, n_rows")
        text = text.replace("    out = torch.empty((),", "    count = torch.empty((), "
                                                         "dtype=torch.float32, "
                            "device=logits.device)\n    out = torch.empty((),")  # fmt: skip
        text = text.replace("    return out\n", "    return out, log_sum, count\n")
    text = text.replace("    return out\n", "    return out, log_sum\n")
    text = text.replace("    return loss\n", "    return loss, log_sum\n")
    smoothing, weighted = smoothing_of(node), weight_of(node) is not None
    scale = "tl.load(grad_out_ptr" + (" + row)" if how == 0 else ")") + ".to(tl.float32)"
    text += "\n\n" + backward.AGAIN + "\n\n" + BACKWARD.format(
        name=name,
        title=source.title(name),
        ignore=ignore,
        weight=", weight" if weighted else "",
        weight_pointer="weight_ptr, " if weighted else "",
        weighted=SCALED if weighted else "",
        contiguous="        weight = weight.contiguous()\n" if weighted else "",
        nothing="None, None" if weighted else "None",
        scale=f"{scale} / tl.load(count_ptr)" if how == 1 else scale,
        scale_arguments="grad_out_ptr, count_ptr" if how == 1 else "grad_out_ptr",
        scale_values="grad_out, count" if how == 1 else "grad_out",
        count_name=", count" if how == 1 else "",
        kept="*ctx.kept" if how == 1 else "ctx.kept",
        rest=1.0 - smoothing,
        smoothed=f" - {smoothing} / n_cols" if smoothing else "",
        settings=settings_of(node),
        wide=".float()" if _reads_narrow(node) else "",
    )  # fmt: skip
    return replace(kernel, definitions=text, supports_autograd=True)


def _generate(node: fx.Node, choice: dict[str, Any], name: str) -> GeneratedSource:
    how, ignore = argument(node, "reduction", 1), argument(node, "ignore_index", -100)
    dtype, weighted = dtype_name(node.meta["val"].dtype), weight_of(node) is not None
    smoothing, more = smoothing_of(node), dict.fromkeys(SMOOTHING, "")
    if smoothing:
        texts = WEIGHTED_SMOOTHING if weighted else SMOOTHING
        more = {
            key: text.format(smoothing=smoothing, rest=1.0 - smoothing, **ROW)
            for key, text in texts.items()
        }
    pointer, once = ("weight_ptr, ", WEIGHTED) if weighted else ("", "")
    kernels = [
        KERNEL.format(
            name=name, ignore=ignore, weight_pointer=pointer, weighted=once, **ROW, **more
        )
    ]
    launcher = LAUNCHER.format(
        name=name,
        launches="one launch" if how == 0 else "two launches",
        row_dtype=dtype if how == 0 else "float32",
        block=choice["BLOCK_SIZE"],
        warps=choice["num_warps"],
        weight=", weight" if weighted else "",
        contiguous="    weight = weight.contiguous()\n" if weighted else "",
    )
    if how != 0:
        divided = " / tl.sum(lane_count, axis=0)" if how == 1 else ""
        pointers = "weight_ptr, n_cols, " if weighted else ""
        counted = COUNTED[weighted].format(ignore=ignore)
        kernels.append(
            TOTAL.format(
                name=name, ignore=ignore, divided=divided, weight_pointers=pointers, counted=counted
            )
        )
        passed = ", weight, n_cols" if weighted else ""
        launcher += f"    out = torch.empty((), dtype=torch.{dtype}, device=logits.device)\n"
        launcher += (
            f"    _{name}_total_kernel[(1,)](loss, target{passed}, out, n_rows, BLOCK_SIZE=1024, "
            f"num_warps=4)"
        )
        launcher += "\n"
    launcher += f"    return {'loss' if how == 0 else 'out'}\n"
    definitions = "\n\n".join([*kernels, launcher])
    return GeneratedSource(
        name=name, imports=source.IMPORTS, definitions=definitions, summary="cross entropy"
    )
