"""Cross entropy of maps: logits [images, classes, positions...], one target for each position.

Neighbors in memory are positions, so a program takes a block of them and walks over the classes; each lane
keeps its own maximum and sum, and no probability is written. A second launch adds what the programs left.
Covered: mean, sum and none; ignore_index; class weights; label smoothing. Not covered: training, maps whose
channels lie innermost, probabilities as targets.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from kernel_lsp.rewrite.codegen import cost, launching, source
from kernel_lsp.rewrite.codegen.cross_entropy import (
    covered_rank,
    logits_of,
    operands,
    smoothing_of,
    weight_of,
)
from kernel_lsp.rewrite.codegen.pointwise import dtype_name
from kernel_lsp.rewrite.generated import Generated, Match
from kernel_lsp.rewrite.graph import Graph, argument

PARAMETERS: dict[str, list[Any]] = {"BLOCK_SIZE": [256, 512, 128], "num_warps": [4, 8]}

KERNEL = '''\
@triton.jit
def _{name}_kernel(
    logits_ptr, target_ptr, {weight_pointer}{result}_ptr, n_classes, n_positions, BLOCK_SIZE: tl.constexpr,
):
    """Each program handles BLOCK_SIZE positions of one image and walks over the classes."""
    program = tl.program_id(0).to(tl.int64)  # int64: offsets can pass 2**31
    n_blocks = tl.cdiv(n_positions, BLOCK_SIZE)
    offs = program % n_blocks * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offs < n_positions  # the last block of an image is not full
    image = program // n_blocks
    first = logits_ptr + image * n_classes * n_positions + offs
    lane_max = tl.full([BLOCK_SIZE], float("-inf"), tl.float32)
    lane_sum = tl.full([BLOCK_SIZE], 0.0, tl.float32)
{before}    where = first
    for {label} in range(n_classes):
        logits = tl.load(where, mask=mask, other=0.0).to(tl.float32)
        new_max = tl.maximum(lane_max, logits)
        # Lanes that saw only -inf: exp(-inf - -inf) would be NaN where it must weigh nothing.
        pivot = tl.where(new_max == float("-inf"), 0.0, new_max)
        lane_sum = lane_sum * tl.exp(lane_max - pivot) + tl.exp(logits - pivot)
        lane_max = new_max
{step}        where += n_positions
    target = tl.load(target_ptr + image * n_positions + offs, mask=mask, other={ignore})
    kept = target != {ignore}
    # Targets outside of the classes read nothing and give NaN, where eager stops with an assertion.
    valid = kept & (target >= 0) & (target < n_classes)
    picked = tl.load(first + target * n_positions, mask=valid, other=float("nan")).to(tl.float32)
    loss = tl.log(lane_sum) + (lane_max - picked)  # in this order: a common shift of the logits cancels
{weighted}{smoothed}    loss = tl.where(kept, loss, 0.0)
{store}'''

STORE = {
    0: "    tl.store(loss_ptr + image * n_positions + offs, loss, mask=mask)\n",
    1: """\
    tl.store(partial_ptr + program, tl.sum(loss, axis=0))
    tl.store(partial_ptr + tl.num_programs(0) + program, tl.sum(tl.where(kept, {weight}, 0.0), axis=0))
""",
    2: "    tl.store(partial_ptr + program, tl.sum(loss, axis=0))\n",
}
WEIGHTED = """\
    weight = tl.load(weight_ptr + target, mask=valid, other=1.0).to(tl.float32)
    loss *= weight
"""
BEFORE = """\
    anchor = tl.load(first, mask=mask, other=0.0).to(tl.float32)
    anchor = tl.where(tl.abs(anchor) < float("inf"), anchor, 0.0)  # a common shift costs no digits
    lane_total = tl.full([BLOCK_SIZE], 0.0, tl.float32)
"""
SMOOTHING = {
    False: {
        "before": BEFORE,
        "step": "        lane_total += logits - anchor\n",
        "smoothed": """\
    every = tl.log(lane_sum) + (lane_max - anchor) - lane_total / n_classes  # mean over classes
    loss = {rest} * loss + {smoothing} * every
""",
    },
    True: {
        "before": BEFORE + "    all_weights = 0.0\n",
        "step": """\
        class_weight = tl.load(weight_ptr + label).to(tl.float32)
        lane_total += class_weight * (logits - anchor)
        all_weights += class_weight
""",
        "smoothed": """\
    every = all_weights * (tl.log(lane_sum) + (lane_max - anchor)) - lane_total
    loss = {rest} * loss + {smoothing} * (every / n_classes)
""",
    },
}
"""What smoothed labels add to the kernel, by whether classes have weights."""

TOTAL = '''\
@triton.jit
def _{name}_total_kernel(partial_ptr, out_ptr, n_programs, BLOCK_SIZE: tl.constexpr):
    """One program adds what the others left, in a fixed order."""
    lane_sum = tl.full([BLOCK_SIZE], 0.0, tl.float32)
{before}    for start in range(0, n_programs, BLOCK_SIZE):
        offs = start + tl.arange(0, BLOCK_SIZE)
        mask = offs < n_programs  # the last block is not full
        lane_sum += tl.load(partial_ptr + offs, mask=mask, other=0.0)
{step}    tl.store(out_ptr, tl.sum(lane_sum, axis=0){divided})
'''
COUNTED = {
    "before": "    lane_count = tl.full([BLOCK_SIZE], 0.0, tl.float32)\n",
    "step": "        lane_count += tl.load(partial_ptr + n_programs + offs, mask=mask, other=0.0)\n",
    "divided": " / tl.sum(lane_count, axis=0)",
}
"""What a mean adds."""


def matches(graph: Graph) -> list[Match]:
    return [_match(graph, node) for node in graph.nodes if not graph.gradients and _is_covered(node)]


def _is_covered(node: fx.Node) -> bool:
    logits = logits_of(node)
    if logits is None or covered_rank(node) < 3:
        return False
    value = logits.meta["val"]
    return bool(value.is_contiguous() and value.shape[1] > 1)  # one class: channels-last is contiguous too


def _match(graph: Graph, node: fx.Node) -> Match:
    logits = logits_of(node)
    nodes = [node] if node.args[0] is logits else [node.args[0], node]
    launches = 1 if argument(node, "reduction", 1) == 0 else 2
    fused_s = cost.read_once_seconds(graph, operands(node), launches=launches)
    return Match(
        nodes=tuple(nodes),
        label=graph.label(*nodes),
        summary="compute cross entropy of maps without writing the probabilities",
        benefit=cost.benefit(graph, nodes, fused_s, 0.1),
        plain=False,
        data={"nodes": [node.name], "parameters": PARAMETERS, "cross_entropy_maps": True},
    )


def apply(graph: Graph, match: Match, choice: dict[str, Any]) -> None:
    node = graph.named(match.data["nodes"][0])
    kernel = _generate(node, choice, launching.unique_name(graph, "fused_cross_entropy"))
    call = graph.call_generated(kernel, operands(node), like=node.meta["val"], before=node, name="loss")
    graph.replace(node, call)
    graph.caveat("a target outside of the classes gives NaN instead of a device assertion")


def _generate(node: fx.Node, choice: dict[str, Any], name: str) -> Generated:
    how, weighted = argument(node, "reduction", 1), weight_of(node) is not None
    kernels = [_kernel(node, name)]
    if how != 0:
        more = COUNTED if how == 1 else dict.fromkeys(COUNTED, "")
        kernels.append(TOTAL.format(name=name, **more))
    definitions = "\n\n".join([*kernels, _launcher(node, choice, name, weighted)])
    return Generated(name=name, imports=source.IMPORTS, definitions=definitions, summary="cross entropy")


def _kernel(node: fx.Node, name: str) -> str:
    how, weighted, smoothing = argument(node, "reduction", 1), weight_of(node) is not None, smoothing_of(node)
    more = SMOOTHING[weighted] if smoothing else dict.fromkeys(("before", "step", "smoothed"), "")
    more = {**more, "smoothed": more["smoothed"].format(smoothing=smoothing, rest=1.0 - smoothing)}
    return KERNEL.format(
        name=name,
        ignore=argument(node, "ignore_index", -100),
        result="loss" if how == 0 else "partial",
        label="label" if smoothing and weighted else "_",
        weight_pointer="weight_ptr, " if weighted else "",
        weighted=WEIGHTED if weighted else "",
        store=STORE[how].format(weight="weight" if weighted else "1.0"),
        **more,
    )


def _launcher(node: fx.Node, choice: dict[str, Any], name: str, weighted: bool) -> str:
    how, dtype = argument(node, "reduction", 1), dtype_name(node.meta["val"].dtype)
    names = ["logits", "target", "weight"] if weighted else ["logits", "target"]
    launches = "one launch" if how == 0 else "two launches"
    block, warps = choice["BLOCK_SIZE"], choice["num_warps"]
    sizes = ["n_classes", "n_positions", f"BLOCK_SIZE={block}", f"num_warps={warps}"]
    if how == 0:
        result, made = "loss", f"torch.empty(target.shape, dtype=torch.{dtype}, device=logits.device)"
    else:
        lines = 2 if how == 1 else 1  # a mean counts as well
        result = "partial"
        made = f"torch.empty(({lines}, n_programs), dtype=torch.float32, device=logits.device)"
    text = [
        f"def {name}({', '.join(names)}):",
        f'    """Cross entropy in {launches}; no probability is written."""',
        f"    {', '.join(names)} = {', '.join(f'{item}.contiguous()' for item in names)}",
        "    n_images, n_classes = logits.shape[:2]",
        "    n_positions = logits.shape[2:].numel()",
        f"    n_programs = n_images * ({source.blocks('n_positions', block)})",
        f"    {result} = {made}",
        "    if n_programs > 0:  # a grid of zero programs cannot be launched",
        source.wrapped(f"_{name}_kernel[(n_programs,)](", [*names, result, *sizes], ")", indent=" " * 8),
    ]
    if how != 0:
        text += [
            f"    out = torch.empty((), dtype=torch.{dtype}, device=logits.device)",
            f"    _{name}_total_kernel[(1,)](partial, out, n_programs, BLOCK_SIZE=1024, num_warps=4)",
        ]
    return "\n".join([*text, f"    return {'loss' if how == 0 else 'out'}", ""])
