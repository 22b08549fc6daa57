"""Bilinear and bicubic resampling of images: which nodes get a kernel, and what it saves.

Covered: four dimensions, contiguous, with and without aligned corners, sizes or factors, larger and
smaller; training. Not covered: one or three dimensions, antialiasing, channels-last tensors,
images of one row or column, operations before and after. The kernels' text is `source.py`'s."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from kernel_lsp.records import Proof
from kernel_lsp.rewrite.codegen.core import launching
from kernel_lsp.rewrite.codegen.core.nodes import FLOATS, dtype_name, op_name
from kernel_lsp.rewrite.codegen.regions import cost
from kernel_lsp.rewrite.codegen.resampling.source import (
    MAX_VISITS,
    ResampledAxis,
    ResamplingJob,
    emit,
    visited,
)
from kernel_lsp.rewrite.generated import GUARDED, GeneratedSource, Match
from kernel_lsp.rewrite.graph import Graph, argument

NAMES = {"upsample_bilinear2d": False, "upsample_bicubic2d": True}
"""By operation: whether it is cubic."""
PARAMETERS: dict[str, list[Any]] = {
    "BLOCK_SIZE": [128, 256],
    "BLOCK_PLANES": [4, 2, 8],
    "num_warps": [4, 8],
}
"""Choices for the kernels, the default first. Eight planes took 1.2 to 1.6 times as long as four,
bilinear, and twice as long, cubic (H200, 2026-11-28)."""
MIN_SAVING = 0.1
EAGER_SHARE = {False: 0.047, True: 0.0024}
"""Of copy speed, by whether it is cubic, forward and backward together: a thread of torch's walks all
planes of one place, and its backward adds by atomics. [8, 64, 128, 128] by two took 0.83 and 16.0 ms
where the bytes of both directions take 0.039; fewer places take longer (0.015 and 0.0002 of copy
speed for [16, 256, 32, 32]); H200, 2026-11-28."""
OWN_SHARE = {False: 0.15, True: 0.047}
"""The same of the kernels here: 0.26 and 0.83 ms. A forward alone was not measured: it is taken to
reach the same."""


def find(graph: Graph, node: fx.Node) -> ResamplingJob | None:
    """The resampling that the node is; None where it is none that is generated."""
    if not _is_covered(node):
        return None
    x, out = node.args[0].meta["val"], node.meta["val"]
    corners = bool(argument(node, "align_corners"))
    sizes = [(int(a), int(b)) for a, b in zip(x.shape[-2:], out.shape[-2:], strict=True)]
    factors = _factors(node)
    rows, columns = (
        ResampledAxis(size=size, out=result, scale=_scale(size, result, corners, factor))
        for (size, result), factor in zip(sizes, factors, strict=True)
    )
    job = ResamplingJob(
        name=op_name(node).removesuffix("2d"),
        dtype=dtype_name(x.dtype),
        is_cubic=NAMES[op_name(node)],
        align_corners=corners,
        axes=(rows, columns),
        choice={},
        is_trained=bool(graph.gradients and graph.carries(node.args[0])),
    )
    if not job.is_trained:
        return job
    gathered = math.prod(visited(job, axis) for axis in job.axes) <= MAX_VISITS
    return job if gathered and not graph.origin.hides_gradients else None


def _is_covered(node: fx.Node) -> bool:
    """An image in, an image out, both contiguous and of more than one row and column."""
    if op_name(node) not in NAMES:
        return False
    images = [node.args[0].meta["val"], node.meta["val"]]
    return images[0].dtype in FLOATS and all(map(_is_image, images))


def _is_image(value: torch.Tensor) -> bool:
    if value.dim() != 4 or not value.numel() or not value.is_contiguous():
        return False
    return min(value.shape[-2:]) > 1 and value.shape[-2:].numel() < 2**30


def _factors(node: fx.Node) -> list[float | None]:
    """The factors that the program gives, which count where they differ from the sizes'."""
    given = argument(node, "scale_factors", None)
    if given is not None:
        return [float(factor) for factor in given]
    return [argument(node, name, None) for name in ("scales_h", "scales_w")]


def _scale(size: int, out: int, corners: bool, factor: float | None) -> float:
    """As torch has it: area_pixel_compute_scale."""
    if corners:
        return (size - 1) / (out - 1)
    return 1.0 / factor if factor is not None and factor > 0 else size / out


def matches(graph: Graph) -> list[Match]:
    """Images that are resampled, each with what a kernel is estimated to save."""
    return [
        Match(
            nodes=(node,),
            label=graph.label(node),
            summary=f"{job.words.lower()} resampling from neighbors, gradients gathered"
            if job.is_trained
            else f"{job.words.lower()} resampling from neighbors",
            benefit=_benefit(graph, node, job),
            plain=False,
            differentiable=True,
            data={"parameters": PARAMETERS},
        )
        for node in graph.nodes
        if (job := find(graph, node)) is not None
    ]


def _benefit(graph: Graph, node: fx.Node, job: ResamplingJob) -> float:
    moved = cost.bytes_of(node) + cost.bytes_of(node.args[0])
    moving_s, overhead_s = moved / cost.rates(graph).bytes_per_s, cost.rates(graph).overhead_s
    kernels = 2 if job.is_trained else 1
    eager_s = kernels * (moving_s / EAGER_SHARE[job.is_cubic] + overhead_s)
    ours_s = cost.launched_seconds(graph, kernels * moving_s / OWN_SHARE[job.is_cubic], kernels)
    return cost.share_of(graph, eager_s, ours_s, MIN_SAVING)


def proofs(graph: Graph, match: Match) -> list[Proof]:
    """What holds of the match, each with its reason."""
    (node,) = match.nodes
    job = find(graph, node)
    return [
        Proof(
            claim="places and weights are torch's",
            holds=job is not None,
            because="" if job is None else f"distances of {[axis.scale for axis in job.axes]}",
        ),
        Proof(
            claim="no gradient is lost",
            holds=True,
            because="it is gathered, in a kernel behind torch.autograd.Function"
            if graph.gradients
            else GUARDED,
        ),
    ]


def apply(graph: Graph, match: Match, choice: dict[str, Any]) -> None:
    """Puts the kernel in the node's place."""
    (node,) = match.nodes
    job = find(graph, node)
    assert job is not None, "find it first"
    chosen = {name: choice.get(name, found[0]) for name, found in PARAMETERS.items()}
    job = replace(job, choice=chosen)

    def make(name: str) -> GeneratedSource:
        made = emit(replace(job, name=name))
        return replace(made, supports_autograd=graph.gradients)

    kernel = launching.make_named(graph, job.name, make)
    launching.launch(graph, kernel, [node.args[0]], [node], node)
    graph.caveat("the sums of a place are made in float32, of a gradient without atomics")
