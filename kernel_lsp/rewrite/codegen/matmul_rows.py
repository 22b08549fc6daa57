"""A reduction over the columns of a matrix product, in the product's own kernel.

Each tile leaves one result for each of its rows, and a small kernel combines those of a row in a fixed order:
the product itself is never written. Covered: sum, mean, largest, smallest and logsumexp over the last
dimension, when nobody else reads what is reduced. Not covered: what follows the reduction, and other
dimensions.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

from torch import fx

from kernel_lsp.rewrite.codegen import accumulate, source
from kernel_lsp.rewrite.codegen.accumulate import LANES, Axis
from kernel_lsp.rewrite.codegen.body import Body, Names
from kernel_lsp.rewrite.codegen.ir import Region, Value
from kernel_lsp.rewrite.codegen.lower import output_nodes
from kernel_lsp.rewrite.codegen.matmul_operands import Product
from kernel_lsp.rewrite.codegen.pointwise import FLOATS, op_name
from kernel_lsp.rewrite.codegen.rows import close, levels
from kernel_lsp.rewrite.codegen.space import shape_of
from kernel_lsp.rewrite.graph import Graph, argument

REDUCTIONS = ("sum", "mean", "amax", "amin", "max", "min", "logsumexp")
MOST_COLUMNS = 16384
"""So that the results of all tiles of some rows are one block of the second kernel."""
TILES = Axis(shape="[MAX_TILES, BLOCK_ROWS]", index=0, keep="[None, :]")
COLUMNS = Axis(shape="[BLOCK_ROWS, BLOCK_COLS]", index=1, keep="[:, None]")
FINISHED_ROWS = 32


def after(graph: Graph, product: Product, nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """The reduction that alone reads the group's only result: one node, or two where its values are taken
    from the pair of values and indices. Empty when there is none."""
    results = output_nodes(graph, nodes)
    if len(results) != 1 or graph.is_output(results[0]) or len(results[0].users) != 1:
        return []
    plain = product.views is None and not product.triangular and product.cols <= MOST_COLUMNS
    (reader,) = results[0].users
    if not plain or not _is_last(reader, results[0], len(shape_of(product.node))):
        return []
    if not isinstance(reader.meta["val"], (tuple, list)):
        return [reader]
    values = list(reader.users)
    first = len(values) == 1 and values[0].target is operator.getitem and values[0].args[1] == 0
    return [reader, values[0]] if first and not graph.is_output(reader) else []


def _is_last(node: fx.Node, reduced: fx.Node, rank: int) -> bool:
    """A reduction of the product over its last dimension, and not into another dtype."""
    if op_name(node) not in REDUCTIONS or node.args[0] is not reduced or len(node.all_input_nodes) != 1:
        return False
    dims = argument(node, "dim")
    dims = [dims] if isinstance(dims, int) else list(dims or [])
    own = reduced.meta["val"]
    known = argument(node, "dtype") in (None, own.dtype) and own.dtype in FLOATS and own.dim() == rank
    return known and [dim % rank for dim in dims] == [rank - 1]


def keeps(region: Region) -> bool:
    """The region ends in a reduction over the columns."""
    return region.outputs[0].rowwise


def shape(product: Product, left: str, *, kept: bool) -> str:
    """Source of the result's shape."""
    if len(shape_of(product.left)) == 2:
        return f"({left}.shape[0], 1)" if kept else f"({left}.shape[0],)"
    return f"(*{left}.shape[:-1], 1)" if kept else f"{left}.shape[:-1]"


def slots(region: Region) -> int:
    return sum(len(LANES[value.op]) for value in _reductions(region))


def _reductions(region: Region) -> list[Value]:
    (found,) = levels(region.values)
    return found


def leave(body: Body, region: Region, block: str) -> None:
    """Reduce the tile to one result for each row. ``block``: columns of a tile."""
    slot = 0
    for value in _reductions(region):
        for result in accumulate.partial(body, value, COLUMNS):
            place = "start_col // " + block if slot == 0 else f"{slot} * col_tiles + start_col // {block}"
            body.add(f"tl.store(by_tile_ptr + ({place}) * all_rows + rows, {result}, mask=row_mask)")
            slot += 1


def kernel(region: Region) -> str:
    """Combines what the tiles left."""
    taken = ["rows", "tiles", "mask", "n_cols", "col_tiles", "all_rows", "by_tile", "out"]
    body = Body(Names([*taken, *(dim.name for dim in region.dims)]), lambda _: "")
    body.lines += [
        "    rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[None, :]",
        "    tiles = tl.arange(0, MAX_TILES)[:, None]",
        "    mask = (rows < all_rows) & (tiles < col_tiles)  # MAX_TILES is a power of two",
    ]
    slot = 0
    for value in _reductions(region):
        lanes = []
        for suffix, identity in LANES[value.op]:
            place = "tiles" if slot == 0 else f"({slot} * col_tiles + tiles)"
            read = f"tl.load(by_tile_ptr + {place} * all_rows + rows, mask=mask, other={identity})"
            lanes.append(body.assign(f"tile_{suffix}", read))
            slot += 1
        close(body, value, accumulate.finish(body, value, tuple(lanes), TILES))
    (output,) = region.outputs
    body.add(f"tl.store({output.name}_ptr + rows, {body.text(output.value)}, mask=rows < all_rows)")
    header = ["by_tile_ptr", f"{output.name}_ptr", "all_rows", "n_cols", "col_tiles",
              "MAX_TILES: tl.constexpr", "BLOCK_ROWS: tl.constexpr"]  # fmt: skip
    doc = "Each program combines what the tiles left of some rows, in a fixed order."
    return source.kernel_text(f"_{region.name}_rows_kernel", header, doc, body.lines)


def before_launch(region: Region, left: str, block: int) -> list[str]:
    """Room for what the tiles leave; ``block``: columns of a tile."""
    count = slots(region)
    size = f"{count} * col_tiles * all_rows" if count > 1 else "col_tiles * all_rows"
    return [
        f"    col_tiles = {source.blocks('n_cols', block)}",
        f"    by_tile = torch.empty({size}, dtype=torch.float32, device={left}.device)",
    ]


def launch(region: Region) -> str:
    arguments = [
        "by_tile", region.outputs[0].name, "all_rows", "n_cols", "col_tiles",
        f"MAX_TILES={source.power_of_two('col_tiles')}", f"BLOCK_ROWS={FINISHED_ROWS}", "num_warps=4",
    ]  # fmt: skip
    head = f"    _{region.name}_rows_kernel[({source.blocks('all_rows', FINISHED_ROWS)},)]("
    return source.wrapped(head, arguments, ")").replace("\n", "\n    ")
