"""A reduction over the columns or the rows of a matrix product, in the product's own kernel.

Each tile leaves one result for each of its rows or columns, and torch or a small kernel combines
those in a fixed order: the product itself is never written. Covered: sum, mean, largest and
smallest over the last dimension, and in float32 over the one before it; logsumexp over the last;
when nobody else reads what is reduced. Not covered: what follows the reduction, other dimensions,
and rows of several matrices at once."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.codegen.core.body import Body, UniqueNames
from kernel_lsp.rewrite.codegen.core.ir import Region, Value
from kernel_lsp.rewrite.codegen.core.nodes import FLOATS, op_name
from kernel_lsp.rewrite.codegen.core.space import shape_of
from kernel_lsp.rewrite.codegen.matmul.operands import MatmulProduct
from kernel_lsp.rewrite.codegen.reduction import accumulate
from kernel_lsp.rewrite.codegen.reduction.accumulate import LANES, ReductionAxis
from kernel_lsp.rewrite.codegen.reduction.rows import close, levels
from kernel_lsp.rewrite.codegen.regions.lower import output_nodes
from kernel_lsp.rewrite.graph import Graph, argument

REDUCTIONS = ("sum", "mean", "amax", "amin", "max", "min", "logsumexp")
MAX_COLUMNS = 16384
"""So that the results of all tiles of some rows are one block of the second kernel."""
TILES = ReductionAxis(shape="[MAX_TILES, BLOCK_ROWS]", index=0, keep="[None, :]")
COLUMNS = ReductionAxis(shape="[BLOCK_ROWS, BLOCK_COLS]", index=1, keep="[:, None]")
ROWS = ReductionAxis(shape="[BLOCK_ROWS, BLOCK_COLS]", index=0, keep="[None, :]")
FINISHED_ROWS = 32


def after(graph: Graph, product: MatmulProduct, nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """The reduction that alone reads the group's only result: one node, or two where its values
    are taken from the pair of values and indices. Empty when there is none."""
    results = output_nodes(graph, nodes)
    if len(results) != 1 or graph.is_output(results[0]) or len(results[0].users) != 1:
        return []
    plain = product.views is None and not product.triangular and product.cols <= MAX_COLUMNS
    (reader,) = results[0].users
    if not plain or not _is_covered(reader, results[0], product):
        return []
    if not isinstance(reader.meta["val"], (tuple, list)):
        return [reader]
    values = list(reader.users)
    first = len(values) == 1 and values[0].target is operator.getitem and values[0].args[1] == 0
    return [reader, values[0]] if first and not graph.is_output(reader) else []


def _is_covered(node: fx.Node, reduced: fx.Node, product: MatmulProduct) -> bool:
    """A reduction of the product over its columns or its rows, and not into another dtype."""
    if (
        op_name(node) not in REDUCTIONS
        or node.args[0] is not reduced
        or len(node.all_input_nodes) != 1
    ):
        return False
    own, rank = reduced.meta["val"], len(shape_of(product.node))
    if (
        argument(node, "dtype") not in (None, own.dtype)
        or own.dtype not in FLOATS
        or own.dim() != rank
    ):
        return False
    if not is_down(node, rank):
        return _dims(node, rank) == [rank - 1]
    one_matrix = rank == 2 or (rank == 3 and product.batched)
    return one_matrix and op_name(node) != "logsumexp" and own.dtype == torch.float32


def _dims(node: fx.Node, rank: int) -> list[int]:
    dims = argument(node, "dim")
    return [dim % rank for dim in ([dims] if isinstance(dims, int) else list(dims or []))]


def is_reduction(node: fx.Node) -> bool:
    """Whether the node reduces, or takes one result of a node that does."""
    return node.target is operator.getitem or op_name(node) in REDUCTIONS


def is_down(node: fx.Node, rank: int) -> bool:
    """Whether the node reduces over the rows; ``rank``: of the product."""
    node = node.args[0] if node.target is operator.getitem else node
    return op_name(node) in REDUCTIONS and _dims(node, rank) == [rank - 2]


def keeps(region: Region) -> bool:
    """The region ends in a reduction."""
    return region.outputs[0].rowwise


def down(region: Region) -> bool:
    """Whether the reduction is one over the rows: an element is left for each column."""
    return region.outputs[0].columns


def shape(product: MatmulProduct, left: str, right: str, *, down: bool, kept: bool) -> str:
    """Source of the result's shape."""
    if down:
        cols = f"{right}.shape[{0 if product.transposed else -1}]"
        sizes = [*([f"{left}.shape[0]"] if product.batched else []), *(["1"] if kept else []), cols]
        return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
    if len(shape_of(product.left)) == 2:
        return f"({left}.shape[0], 1)" if kept else f"({left}.shape[0],)"
    return f"(*{left}.shape[:-1], 1)" if kept else f"{left}.shape[:-1]"


def combining_function(region: Region) -> str:
    """The function of torch that combines what the tiles left: a launch of Triton takes the host
    longer. Empty where a kernel has to."""
    (output,), reductions = region.outputs, _reductions(region)
    plain = output.value in reductions or _is_mean(region)
    names = {"sum": "sum", "max": "amax", "min": "amin"}
    return names.get(reductions[0].op, "") if plain and output.dtype == "float32" else ""


def _is_mean(region: Region) -> bool:
    value, reductions = region.outputs[0].value, _reductions(region)
    mean = value.op == "div" and len(value.values) == 2 and value.values[1].op == "count"
    return mean and value.values[0] is reductions[0]


def slots(region: Region) -> int:
    """How many numbers a tile leaves for each row that it reduces."""
    return sum(len(LANES[value.op]) for value in _reductions(region))


def _reductions(region: Region) -> list[Value]:
    (found,) = levels(region.values)
    return found


def leave(body: Body, region: Region, rows: str, cols: str, *, batched: bool) -> None:
    """Reduce the tile of ``rows`` x ``cols`` to one result for each row or column."""
    if down(region):
        place = f"start_row // {rows} * " + (
            "all_cols + batch * n_cols + cols" if batched else "n_cols + cols"
        )
        (result,) = accumulate.partial(body, _reductions(region)[0], ROWS)
        result += " / n_rows" if _is_mean(region) else ""
        body.add(f"tl.store(by_tile_ptr + {place}, {result}, mask=col_mask)")
        return
    slot, tile = 0, f"start_col // {cols}"
    for value in _reductions(region):
        for result in accumulate.partial(body, value, COLUMNS):
            result += " / n_cols" if combining_function(region) and _is_mean(region) else ""
            place = tile if slot == 0 else f"{slot} * col_tiles + {tile}"
            body.add(
                f"tl.store(by_tile_ptr + ({place}) * all_rows + rows, {result}, mask=row_mask)"
            )
            slot += 1


def kernel(region: Region) -> str:
    """Combines what the tiles left."""
    taken = ["rows", "tiles", "mask", "n_cols", "col_tiles", "all_rows", "by_tile", "out"]
    body = Body(UniqueNames([*taken, *(dim.name for dim in region.dims)]), lambda _: "")
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


def before_launch(region: Region, left: str, rows: int, cols: int, *, batched: bool) -> list[str]:
    """The launcher's lines that make room for what tiles of ``rows`` x ``cols`` leave."""
    made = f"dtype=torch.float32, device={left}.device)"
    if down(region):
        line = "n_cols"
        lines = list[str]()
        if batched:
            line, lines = "all_cols", [f"    all_cols = {left}.shape[0] * n_cols"]
        return [
            *lines,
            f"    by_tile = torch.empty({source.blocks('n_rows', rows)}, {line}, {made}",
        ]
    if combining_function(region):
        return [f"    by_tile = torch.empty({source.blocks('n_cols', cols)}, all_rows, {made}"]
    count = slots(region)
    size = f"{count} * col_tiles * all_rows" if count > 1 else "col_tiles * all_rows"
    return [
        f"    col_tiles = {source.blocks('n_cols', cols)}",
        f"    by_tile = torch.empty({size}, {made}",
    ]


def launch(region: Region) -> str:
    """The launcher's lines that combine what the tiles have left."""
    out = region.outputs[0].name
    if function := combining_function(region):
        return f"    torch.{function}(by_tile, dim=0, out={out}.view(-1))  # over the tiles"
    arguments = [
        "by_tile", out, "all_rows", "n_cols", "col_tiles",
        f"MAX_TILES={source.power_of_two('col_tiles')}", f"BLOCK_ROWS={FINISHED_ROWS}",
        "num_warps=4",
    ]  # fmt: skip
    head = f"    _{region.name}_rows_kernel[({source.blocks('all_rows', FINISHED_ROWS)},)]("
    return source.wrap_items(head, arguments, ")").replace("\n", "\n    ")
