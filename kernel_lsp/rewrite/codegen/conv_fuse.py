"""From a convolution in the graph to a match, its search space, and the launch that replaces it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Proof
from kernel_lsp.rewrite.codegen import conv, conv_cost
from kernel_lsp.rewrite.codegen.body import Names
from kernel_lsp.rewrite.codegen.conv_facts import Conv, conv_of
from kernel_lsp.rewrite.codegen.conv_tail import Tail, tail_of
from kernel_lsp.rewrite.codegen.pointwise import dtype_name, op_name
from kernel_lsp.rewrite.codegen.source import next_power_of_two
from kernel_lsp.rewrite.generated import Generated, Match
from kernel_lsp.rewrite.graph import Graph

MOST_CHANNELS = 256
"""Channels of one tile: 128 pixels x 256 sums are 256 registers a thread at 4 warps, 128 at 8."""
TF32 = "torch.backends.cudnn.allow_tf32"


def matches(graph: Graph, *, depthwise: bool = False) -> list[Match]:
    """One for each convolution of the kind."""
    found = []
    for node in graph.nodes:
        facts = conv_of(node)
        if facts is None or is_depthwise(facts) != depthwise or not small_enough(facts):
            continue
        tail = tail_for(graph, facts)
        found.append(
            Match(
                nodes=(node, *tail.nodes),
                label=graph.label(node, *tail.nodes),
                summary=f"run {describe(facts, tail)} as one kernel",
                benefit=conv_cost.benefit(graph, facts, tail, exact=precisions(facts)[0] == "tf32x3"),
                plain=False,
                data={"conv": node.name},
            )
        )
    return found


def is_depthwise(facts: Conv) -> bool:
    """Each output channel reads one input channel, of several."""
    return facts.group_in == 1 and facts.groups > 1


def small_enough(facts: Conv) -> bool:
    """Offsets inside one image and inside the weight fit 32 bits."""
    image = max(facts.in_channels * math.prod(facts.size), facts.out_channels * math.prod(facts.out))
    return image < 2**31 and facts.weight.meta["val"].numel() < 2**31


def tail_for(graph: Graph, facts: Conv) -> Tail:
    return tail_of(graph, facts, channels=facts.out_channels <= MOST_CHANNELS)


def parameters(graph: Graph, match: Match) -> dict[str, list[Any]]:
    """Finite, default first."""
    facts = found(graph, match)
    return space(facts, tail_for(graph, facts))


def space(facts: Conv, tail: Tail) -> dict[str, list[Any]]:
    if is_depthwise(facts):
        return {
            "way": ["depthwise"],
            "precision": ["native"],
            "BLOCK_PIXELS": [256, 512, 128],
            "BLOCK_CHANNELS": [1],
            "num_warps": [4, 8],
        }
    block = max(16, next_power_of_two(facts.out_channels // facts.groups))
    channels = block if tail.all_channels else min(128, block)
    found = ways(facts)
    return {
        "way": found,
        "precision": precisions(facts),
        "BLOCK_PIXELS": [64 if channels > 128 else 128],
        "BLOCK_CHANNELS": [channels],
        "BLOCK_K": block_ks(facts, found[0]),
        "num_warps": [8, 4] if channels >= 128 else [4, 8],
        "num_stages": [4 if found[0] == "taps" else 3],
    }


def ways(facts: Conv) -> list[str]:
    """See conv.py: few input channels are gathered, many go tap by tap or through the library."""
    if gathers(facts):
        rows = facts.rank > 1 and facts.depth > 64 and facts.group_in * facts.kernel[-1] <= 64
        return ["rows", "gather"] if rows else ["gather"]
    return ["taps", "library"] if facts.symmetric else ["taps"]


def gathers(facts: Conv) -> bool:
    return facts.taps > 1 and facts.group_in < 16


def block_ks(facts: Conv, way: str) -> list[int]:
    if way == "rows":
        return [max(16, next_power_of_two(facts.group_in * facts.kernel[-1]))]
    if way == "gather":
        return [max(16, min(64, next_power_of_two(facts.depth)))]
    return [32, 16] if facts.taps == 1 else [16, 32]


def precisions(facts: Conv) -> list[str]:
    """cuDNN uses TF32 for float32 in eager mode unless told otherwise (the guard asks). With few input
    channels it may have exact kernels only, so there three TF32 products stand for an exact one."""
    if facts.dtype != torch.float32:
        return ["native"]
    return ["tf32x3", "tf32"] if gathers(facts) else ["tf32", "tf32x3"]


def found(graph: Graph, match: Match) -> Conv:
    node = next((node for node in graph.nodes if node.name == match.data["conv"]), None)
    facts = conv_of(node) if node is not None else None
    if facts is None:
        raise RewriteError(f"{match.label} is no longer there")
    return facts


def apply(graph: Graph, match: Match, choice: dict[str, Any]) -> None:
    facts = found(graph, match)
    tail = tail_for(graph, facts)
    defaults = {name: choices[0] for name, choices in space(facts, tail).items()}
    known = {**defaults, **{k: v for k, v in choice.items() if k in defaults}}
    job = job_of(graph, facts, tail)
    launch(graph, job, conv.emit(job, known))
    if known["precision"] == "tf32" and graph.device == "cuda":
        graph.require(TF32, "the kernel multiplies in TF32, as cuDNN does while this flag is set")


def launch(graph: Graph, job: conv.Job, kernel: Generated) -> None:
    value = job.result.meta["val"]
    with value.fake_mode:
        like = value.contiguous()
    call = graph.call_generated(
        kernel, list(job.names), like=like, before=job.result, name=f"{job.result.name}_fused"
    )
    graph.replace(job.result, call)
    if job.tail.work:
        graph.caveat("intermediate results stay in float32; eager rounds each of them to the tensor's dtype")
    graph.caveat("products are summed in another order")


def job_of(graph: Graph, facts: Conv, tail: Tail) -> conv.Job:
    """Names that read like the person's code, and a name that nothing else has."""
    names = Names([*SIZE_WORDS, "out", "packed", "batch", "tiles", "n_pixels", "grid", "convolved",
                   "channels_last", "result", "by_image"])  # fmt: skip
    tensors = [facts.x, facts.weight, *([facts.bias] if facts.bias is not None else []), *tail.operands]
    chosen: dict[fx.Node, str] = {}
    for node in dict.fromkeys(tensors):
        path = graph.state.get(node)
        wish = path.split(".")[-1] if path else "x" if node is facts.x else node.name
        chosen[node] = names.fresh(wish)
    words = [op_name(facts.node), *(w for w in dict.fromkeys(map(_word, tail.work)))]
    name = "fused_" + "_".join(words[:4])
    taken = {kernel.name for kernel in graph.generated}
    unique, count = name, 1
    while unique in taken or unique in graph.origin.program:
        count += 1
        unique = f"{name}_{count}"
    summary = describe(facts, tail)
    return conv.Job(
        name=unique,
        conv=facts,
        tail=tail,
        names=chosen,
        summary=f"{summary[:1].upper()}{summary[1:]}, in one kernel.",
    )


SIZE_WORDS = ("width", "height", "depth", "out_width", "out_height", "out_depth", "kernel_width",
              "kernel_height", "kernel_depth", "in_channels", "out_channels", "x_ptr")  # fmt: skip


def describe(facts: Conv, tail: Tail) -> str:
    window = " x ".join(map(str, facts.kernel))
    words = [_word(node) for node in tail.work]
    if len(words) > 5:
        words = [*words[:2], "…", *words[-2:]]
    parts = [f"a {window} convolution", *words]
    return ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]


def _word(node: fx.Node) -> str:
    return op_name(node).strip("_")


def proofs(graph: Graph, match: Match) -> list[Proof]:
    facts = found(graph, match)
    nodes: Iterable[str] = [node.name for node in match.nodes[1:]]
    return [
        Proof(claim="zeros surround the input, if anything does", holds=True,
              because=f"{op_name(facts.node)} pads with zeros; other paddings are nodes of their own"),
        Proof(claim="offsets inside one image fit 32 bits", holds=small_enough(facts),
              because=f"shapes of {facts.x.name} and {facts.node.name}"),
        Proof(claim="nobody else reads what is no longer written", holds=True,
              because=f"the graph's edges; the tail is {', '.join(nodes) or 'empty'}"),
        Proof(claim="input, weight and arithmetic share one float type", holds=True,
              because=f"dtype is {dtype_name(facts.dtype)}"),
        Proof(claim="no gradient is lost", holds=True,
              because="the dispatch guard takes the original path while gradients are recorded"),
    ]  # fmt: skip
