"""How a matrix product is run, and about how long that takes: forms, tiles, splits, and when to
stay silent.

Only ranks choices and keeps hopeless places silent; what is offered has been measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import fx

from kernel_lsp.devices import REFERENCE
from kernel_lsp.rewrite.codegen.core.source import next_power_of_two
from kernel_lsp.rewrite.codegen.matmul.operands import MatmulProduct
from kernel_lsp.rewrite.codegen.matmul.plan import PROCESSORS, MatmulPlan
from kernel_lsp.rewrite.codegen.regions import cost
from kernel_lsp.rewrite.graph import Graph

SHARED_BYTES = 227 * 1024
LAUNCH_S = 4e-6
"""A Triton launch on the device's own clock; the Python in front of it runs ahead."""
HOST_S, DESCRIPTORS_HOST_S = 35e-6, 15e-6
"""What the host needs for one kernel with its share of the guard, and for two descriptors: a call
takes at least that. On an idle host of an H200 a launch takes 16 to 18 us, a guard 5 to 9, a
descriptor 3 to 5; beside three other jobs, where 20 chains were recorded, twice as long, and hosts
are rarely idle."""
RATES = {"parts": 480e12, "pointers": 480e12, "tiles": 180e12, "16 bits": 450e12}
"""Products of 16-bit numbers, whole tiles on every multiprocessor. Inside of a tile, splitting
takes longer than multiplying: 4096x4096x4096 took 2.3 ms on an H200 and 0.7 ms with parts written
beforehand and one sum on the tensor core; sums outside of it take an estimated sixth more.
Pointers are as fast as descriptors (benchmarks/results/spaces-h200-2026-11-21.json)."""
RAGGED = 4.0
"""How much longer tiles take that are split on the way and do not fill the inner dimension:
4096x256 over 676 took some 280 us on an H200, over 512 such tiles keep the rate above."""
L2_BYTES_PER_S = 6e12
CUBLAS = {True: 50e12, False: 650e12}
"""float32 on CUDA cores, 16 bits on tensor cores."""
SHORTEST_S = 15e-6
"""Below this the launches themselves are the time, and eager's are cheaper."""
SHORT_INNER = 64
MIN_SAVED_SHARE = 0.05
"""Share of the covered operations' own time that must be saved to speak up. 0.1 kept 512 products
of 128x256 by 128 silent, of which the estimate saves 9 % and an H200 18 % (1.22x over both
baselines)."""
MAX_PLANS, MAX_ALIKE = 10, 2
LONGEST_WALKED = 2048
"""Inner dimension beyond which finishing a tile is a small share of its time: hiding it gains
nothing."""
FLATTENED = 1.03
"""What asking at each block whether the tile is finished costs; assumed, not measured."""
# rows, columns, inner, warps, stages
PARTS = (
    (128, 128, 64, 8, 3), (128, 128, 32, 8, 4), (64, 128, 64, 4, 4), (128, 64, 64, 4, 4),
    (64, 64, 64, 4, 4),
)  # fmt: skip
"""Two sums are kept in registers: wider tiles would spill."""
# The same without inner: a block is the whole inner dimension when that is short.
TILES = (
    (128, 128, 8, 2),
    (64, 128, 4, 3),
    (128, 64, 4, 3),
    (64, 64, 4, 3),
    (32, 64, 4, 3),
    (16, 64, 4, 3),
)
HALVES = ((128, 256, 8, 3), (128, 128, 8, 4), (128, 128, 4, 4), (64, 128, 4, 4), (64, 64, 4, 4))
"""Tiles of 16-bit factors."""
SPLITS = (1, 2, 3, 4, 6, 8, 16, 32, 64, 128)


def plans(product: MatmulProduct) -> list[MatmulPlan]:
    """Finite search space, most promising first; never more than two that differ in splits alone,
    nor more than two persistent ones."""
    ranked = sorted(_plans(product), key=lambda plan: (seconds(product, plan), host_seconds(plan)))
    found, seen = list[MatmulPlan](), dict[tuple[object, ...], int]()
    for plan in ranked:
        key: tuple[object, ...] = ("persistent",)
        if not plan.persistent:
            key = plan.parts, plan.descriptors, plan.rows, plan.cols, plan.inner, plan.warps
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= MAX_ALIKE and len(found) < MAX_PLANS:
            found.append(plan)
    # The first is judged before anything was compared: a form whose gain is an estimate does not
    # lead.
    lead = next(plan for plan in found if not plan.persistent)
    return [lead, *(plan for plan in found if plan is not lead)]


def seconds(product: MatmulProduct, plan: MatmulPlan) -> float:
    """Estimated seconds of one call of the product alone."""
    return max(device_seconds(product, plan), host_seconds(plan))


def device_seconds(product: MatmulProduct, plan: MatmulPlan) -> float:
    """Parts, tiles, and the sum over splits."""
    float32 = product.node.meta["val"].dtype == torch.float32
    form = str(plan).split()[0] if float32 else "16 bits"
    programs = plan.splits * product.batch * _tiles(product, plan)
    inner = math.ceil(product.inner / plan.splits / plan.inner) * plan.inner
    # Small tiles read more for each product, and the memory behind them does not keep up.
    efficiency = min(1.0, (plan.rows * plan.cols / (128 * 128)) ** 0.25)
    one = (
        2.0
        * plan.rows
        * plan.cols
        * inner
        * (3 if float32 else 1)
        / (RATES[form] / PROCESSORS * efficiency)
    )
    if not plan.parts and float32 and product.inner % plan.inner:
        one *= RAGGED
    read = programs * (plan.rows + plan.cols) * inner * (4.0 if float32 else 2.0)
    busy = max(math.ceil(programs / PROCESSORS) * one, read / L2_BYTES_PER_S) * share(product, plan)
    size = 4.0 if float32 else 2.0
    out = product.batch * product.rows * product.cols
    write = 0.5 * size * out / _bytes_per_s()
    if plan.persistent:
        # All but the last tile of each program is written while the next one is multiplied.
        busy, write = busy * FLATTENED, write * plan.walkers / programs
    extra = parts_seconds(product) if plan.parts else 0.0
    if plan.splits > 1:
        extra += 8.0 * plan.splits * out / _bytes_per_s() + LAUNCH_S
    device = max(busy + write, moved_bytes(product) / _bytes_per_s())
    return device + LAUNCH_S + extra + copy_seconds(product)


def host_seconds(plan: MatmulPlan) -> float:
    """The host's part of a call, which runs beside the device's."""
    kernels = 1 + plan.parts + (plan.splits > 1)
    return kernels * HOST_S + plan.descriptors * DESCRIPTORS_HOST_S


def share(product: MatmulProduct, plan: MatmulPlan) -> float:
    """Part of all blocks that a product of triangular matrices multiplies."""
    if not product.triangular:
        return 1.0
    done = 0
    row_starts, col_starts = range(0, product.rows, plan.rows), range(0, product.cols, plan.cols)
    for row in row_starts:
        for col in col_starts:
            begin = max(row * (product.left_half == "upper"), col * (product.right_half == "lower"))
            end = min(
                row + plan.rows if product.left_half == "lower" else product.inner,
                col + plan.cols if product.right_half == "upper" else product.inner,
                product.inner,
            )
            outside = (product.kept_half == "upper" and col + plan.cols <= row) or (
                product.kept_half == "lower" and row + plan.rows <= col
            )
            done += 0 if outside else max(0, end - begin)
    return done / (len(row_starts) * len(col_starts) * product.inner)


def parts_seconds(product: MatmulProduct) -> float:
    """Seconds for both factors in one launch: read for the largest number of each row, read again,
    written."""
    moved = 12.0 * product.inner * (product.batch * product.rows + _columns(product))
    return moved / _bytes_per_s() + LAUNCH_S


def benefit(
    graph: Graph, product: MatmulProduct, nodes: Sequence[fx.Node], plan: MatmulPlan
) -> float:
    """Share of the target's time that is saved; 0 where too little is, or where no GPU is asked
    for."""
    if graph.device != "cuda":
        return 0.0
    tail = [node for node in nodes if node is not product.node]
    read = {arg for node in tail for arg in node.all_input_nodes if arg not in nodes}
    # Not the host's part: a recorded graph can take that away, and what is offered is measured.
    ours = device_seconds(product, plan) + sum(
        cost.read_once_seconds(graph, [node], 0) for node in read
    )
    before = eager_seconds(product) + sum(cost.eager_seconds(graph, node) for node in tail)
    if before < SHORTEST_S or ours > before * (1.0 - MIN_SAVED_SHARE):
        return 0.0
    whole = cost.eager_seconds(graph, product.node)
    rest = sum(cost.eager_seconds(graph, node) for node in graph.nodes) - whole
    total = max(rest + eager_seconds(product), before)
    return round((before - ours) / total, 4)


def eager_seconds(product: MatmulProduct) -> float:
    """Estimated seconds of cuBLAS: by its rate, or by the traffic of a product that is all
    traffic."""
    float32 = product.node.meta["val"].dtype == torch.float32
    rate = CUBLAS[float32]
    multiplied, moved = product.flops / rate, moved_bytes(product) / _bytes_per_s()
    if product.inner <= SHORT_INNER:  # a tile is written right after it is begun: little overlaps
        return multiplied + 0.5 * moved + LAUNCH_S + copy_seconds(product)
    return max(multiplied, moved) + LAUNCH_S + copy_seconds(product)


def copy_seconds(product: MatmulProduct) -> float:
    """Factors of an einsum that are laid out anew, read and written once; eager copies these, and
    others."""
    sizes = [node.meta["val"].numel() * node.meta["val"].element_size() for node in product.copied]
    return sum(2.0 * size / _bytes_per_s() + LAUNCH_S for size in sizes)


def moved_bytes(product: MatmulProduct) -> float:
    """Bytes of both factors and the result, each once."""
    size = 4.0 if product.node.meta["val"].dtype == torch.float32 else 2.0
    rows = product.batch * product.rows
    return size * (rows * product.cols + product.inner * (rows + _columns(product)))


def _plans(product: MatmulProduct) -> Iterator[MatmulPlan]:
    float32 = product.node.meta["val"].dtype == torch.float32
    if float32:
        parts = [plan for shape in PARTS for plan in _split_plans(product, True, *shape)]
        yield from parts
        yield from (replace(plan, descriptors=True) for plan in parts if not plan.persistent)
    block = min(64, max(16, next_power_of_two(product.inner)))
    shapes = TILES if float32 else HALVES
    yield from (
        plan
        for shape in shapes
        for plan in _split_plans(product, False, *shape[:2], block, *shape[2:])
    )


def _split_plans(
    product: MatmulProduct, parts: bool, rows: int, cols: int, inner: int, warps: int, stages: int
) -> Iterator[MatmulPlan]:
    """One tile with every sensible number of programs that share its inner dimension."""
    if not _worth(product.rows, rows) or not _worth(product.cols, cols):
        return
    blocks = math.ceil(product.inner / inner)
    for splits in (1,) if product.triangular else SPLITS:
        plan = MatmulPlan(
            parts=parts,
            rows=rows,
            cols=cols,
            inner=inner,
            warps=warps,
            stages=min(stages, max(1, blocks)),
            splits=splits,
        )
        programs = product.batch * _tiles(product, plan) * splits
        if splits == 1:
            yield from _persistent(product, plan, stages)
        if _fits(product, plan) and (
            splits == 1 or (programs <= 2 * PROCESSORS and splits * 4 <= blocks)
        ):
            yield plan


def _persistent(product: MatmulProduct, plan: MatmulPlan, stages: int) -> list[MatmulPlan]:
    """The same with programs that compute tile after tile, where each has several and finishing
    them is a good part of the time. ``stages``: as many as fit, for they reach into the next
    tile."""
    walked = replace(plan, persistent=True)
    several = product.batch * _tiles(product, plan) >= 2 * walked.walkers
    if product.triangular or product.inner > LONGEST_WALKED or not several:
        return []
    # In a flattened loop Triton no longer knows that neighboring rows or columns are neighbors in
    # memory.
    if not (plan.parts or product.inner <= plan.inner or product.along_inner):
        return []
    every = (replace(walked, stages=count) for count in range(stages, 1, -1))
    return [plan for plan in every if _fits(product, plan)][:1]


def _worth(size: int, block: int) -> bool:
    """At least half of the first tile is used; the smallest tiles always are worth a look."""
    return block <= max(2 * size, 64)


def _fits(product: MatmulProduct, plan: MatmulPlan) -> bool:
    width = product.node.meta["val"].element_size()  # two float16 parts are as wide as one float32
    blocks = plan.stages * (plan.rows + plan.cols) * plan.inner * width
    if plan.persistent:
        # A tile passes through shared memory on its way out, beside the next one's blocks.
        return plan.resident * (blocks + 4 * plan.rows * plan.cols) <= SHARED_BYTES
    return blocks <= SHARED_BYTES


def _tiles(product: MatmulProduct, plan: MatmulPlan) -> int:
    return math.ceil(product.rows / plan.rows) * math.ceil(product.cols / plan.cols)


def _columns(product: MatmulProduct) -> int:
    return product.cols * (product.batch if product.batched else 1)


def _bytes_per_s() -> float:
    return REFERENCE.bytes_per_s
