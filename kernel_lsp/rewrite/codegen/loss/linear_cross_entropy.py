"""A linear layer and its cross entropy in training: the gradients are made where the logits are.

Logits are overwritten by their gradient, so there is one tensor of their size instead of two. The
forward pass does so and multiplies at once, for a part of the rows at a time where that is asked;
or the backward pass does, which is less work where the weights are larger than the logits. Where
the number of classes is odd, weights are filled up with rows of zeros: on an H100 products of
50257 classes in bfloat16 take a fourth of the time then (8192 rows of 1024: 27 ms in eager, 5.2
with torch.compile, which fills them up as well; 2026-11-26).

Source of the method: gradients in the forward pass as in Liger Kernel (Hsu et al., 2024,
arXiv:2410.10989). Covered: means and sums over rows; views, slices of rows and a cast to float32
between the two; ignore_index; label smoothing; a bias. In float16 small gradients would vanish
before the loss is scaled, so there they are made in the backward pass, in place all the same. Not
covered: weights of classes, losses of each row."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.backward import kernels as backward
from kernel_lsp.rewrite.codegen.core import launching, source
from kernel_lsp.rewrite.codegen.core.nodes import dtype_name
from kernel_lsp.rewrite.codegen.loss import cross_entropy
from kernel_lsp.rewrite.codegen.loss.cross_entropy_source import SMOOTHING
from kernel_lsp.rewrite.codegen.loss.linear_cross_entropy_source import (
    BIAS_END,
    BIAS_START,
    BIAS_STEP,
    EAGER,
    EARLY,
    FILLED,
    FILLED_BIAS,
    KERNEL,
    LATE,
    LATE_BIAS,
    LESS,
    MEAN,
    OPERANDS,
    ROW,
    SUM,
)
from kernel_lsp.rewrite.codegen.regions import cost
from kernel_lsp.rewrite.cost import operations
from kernel_lsp.rewrite.generated import GeneratedSource, Match
from kernel_lsp.rewrite.graph import Graph, argument, is_op

aten = torch.ops.aten
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ALIGNED, FILLED_TO = 16, 64
"""Elements: rows of logits that begin at multiples of the first are read in full width by tensor
cores and by Triton; others are filled up to the second. So are the rows themselves, over which the
weights' gradient is summed: 2040 of them took 5.5 ms where 2048 take 4.8 (H100, 2048 x 4096 x
65536)."""
UNALIGNED = 4.0
"""Times slower products are whose rows are not aligned; measured above."""
KEPT = 0
PIECES = [1, 4, 16]
"""Parts of the rows whose logits exist at a time; `KEPT`: all are kept for the backward pass. The
sum over several parts is kept in float32."""
LAUNCH: dict[str, list[Any]] = {"BLOCK_SIZE": [4096, 8192, 2048], "num_warps": [8, 16]}


def matches(graph: Graph) -> list[Match]:
    """Linear layers whose only reader is a cross entropy, where one function can compute both and
    the gradients."""
    return [
        _match(graph, linear, path, node)
        for node in graph.nodes
        if _is_covered(graph, node)
        for linear, path in [_above(graph, node)]
        if linear is not None and _is_covered_linear(graph, linear)
    ]


def _is_covered(graph: Graph, node: fx.Node) -> bool:
    if not is_op(node, aten.cross_entropy_loss) or cross_entropy.weight_of(node) is not None:
        return False
    trained = graph.gradients and cross_entropy.is_trainable(graph, node)
    if not trained or cross_entropy.covered_rank(node) != 2:
        return False
    return cross_entropy.HOW[argument(node, "reduction", 1)] != "none"


def _above(graph: Graph, loss: fx.Node) -> tuple[fx.Node | None, list[fx.Node]]:
    """The linear layer and the operations from it down to the loss, where each acts on rows
    alone."""
    above, reader, path = loss.args[0], loss, list[fx.Node]()
    while isinstance(above, fx.Node) and graph.only_user(above) is reader:
        if is_op(above, aten.linear):
            return above, path
        if not _keeps_rows(above):
            break
        path.insert(0, above)
        above, reader = above.args[0], above
    return None, []


def _keeps_rows(node: fx.Node) -> bool:
    """Each row of the result is a row of what it reads, or the same in float32."""
    if not node.args or not isinstance(node.args[0], fx.Node):
        return False
    given, made = node.args[0].meta["val"], node.meta["val"]
    if given.dim() == 0 or made.dim() == 0 or given.shape[-1] != made.shape[-1]:
        return False
    if is_op(node, aten.to, aten._to_copy):
        return given.dtype.itemsize == 2 and made.dtype == torch.float32
    if node.kwargs or not is_op(node, *cross_entropy.VIEWS):
        return False
    return not is_op(node, aten.slice) or argument(node, "dim", 0) % given.dim() < given.dim() - 1


def _is_covered_linear(graph: Graph, linear: fx.Node) -> bool:
    operands = [item for item in linear.args if isinstance(item, fx.Node)]
    dtypes = {item.meta["val"].dtype for item in operands}
    if len(dtypes) != 1 or not dtypes <= set(DTYPES) or linear.args[1].meta["val"].dim() != 2:
        return False
    # Under an autocast around the target products of ours would be cast as it says.
    return graph.autocast is None or next(iter(dtypes)).itemsize == 2


def _match(graph: Graph, linear: fx.Node, path: list[fx.Node], loss: fx.Node) -> Match:
    nodes = [linear, *path, loss]
    return Match(
        nodes=tuple(nodes),
        label=graph.label(*nodes),
        summary="make the gradients of the linear layer where the logits of its cross entropy are",
        benefit=_benefit(graph, linear, [*path, loss]),
        plain=False,
        differentiable=True,
        data={
            "nodes": [node.name for node in nodes],
            "parameters": {"PIECES": _pieces(linear), **LAUNCH},
        },
    )


def _pieces(linear: fx.Node) -> list[int]:
    """The choices, what moves less first. Several pieces only where the sum in float32 is smaller
    than the logits of all rows; in float16 logits are always kept, see above."""
    logits, weight = linear.meta["val"], linear.args[1].meta["val"]
    if logits.dtype == torch.float16:
        return [KEPT]
    if _is_kept_cheaper(linear):
        return [KEPT, PIECES[0]]
    summed = weight.numel() * torch.float32.itemsize
    in_pieces = logits.numel() * logits.element_size() > 2 * summed
    return [*(PIECES if in_pieces else PIECES[:1]), KEPT]


def _is_kept_cheaper(linear: fx.Node) -> bool:
    """Kept logits are read once more; gradients of the forward pass are read and written once more
    to scale them, of which the weights' is the largest."""
    return int(linear.meta["val"].numel()) < 2 * int(linear.args[1].meta["val"].numel())


def _benefit(graph: Graph, linear: fx.Node, rest: list[fx.Node]) -> float:
    """The logits are read, and their gradient written, once: the second look at a row finds it in
    the cache (4096 rows of 32000 classes on an H100: 2.7 ms where the loss alone in one kernel takes
    3.0). Then the weight's gradient is scaled, or all logits are read again."""
    later = [linear] if _is_kept_cheaper(linear) else [linear.args[1]] * 2
    ours_s = cost.read_once_seconds(graph, [linear] * 2 + later, launches=2)
    slow_s = (UNALIGNED - 1.0) * cost.trained_seconds(graph, linear) if _fill(linear) else 0.0
    eager_s = slow_s + sum(cost.trained_seconds(graph, node) for node in rest)
    total_s = slow_s + sum(cost.trained_seconds(graph, node) for node in graph.nodes)
    return round(max(0.0, (eager_s - ours_s) / max(total_s, operations.total(graph))), 4)


def _fill(linear: fx.Node) -> int:
    """Rows of zeros that the weights need for rows of logits that are aligned."""
    classes = int(linear.meta["val"].shape[-1])
    return -classes % FILLED_TO if classes % ALIGNED else 0


def apply(graph: Graph, match: Match, choice: dict[str, Any]) -> None:
    """Puts that function in the place of both."""
    linear, *path, loss = [graph.named(name) for name in match.data["nodes"]]
    rows = _rows_of(graph, linear, path, loss)
    kernel = _generate(graph, linear, loss, choice)
    operands = [rows, linear.args[1], loss.args[1], *_bias_of(linear)]
    made = graph.call_generated(kernel, operands, like=loss.meta["val"], before=loss, name="loss")
    graph.replace(loss, made)
    graph.caveat("a target outside of the classes gives NaN instead of a device assertion")
    if choice["PIECES"] != KEPT:
        graph.caveat("gradients are computed in the forward pass, also where no backward follows")


def _rows_of(graph: Graph, linear: fx.Node, path: list[fx.Node], loss: fx.Node) -> fx.Node:
    """What the layer reads, by views and slices as its logits had them: (rows, features)."""
    rows: fx.Node = linear.args[0]
    width = rows.meta["val"].shape[-1]
    for node in path:
        if is_op(node, aten.to, aten._to_copy):
            continue
        arguments = list(node.args[1:])
        if is_op(node, aten.view, aten.reshape):
            arguments[0] = [*arguments[0][:-1], width]
        rows = graph.call(node.target, (rows, *arguments), before=loss)
    return rows


def _bias_of(linear: fx.Node) -> list[fx.Node]:
    bias = argument(linear, "bias")
    return [] if bias is None else [bias]


def _generate(
    graph: Graph, linear: fx.Node, loss: fx.Node, choice: dict[str, Any]
) -> GeneratedSource:
    name = launching.unique_name(graph, "fused_linear_cross_entropy")
    return GeneratedSource(
        name=name,
        imports=source.IMPORTS,
        definitions="\n\n".join(
            [_kernel(name, loss), backward.AGAIN, *_functions(name, linear, loss, choice)]
        ),
        summary="linear layer and cross entropy",
        launches=8,
        supports_autograd=True,
    )


def _kernel(name: str, loss: fx.Node) -> str:
    smoothing = cross_entropy.smoothing_of(loss)
    numbers = {"smoothing": smoothing, "rest": 1.0 - smoothing, **ROW}
    texts = {**SMOOTHING, "less": LESS}
    smoothed = {key: text.format(**numbers) for key, text in texts.items()}
    return KERNEL.format(
        name=name,
        ignore=argument(loss, "ignore_index", -100),
        rest=numbers["rest"],
        **ROW,
        **(smoothed if smoothing else dict.fromkeys(smoothed, "")),
    )


def _functions(
    name: str, linear: fx.Node, loss: fx.Node, choice: dict[str, Any]
) -> tuple[str, str, str]:
    """What fills the operands up, the autograd Function, and how both are called."""
    biased, fill = bool(_bias_of(linear)), _fill(linear)
    logits, ignore = linear.meta["val"], argument(loss, "ignore_index", -100)
    classes = logits.shape[-1]
    cut = f"[:{classes}]" if fill else ""
    filled = FILLED + (FILLED_BIAS if biased else "")
    fields = {
        "name": name,
        "title": source.title(name),
        **(BIASED if biased else dict.fromkeys(BIASED, "")),
        "filled": filled.format(fill=fill) if fill else "",
        "rows": FILLED_TO,
        "ignore": ignore,
        "classes": classes,
        "row_stride": classes + fill,
        "cut": cut,
        "measure": (MEAN if _is_mean(loss) else SUM).format(ignore=ignore),
        "dtype": dtype_name(loss.meta["val"].dtype),
        "wide": ".float()" if logits.dtype.itemsize < loss.meta["val"].dtype.itemsize else "",
        "settings": cross_entropy.settings_of(loss),
        "block": choice["BLOCK_SIZE"],
        "warps": choice["num_warps"],
    }
    pieces = choice["PIECES"]
    body = _late(fields, biased) if pieces == KEPT else _early(fields, biased, pieces)
    return OPERANDS.format(**fields), body, EAGER.format(**fields)


BIASED = {"bias": ", bias", "bias_grad": ", grad_bias"}


def _is_mean(loss: fx.Node) -> bool:
    return cross_entropy.HOW[argument(loss, "reduction", 1)] == "mean"


def _product(operand: str, biased: bool) -> str:
    return (
        f"torch.addmm(bias, {operand}, weight.t())"
        if biased
        else f"torch.mm({operand}, weight.t())"
    )


def _late(fields: dict[str, Any], biased: bool) -> str:
    late_bias = LATE_BIAS.format(cut=fields["cut"]) if biased else ""
    return LATE.format(product=_product("x", biased), late_bias=late_bias, **fields)


def _early(fields: dict[str, Any], biased: bool, pieces: int) -> str:
    summed = "torch.zeros(weight.shape, dtype=torch.float32, device=x.device)"
    several = pieces > 1
    return EARLY.format(
        product_of_part=_product("part", biased),
        size=f"-(-x.shape[0] // {pieces})" if several else "x.shape[0]",
        weight_start=f"{summed} if needed[1] else None" if several else "None",
        add="+" if several else "",
        bias_start=BIAS_START if biased else "",
        bias_step=BIAS_STEP if biased else "",
        bias_end=BIAS_END.format(cut=fields["cut"]) if biased else "",
        **fields,
    )
