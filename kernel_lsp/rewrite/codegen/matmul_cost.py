"""How a matrix product is run, and about how long that takes: tiles, splits, and when to stay silent.

Only ranks choices and keeps hopeless places silent; what is offered has been measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from kernel_lsp.rewrite import cost as roofline
from kernel_lsp.rewrite.codegen import cost
from kernel_lsp.rewrite.codegen.matmul_operands import Product
from kernel_lsp.rewrite.codegen.matmul_source import Tile
from kernel_lsp.rewrite.graph import Graph

PROCESSORS = 132
"""Multiprocessors of an H200."""
SHARED_BYTES = 227 * 1024
REGISTERS = 200
"""Accumulators a thread can hold beside its addresses and operands, of 255 registers."""
LAUNCH_S = 4e-6
"""A Triton launch on the device's own clock; the Python in front of it runs ahead."""
RATE = {True: 550e12, False: 600e12}
"""Products of 16-bit numbers: (parts of float32, 16-bit factors), whole tiles on every multiprocessor."""
LEAST = 0.1
"""Share of the covered operations' own time that must be saved to speak up."""
TILES = (
    "128x256x64/8/2", "128x128x64/8/3", "128x256x32/8/4", "128x128x64/4/3", "64x128x64/4/4", "128x64x64/4/4",
    "64x64x64/4/4",
)  # fmt: skip


def parameters(product: Product) -> dict[str, list[Any]]:
    """Finite search space, most promising first."""
    choices = sorted(_choices(product), key=lambda choice: seconds(product, *choice))
    tiles = list(dict.fromkeys(tile for tile, _ in choices))[:4]
    splits = list(dict.fromkeys(splits for _, splits in choices[:6]))[:3]
    return {"tile": tiles, "splits": splits}


def seconds(product: Product, tile: str, splits: int) -> float:
    """The product alone: parts, tiles, and the sum over splits."""
    shape = Tile.parse(tile)
    float32 = product.node.meta["val"].dtype == torch.float32
    programs = splits * product.batch * _tiles(product, shape)
    waves = math.ceil(programs / PROCESSORS)
    work = 2.0 * shape.rows * shape.cols * product.inner / splits * (3 if float32 else 1)
    # Small tiles read more for each product, and the memory behind them does not keep up.
    efficiency = min(1.0, (shape.rows * shape.cols / (128 * 256)) ** 0.25)
    total = waves * work / (RATE[float32] / PROCESSORS * efficiency) + LAUNCH_S
    out = 4.0 * product.batch * product.rows * product.cols
    if float32:
        total += parts_seconds(product)
    if splits > 1:
        total += 2 * splits * out / _bytes_per_s() + LAUNCH_S
    return total + out / _bytes_per_s() * 0.5


def parts_seconds(product: Product) -> float:
    """Both factors read and written once more, in two launches."""
    columns = product.cols * (product.batch if product.batched else 1)
    moved = 8.0 * product.inner * (product.batch * product.rows + columns)
    return moved / _bytes_per_s() + 2 * LAUNCH_S


def benefit(graph: Graph, product: Product, nodes: Sequence[fx.Node], choice: dict[str, Any]) -> float:
    """Share of the target's time that is saved; 0 where too little is, or where no GPU is asked for."""
    if graph.device != "cuda":
        return 0.0
    tail = [node for node in nodes if node is not product.node]
    read = {arg for node in tail for arg in node.all_input_nodes if arg not in nodes}
    extra = sum(cost.read_once_seconds(graph, [node], 0) for node in read)
    return cost.benefit(graph, nodes, seconds(product, choice["tile"], choice["splits"]) + extra, LEAST)


def _choices(product: Product) -> list[tuple[str, int]]:
    blocks = math.ceil(product.inner / 64)
    found = []
    for text in TILES:
        shape = Tile.parse(text)
        for splits in (1, 2, 3, 4, 6, 8, 16):
            alone = splits == 1 or product.batch * _tiles(product, shape) * splits <= 2 * PROCESSORS
            if _fits(shape) and alone and splits * 4 <= max(4, blocks):
                found.append((text, splits))
    return found


def _fits(tile: Tile) -> bool:
    held = tile.rows * tile.cols / (32 * tile.warps)
    shared = tile.stages * 2 * (tile.rows + tile.cols) * tile.inner * 2
    return held <= REGISTERS and shared <= SHARED_BYTES


def _tiles(product: Product, tile: Tile) -> int:
    return math.ceil(product.rows / tile.rows) * math.ceil(product.cols / tile.cols)


def _bytes_per_s() -> float:
    return roofline.RATES["cuda"].bytes_per_s
