"""From a convolution in the graph to a match, its search space, and the launch that replaces it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Proof
from kernel_lsp.rewrite.codegen.convolution import cost as conv_cost
from kernel_lsp.rewrite.codegen.convolution import source as conv
from kernel_lsp.rewrite.codegen.convolution import trained as training
from kernel_lsp.rewrite.codegen.convolution.facts import Conv, conv_of
from kernel_lsp.rewrite.codegen.convolution.launcher import ConvolutionJob
from kernel_lsp.rewrite.codegen.convolution.tail import Tail, tail_of
from kernel_lsp.rewrite.codegen.core import launching
from kernel_lsp.rewrite.codegen.core.body import UniqueNames
from kernel_lsp.rewrite.codegen.core.nodes import dtype_name, op_name
from kernel_lsp.rewrite.codegen.core.source import next_power_of_two
from kernel_lsp.rewrite.generated import GUARDED, GeneratedSource, Match
from kernel_lsp.rewrite.graph import Graph

MAX_CHANNELS = 256
"""Channels of one tile: 128 pixels x 256 sums are 256 registers a thread at 4 warps, 128 at 8."""
TF32 = "torch.backends.cudnn.allow_tf32"


def matches(graph: Graph, *, depthwise: bool = False) -> list[Match]:
    """One for each convolution of the kind."""
    found = []
    for node in graph.nodes:
        facts = conv_of(node)
        if facts is None or facts.depthwise != depthwise or not small_enough(facts):
            continue
        trained = graph.gradients and depthwise and training.is_trainable(graph, facts)
        tail = tail_for(graph, facts)
        benefit = conv_cost.benefit(graph, facts, tail, _default(facts, tail))
        found.append(
            Match(
                nodes=(node, *tail.nodes),
                label=graph.label(node, *tail.nodes),
                summary=f"run {describe(facts, tail)} as one kernel",
                benefit=round(benefit * training.trained_share(facts), 4) if trained else benefit,
                plain=False,
                differentiable=trained,
                data={"conv": node.name},
            )
        )
    return found


def small_enough(facts: Conv) -> bool:
    """Offsets inside one image and inside the weight fit 32 bits."""
    image = max(
        facts.in_channels * math.prod(facts.size), facts.out_channels * math.prod(facts.out)
    )
    return image < 2**31 and facts.weight.meta["val"].numel() < 2**31


def tail_for(graph: Graph, facts: Conv) -> Tail:
    """What joins the convolution; nothing where it is depthwise and trained."""
    if graph.gradients and facts.depthwise:  # its backward is the convolution's alone
        return Tail(nodes=(), roles={}, operands={})
    return tail_of(graph, facts, channels=facts.out_channels <= MAX_CHANNELS)


def parameters(graph: Graph, match: Match) -> dict[str, list[Any]]:
    """Finite, default first."""
    facts = find_convolution(graph, match)
    return space(facts, tail_for(graph, facts))


def space(facts: Conv, tail: Tail) -> dict[str, list[Any]]:
    """Defaults are what was fastest in the round on an H200 that cost.py is fitted to.
    Without a tail the library's way has nothing to add to the library."""
    if facts.depthwise:
        return {
            "way": ["depthwise"],
            "precision": ["native"],
            "BLOCK_PIXELS": [256, 512, 128],
            "BLOCK_CHANNELS": [1],
            "num_warps": [4, 8],
        }
    block = max(16, next_power_of_two(facts.out_channels // facts.groups))
    channels = block if tail.all_channels else min(128, block)
    found: dict[str, list[Any]] = {
        "way": [way for way in ways(facts) if way != "library" or tail.work],
        "precision": precisions(facts),
        "BLOCK_PIXELS": _pixel_blocks(facts, channels),
        "BLOCK_CHANNELS": [channels],
        "BLOCK_K": [block_k(facts)],
        "num_warps": _warps(facts, channels),
        "num_stages": [4, 2] if "rows" in ways(facts) else [4 if facts.taps > 1 else 3],
    }
    if tail.pool is not None and conv.stacks(tail.pool):
        alone = gathers(facts) and facts.depth <= block_k(facts)
        found["whole_windows"] = [False, True] if alone else [True]
    return _cheapest_first(facts, tail, found)


def _pixel_blocks(facts: Conv, channels: int) -> list[int]:
    if not gathers(facts):
        return [64 if channels > 128 else 128]
    if channels > 128:
        return [64]
    return [256, 128] if channels == 64 and facts.depth > 32 else [128, 64]


def _warps(facts: Conv, channels: int) -> list[int]:
    if gathers(facts):
        return [8] if channels >= 128 or (channels >= 64 and facts.depth > 32) else [4]
    return [8, 4] if channels >= 128 else [4, 8]


def _cheapest_first(facts: Conv, tail: Tail, space: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The way that was measured, unless another is estimated to be much cheaper."""
    first = {name: choices[0] for name, choices in space.items()}
    costs = {way: conv_cost.our_seconds(facts, tail, {**first, "way": way}) for way in space["way"]}
    measured = space["way"][0]
    if "library" in costs and facts.rank != 2:
        costs["library"] *= 1.5  # only images were measured in channels_last
    elif tail.pool is not None and measured == "taps":
        costs[measured] *= (
            1.6  # windows one after the other were measured, and lost; whole ones were not
        )
    best = min(costs, key=lambda way: costs[way] * (1.0 if way == measured else 1.2))
    return {**space, "way": [best, *(way for way in space["way"] if way != best)]}


def ways(facts: Conv) -> list[str]:
    """See accumulate.py: few input channels are gathered, many go tap by tap or through the
    library."""
    if facts.transposed:
        return ["taps"]  # where the weight is laid out anew in any case
    if gathers(facts):
        rows = facts.rank > 1 and facts.depth > 64 and facts.group_in * facts.kernel[-1] <= 64
        # Compiled for sm_90, 32 terms take 396 instructions by rows and 2247 gathered (7 x 7, 3
        # channels).
        return ["rows", "gather"] if rows else ["gather"]
    return ["taps", "library"] if facts.symmetric else ["taps"]


def gathers(facts: Conv) -> bool:
    """Whether the kernel reads a block of taps and channels at once: few channels in, more than one
    tap."""
    return facts.taps > 1 and facts.group_in < 16 and not facts.transposed


def block_k(facts: Conv) -> int:
    """Numbers of the inner dimension in a block: 16 or more, a power of two."""
    if "rows" in ways(facts):  # a row of the filter is one block
        return max(16, next_power_of_two(facts.group_in * facts.kernel[-1]))
    if gathers(facts):
        return max(16, min(32, next_power_of_two(facts.depth)))
    return 16 if facts.dtype == torch.float32 and facts.taps > 1 else 32


def precisions(facts: Conv) -> list[str]:
    """cuDNN uses TF32 for float32 in eager mode unless a flag forbids it (the guard asks). With few
    channels it may have exact kernels only (measured: 3 to 24 channels, not 3 to 64), so there
    three TF32 products may have to stand for an exact one; where the sum is one block they cost
    next to nothing."""
    if facts.dtype != torch.float32:
        return ["native"]
    few = gathers(facts) and (facts.depth <= 32 or facts.out_channels % 32 != 0)
    return ["tf32x3", "tf32"] if few or facts.is_exact_in_library else ["tf32", "tf32x3"]


def _default(facts: Conv, tail: Tail) -> dict[str, Any]:
    return {name: choices[0] for name, choices in space(facts, tail).items()}


def find_convolution(graph: Graph, match: Match) -> Conv:
    """The convolution of the match. Raises RewriteError where it is no longer there."""
    facts = conv_of(graph.named(match.data["conv"]))
    if facts is None:
        raise RewriteError(f"{match.label} is no longer a convolution")
    return facts


def apply(graph: Graph, match: Match, choice: dict[str, Any]) -> None:
    """Put a kernel in the place of the convolution and what joins it. Raises RewriteError."""
    facts = find_convolution(graph, match)
    tail = tail_for(graph, facts)
    defaults = _default(facts, tail)
    known = {**defaults, **{k: v for k, v in choice.items() if k in defaults}}
    job = job_of(graph, facts, tail)
    kernel = conv.emit(job, known)
    if graph.gradients and facts.depthwise and training.is_trainable(graph, facts):
        kernel = training.differentiable(job, kernel)
    launch(graph, job, kernel)
    if known["way"] != "library" and known["precision"] == "tf32" and graph.device == "cuda":
        graph.require(TF32, "the kernel multiplies in TF32, as cuDNN does while this flag is set")


def launch(graph: Graph, job: ConvolutionJob, kernel: GeneratedSource) -> None:
    """Put the launch of this kernel in the place of the job, with what users are warned of."""
    launching.launch(graph, kernel, list(job.names), [job.result], job.result)
    if job.tail.work:
        graph.caveat(
            "intermediate results stay in float32; eager rounds each of them to the tensor's dtype"
        )
    graph.caveat("products are summed in another order")


def job_of(graph: Graph, facts: Conv, tail: Tail) -> ConvolutionJob:
    """Names that read like the person's code, and a name that nothing else has."""
    names = UniqueNames([*SIZE_WORDS, "out", "packed", "batch", "tiles", "n_pixels", "grid",
                   "convolved",
                   "channels_last", "result", "by_image", "shape", "ctx", "wanted", "rest",
                   "grad_x", "grad_out", "grad_weight", "grad_bias"])  # fmt: skip
    tensors = [
        facts.x,
        facts.weight,
        *([facts.bias] if facts.bias is not None else []),
        *tail.operands,
    ]
    chosen: dict[fx.Node, str] = {}
    for node in dict.fromkeys(tensors):
        chosen[node] = names.fresh(_wish(graph, facts, node))
    words = [op_name(facts.node), *(w for w in dict.fromkeys(map(_word, tail.work)))]
    summary = describe(facts, tail)
    return ConvolutionJob(
        name=launching.unique_name(graph, "fused_" + "_".join(words[:4])),
        conv=facts,
        tail=tail,
        names=chosen,
        words={node: graph.variable(node) for node in (facts.node, *tail.nodes)},
        summary=f"{summary[:1].upper()}{summary[1:]}, in one kernel.",
    )


SIZE_WORDS = ("width", "height", "depth", "out_width", "out_height", "out_depth", "kernel_width",
              "kernel_height", "kernel_depth", "in_channels", "out_channels", "x_ptr",
              "phase_width",
              "phase_height", "phase_depth")  # fmt: skip


def _wish(graph: Graph, facts: Conv, node: fx.Node) -> str:
    """The person's word for a tensor: of a layer's weight and bias, the layer's as well."""
    path = graph.state.get(node)
    if path is None:
        return node.name if node.op == "placeholder" or node is not facts.x else "x"
    parts = path.split(".")
    own = node in (facts.weight, facts.bias) or len(parts) == 1 or parts[-2].isdigit()
    return (
        parts[-1] if own or not parts[-1].startswith(("weight", "bias")) else "_".join(parts[-2:])
    )


def describe(facts: Conv, tail: Tail) -> str:
    """The convolution and what joins it in words, at most five of them in full."""
    window = " x ".join(map(str, facts.kernel))
    words = [_word(node) for node in tail.work]
    if len(words) > 5:
        words = [*words[:2], "…", *words[-2:]]
    parts = [f"a {window} {'transposed ' if facts.transposed else ''}convolution", *words]
    return ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]


def _word(node: fx.Node) -> str:
    return op_name(node).strip("_")


def proofs(graph: Graph, match: Match) -> list[Proof]:
    """What holds of the match, each with its reason."""
    facts = find_convolution(graph, match)
    gradients = GUARDED
    if match.differentiable:
        gradients = "the library's for weight and bias; the filter turned around for the input"
    nodes: Iterable[str] = [node.name for node in match.nodes[1:]]
    return [
        Proof(claim="zeros surround the input, if anything does", holds=True,
              because=f"{op_name(facts.node)} pads with zeros; other paddings are nodes of "
                      f"their own"),
        Proof(claim="offsets inside one image fit 32 bits", holds=small_enough(facts),
              because=f"shapes of {facts.x.name} and {facts.node.name}"),
        Proof(claim="nobody else reads what is no longer written", holds=True,
              because=f"the graph's edges; the tail is {', '.join(nodes) or 'empty'}"),
        Proof(claim="input, weight and arithmetic share one float type", holds=True,
              because=f"dtype is {dtype_name(facts.dtype)}"),
        Proof(claim="no gradient is lost", holds=True, because=gradients),
    ]  # fmt: skip
