"""Triton source of bilinear and bicubic resampling, forward and backward.

A program takes some places of some planes: where a place reads from and with which weights is
computed once for all of its planes. The backward gathers as well: for each element of the input it
visits the results that have read it, so that sums are made in float32 and in a fixed order, where
torch's adds to the gradient by atomics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.generated import GeneratedSource

MAX_VISITS = 144
"""Results that one element's gradient is gathered from, at most: a row of twelve by twelve."""
UNROLLED = 16
"""Visits up to which both loops of the backward are unrolled."""
SLACK = 1e-3
"""How far float32 may be off where a place is a whole number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResampledAxis:
    """How one dimension is resampled."""

    size: int
    out: int
    scale: float
    """Distance of neighboring results in the input."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResamplingJob:
    name: str
    dtype: str
    is_cubic: bool
    align_corners: bool
    axes: tuple[ResampledAxis, ResampledAxis]
    choice: Mapping[str, Any]
    is_trained: bool

    @property
    def reach(self) -> int:
        """How far a result reads on each side of its place."""
        return 2 if self.is_cubic else 1

    @property
    def words(self) -> str:
        """What it is called."""
        return "Bicubic" if self.is_cubic else "Bilinear"


LINEAR = '''\
@triton.jit
def _{name}_weight(distance):
    """Share of an element at that distance in a result."""
    return tl.maximum(1.0 - tl.abs(distance), 0.0)
'''
CUBIC = '''\
@triton.jit
def _{name}_weight(distance):
    """Share of an element at that distance in a result: the cubic convolution with a = -0.75."""
    d = tl.abs(distance)
    near = (1.25 * d - 2.25) * d * d + 1.0
    far = ((-0.75 * d + 3.75) * d - 6.0) * d + 3.0
    return tl.where(d <= 1.0, near, tl.where(d < 2.0, far, 0.0))
'''
PLACE = '''\
@triton.jit
def _{name}_place(index, scale):
    """Where in the input a result lies."""
    return {place}
'''
PLACES = {
    (True, False): "index.to(tl.float32) * scale",
    (True, True): "index.to(tl.float32) * scale",
    (False, False): "tl.maximum((index.to(tl.float32) + 0.5) * scale - 0.5, 0.0)",
    (False, True): "(index.to(tl.float32) + 0.5) * scale - 0.5",
}
"""By (align_corners, is_cubic)."""
FORWARD = '''\
@triton.jit
def _{name}_kernel(
    x_ptr, out_ptr, n_planes, scale_y, scale_x, height: tl.constexpr, width: tl.constexpr,
    out_height: tl.constexpr, out_width: tl.constexpr, BLOCK_PLANES: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):
    """Each program computes BLOCK_SIZE places of BLOCK_PLANES planes."""
    n_blocks: tl.constexpr = (out_height * out_width + BLOCK_SIZE - 1) // BLOCK_SIZE
    spots = tl.program_id(0) % n_blocks * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)[None, :]
    first_plane = (tl.program_id(0) // n_blocks).to(tl.int64) * BLOCK_PLANES  # offsets can pass 2**31
    planes = first_plane + tl.arange(0, BLOCK_PLANES)[:, None]
    mask = (planes < n_planes) & (spots < out_height * out_width)  # the last planes and places
    y = _{name}_place(spots // out_width, scale_y)
    x = _{name}_place(spots % out_width, scale_x)
    top, left = tl.floor(y).to(tl.int32){before}, tl.floor(x).to(tl.int32){before}
    total = tl.zeros([BLOCK_PLANES, BLOCK_SIZE], tl.float32)
    for i in tl.static_range({taps}):
        row = tl.minimum(tl.maximum(top + i, 0), height - 1)
        line = tl.zeros([BLOCK_PLANES, BLOCK_SIZE], tl.float32)
        for j in tl.static_range({taps}):
            column = tl.minimum(tl.maximum(left + j, 0), width - 1)
            at = planes * (height * width) + row * width + column
            line += _{name}_weight(x - (left + j)) * tl.load(x_ptr + at, mask=mask).to(tl.float32)
        total += _{name}_weight(y - (top + i)) * line
    tl.store(out_ptr + planes * (out_height * out_width) + spots, total, mask=mask)


def {launcher}(x):
    """{summary}

    x: {dtype} (n_planes, height, width)
    out: {dtype} (n_planes, {out_height}, {out_width})
    """
    x = x.contiguous()
    height, width = x.shape[-2:]
    n_planes = x.numel() // (height * width)
    out = torch.empty((*x.shape[:-2], {out_height}, {out_width}), dtype=x.dtype, device=x.device)
    if n_planes > 0:  # a grid of zero programs cannot be launched
        grid = ((n_planes + {last_plane}) // {planes} * {blocks},)
        _{name}_kernel[grid](
            x, out, n_planes, {scale_y!r}, {scale_x!r}, height, width, {out_height}, {out_width},
            BLOCK_PLANES={planes}, BLOCK_SIZE={block}, num_warps={warps},
        )
    return out
'''
BACKWARD = '''\
@triton.jit
def _{name}_share(index, size: tl.constexpr, out_index, scale):
    """The weight with which a result has read an element, and whether it has read it."""
    place = _{name}_place(out_index, scale)
    first = tl.floor(place).to(tl.int32){before}
    weight, has_read = place * 0.0, index < 0
    for tap in tl.static_range({taps}):
        hit = tl.minimum(tl.maximum(first + tap, 0), size - 1) == index
        weight += tl.where(hit, _{name}_weight(place - (first + tap)), 0.0)
        has_read = has_read | hit
    return weight, has_read


@triton.jit
def _{name}_backward_kernel(
    grad_ptr, grad_x_ptr, n_planes, scale_y, scale_x, height: tl.constexpr, width: tl.constexpr,
    out_height: tl.constexpr, out_width: tl.constexpr, BLOCK_PLANES: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):
    """Each program gathers the gradient of BLOCK_SIZE places of BLOCK_PLANES planes."""
    n_blocks: tl.constexpr = (height * width + BLOCK_SIZE - 1) // BLOCK_SIZE
    spots = tl.program_id(0) % n_blocks * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)[None, :]
    first_plane = (tl.program_id(0) // n_blocks).to(tl.int64) * BLOCK_PLANES  # offsets can pass 2**31
    planes = first_plane + tl.arange(0, BLOCK_PLANES)[:, None]
    mask = (planes < n_planes) & (spots < height * width)  # the last planes and places
    row, column = spots // width, spots % width
    top = tl.maximum(tl.floor((row - {reach}) / scale_y{shift_y}).to(tl.int32), 0)
    left = tl.maximum(tl.floor((column - {reach}) / scale_x{shift_x}).to(tl.int32), 0)
    total = tl.zeros([BLOCK_PLANES, BLOCK_SIZE], tl.float32)
    for i in {range}({visits_y}):
        share_y, in_y = _{name}_share(row, height, top + i, scale_y)
        for j in tl.static_range({visits_x}):
            share_x, in_x = _{name}_share(column, width, left + j, scale_x)
            at = planes * (out_height * out_width) + (top + i) * out_width + left + j
            inside = in_y & in_x & (top + i < out_height) & (left + j < out_width)
            # Only what has read this place: others may be infinite.
            grad = tl.load(grad_ptr + at, mask=mask & inside, other=0.0).to(tl.float32)
            total += share_y * share_x * grad
    tl.store(grad_x_ptr + planes * (height * width) + spots, total, mask=mask)


def {name}_backward(grad, shape):
    """The gradient of {name}'s input, which had that shape.

    grad: {dtype} (n_planes, {out_height}, {out_width})
    grad_x: {dtype} (n_planes, height, width)
    """
    grad = grad.contiguous()
    height, width = shape[-2:]
    grad_x = torch.empty(shape, dtype=grad.dtype, device=grad.device)
    n_planes = grad_x.numel() // (height * width)
    if n_planes > 0:  # a grid of zero programs cannot be launched
        blocks = (height * width + {last_spot}) // {block}
        grid = ((n_planes + {last_plane}) // {planes} * blocks,)
        _{name}_backward_kernel[grid](
            grad, grad_x, n_planes, {scale_y!r}, {scale_x!r}, height, width, {out_height}, {out_width},
            BLOCK_PLANES={planes}, BLOCK_SIZE={block}, num_warps={warps},
        )
    return grad_x


class _{title}(torch.autograd.Function):
    """{summary}

    Nothing is kept for the backward but the shape.
    """

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return {name}_forward(x)

    @staticmethod
    def backward(ctx, grad):
        if torch.is_grad_enabled():  # create_graph=True: a kernel has no derivative of its own
            return {again}
        return {name}_backward(grad, ctx.shape)


def {name}(x):
    return _{title}.apply(x)
'''


def emit(job: ResamplingJob) -> GeneratedSource:
    """Source of the kernels of a job with their launcher."""
    name, (rows, columns) = job.name, job.axes
    planes, block = job.choice["BLOCK_PLANES"], job.choice["BLOCK_SIZE"]
    summary = f"{job.words} resampling, each result from its neighbors in the input."
    launcher = f"{name}_forward" if job.is_trained else name
    visits = [visited(job, axis) for axis in job.axes] if job.is_trained else [0, 0]
    given: dict[str, Any] = {
        "name": name, "title": source.title(name), "launcher": launcher, "summary": summary,
        "dtype": job.dtype, "place": PLACES[job.align_corners, job.is_cubic],
        "before": " - 1" if job.is_cubic else "", "taps": 2 * job.reach, "reach": job.reach,
        "scale_y": rows.scale, "scale_x": columns.scale,
        "out_height": rows.out, "out_width": columns.out,
        "planes": planes, "last_plane": planes - 1, "block": block, "last_spot": block - 1,
        "blocks": -(-rows.out * columns.out // block), "warps": job.choice["num_warps"],
        "shift_y": _shift(job, rows), "shift_x": _shift(job, columns),
        "visits_y": visits[0], "visits_x": visits[1],
        "range": "tl.static_range" if math.prod(visits) <= UNROLLED else "range",
        "again": _again(job),
    }  # fmt: skip
    templates = [CUBIC if job.is_cubic else LINEAR, PLACE, FORWARD]
    templates += [BACKWARD] if job.is_trained else []
    texts = [template.format(**given) for template in templates]
    return source.module(name, texts, summary, (rows.scale, columns.scale))


def _shift(job: ResamplingJob, axis: ResampledAxis) -> str:
    """Source to add to ``(index - reach) / scale``, the first result that has read an element."""
    if job.align_corners:
        return ""
    return f" + {0.5 / axis.scale - 0.5!r}"


def visited(job: ResamplingJob, axis: ResampledAxis) -> int:
    """How many results the backward visits along a dimension for each element: the most that any
    element needs, counted from the first result that may have read it."""
    results = np.arange(axis.out)
    places = results * axis.scale
    if not job.align_corners:
        places = (results + 0.5) * axis.scale - 0.5
        places = places if job.is_cubic else np.maximum(places, 0.0)
    shift = 0.0 if job.align_corners else 0.5 / axis.scale - 0.5
    first = np.floor((np.arange(axis.size) - job.reach) / axis.scale + shift - SLACK)
    last = np.searchsorted(places, np.arange(axis.size) + job.reach + SLACK) - 1
    return int(max(1, (last - np.maximum(first, 0)).max() + 1))


def _again(job: ResamplingJob) -> str:
    """The gradient in PyTorch, as source: it has a derivative."""
    sizes = ", ".join(str(axis.out) for axis in job.axes)
    scales = ", ".join(repr(1.0 / axis.scale) for axis in job.axes)
    scales = "None, None" if job.align_corners else scales
    kind = job.words.lower()
    return (
        f"torch.ops.aten.upsample_{kind}2d_backward(grad, ({sizes}), ctx.shape, "
        f"{job.align_corners}, {scales})"
    )
