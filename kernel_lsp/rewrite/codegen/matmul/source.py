"""Triton source of a matrix product with its tail.

Two forms. *Parts*: each float32 factor is first written as the sum of two float16 matrices, and
the kernel multiplies those, read through tensor descriptors or pointers. *Tiles*: one kernel reads
the factors where they lie, by their strides; float32 tiles are split in registers. In both, a
second kernel adds the shares of the inner dimension when it was split among programs, or programs
are persistent and walk over the tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.codegen.core.body import Body, UniqueNames
from kernel_lsp.rewrite.codegen.core.index import IndexSpace, offset, sizes_in
from kernel_lsp.rewrite.codegen.core.ir import Operand, Region, topological
from kernel_lsp.rewrite.codegen.matmul import loops as matmul_loops
from kernel_lsp.rewrite.codegen.matmul import reduced_rows
from kernel_lsp.rewrite.codegen.matmul.half_parts import DOT_PARTS, SPLIT, SPLIT_TILE
from kernel_lsp.rewrite.codegen.matmul.operands import MatmulProduct
from kernel_lsp.rewrite.codegen.matmul.plan import PROCESSORS, MatmulJob
from kernel_lsp.rewrite.codegen.matmul.tail import TAKEN
from kernel_lsp.rewrite.generated import GeneratedSource

DESCRIPTORS = "from triton.tools.tensor_descriptor import TensorDescriptor"
GROUP = 8
"""Row tiles whose programs run one after the other: they share columns of the right factor in
L2."""
FINISH_ROWS, FINISH_COLS = 16, 128


def emit(job: MatmulJob) -> GeneratedSource:
    """Kernels and launcher."""
    kernels = [_kernel(job)]
    if job.split:
        kernels.append(_finish_kernel(job))
    if job.reduced and not reduced_rows.combining_function(job.region):
        kernels.append(reduced_rows.kernel(job.region))
    helpers = list[str]()
    if job.float32:
        helpers = [DOT_PARTS, SPLIT if job.parts else SPLIT_TILE]
    made = source.generate_source(job.region, [*helpers, *kernels], _launcher(job), job.summary)
    return replace(made, imports=(*source.IMPORTS, *([DESCRIPTORS] if job.descriptors else [])))


# --- the product ---------------------------------------------------------------------------------


def _kernel(job: MatmulJob) -> str:
    finish = _partial_store() if job.split else _tail(job)
    lines = matmul_loops.statements(job, finish)
    return source.kernel_text(f"_{job.region.name}_kernel", _header(job, lines), _doc(job), lines)


def _doc(job: MatmulJob) -> str:
    many = "tile after tile of" if job.tile.persistent else "one"
    doc = (
        f"Each program computes {many} BLOCK_ROWS x "
        f"BLOCK_COLS{'' if job.tile.persistent else ' tile'}"
    )
    if job.split:
        return f"{doc} of one share of the inner dimension."
    if job.reduced:
        return f"{doc} and reduces its {'columns' if job.down else 'rows'}."
    return f"{doc} and finishes it in registers."


def _partial_store() -> list[str]:
    return [
        "    tl.store(partial_ptr + (part * all_rows + rows) * n_cols + cols, product, mask=mask)"
    ]


# --- the tail ------------------------------------------------------------------------------------


def _tail(job: MatmulJob, rows: str = "BLOCK_ROWS", cols: str = "BLOCK_COLS") -> list[str]:
    """The rest of the chain on the tile ``product`` of this size, and its stores."""
    region = job.region
    taken = [*TAKEN, job.left, job.right, *(dim.name for dim in region.dims)]
    body = Body(UniqueNames(taken), lambda operand: _load(operand, region))
    for value in topological(output.value for output in region.outputs):
        if value.op == "product":
            body.known[value] = "product"
        if value.op.endswith("_half"):
            body.known[value] = "rows <= cols" if value.op == "upper_half" else "rows >= cols"
    if job.reduced:
        reduced_rows.leave(body, region, rows, cols, batched=job.batched)
        return body.lines
    for output in region.outputs:
        everywhere = Operand(
            name=output.name, dtype=output.dtype, axes=tuple(range(len(region.dims)))
        )
        text = str(body.text(output.value))
        body.add(f"tl.store({_address(everywhere, region)}, {text}, mask=mask)")
    return body.lines


def _address(operand: Operand, region: Region) -> str:
    last = len(region.dims) - 1
    spaces = [
        IndexSpace(variable="rows", axes=tuple(range(last))),
        IndexSpace(variable="cols", axes=(last,)),
    ]
    text = offset(operand, region.dims, spaces)
    return f"{operand.name}_ptr + {text}" if text else f"{operand.name}_ptr"


def _load(operand: Operand, region: Region) -> str:
    last = len(region.dims) - 1
    by_row, by_col = any(axis < last for axis in operand.axes), last in operand.axes
    mask = "mask" if by_row and by_col else "row_mask" if by_row else "col_mask" if by_col else ""
    return f"tl.load({_address(operand, region)}{f', mask={mask}' if mask else ''})"


def _finish_kernel(job: MatmulJob) -> str:
    lines = [
        f"    start_row, start_col = tl.program_id(0) * {FINISH_ROWS}, tl.program_id(1) * "
        f"{FINISH_COLS}",
        *(["    batch = tl.program_id(2).to(tl.int64)"] if job.batched else []),
        *matmul_loops.indices(job, str(FINISH_ROWS), str(FINISH_COLS)),
        f"    product = tl.zeros([{FINISH_ROWS}, {FINISH_COLS}], tl.float32)",
        "    for part in range(n_parts):",
        "        where = (part * all_rows + rows) * n_cols + cols",
        "        product += tl.load(partial_ptr + where, mask=mask, other=0.0)",
        *_tail(job, str(FINISH_ROWS), str(FINISH_COLS)),
    ]
    header = [
        "partial_ptr", *_pointers(job), "n_parts", "n_rows", "n_cols", "all_rows",
        *_reduced_sizes(job),
        *_constants(job, lines),
    ]  # fmt: skip
    doc = "Adds the shares of the inner dimension in a fixed order and finishes the tile."
    return source.kernel_text(f"_{job.region.name}_finish_kernel", header, doc, lines)


# --- signatures and launches ---------------------------------------------------------------------


def _tensor_arguments(job: MatmulJob) -> list[str]:
    """Tensors of the last step: what it reads beside the product, and where it writes."""
    results = ["by_tile"] if job.reduced else [output.name for output in job.region.outputs]
    return [*(operand.name for operand in job.region.operands), *results]


def _pointers(job: MatmulJob) -> list[str]:
    return [f"{name}_ptr" for name in _tensor_arguments(job)]


def _reduced_sizes(job: MatmulJob) -> list[str]:
    """What tells the results of one tile from another's, beside ``all_rows``."""
    if not job.reduced:
        return []
    if job.down:
        return ["all_cols"] if job.batched else []
    return ["col_tiles"] if job.split and reduced_rows.slots(job.region) > 1 else []


def _constants(job: MatmulJob, lines: Sequence[str]) -> list[str]:
    found = sizes_in("\n".join(lines), job.region.dims)
    return [f"{name}: tl.constexpr" for name in found if name not in ("n_cols", "all_rows")]


def _factors(job: MatmulJob) -> list[str]:
    """Kernel parameters that stand for the two factors."""
    left, right = job.left, job.right
    if job.parts:
        kind = "" if job.descriptors else "_ptr"
        return [
            f"{left}_parts{kind}", f"{right}_parts{kind}", f"{left}_scale_ptr",
            f"{right}_scale_ptr",
        ]  # fmt: skip
    batch = [f"{left}_batch_stride", f"{right}_batch_stride"] if job.batched else []
    return [
        f"{left}_ptr", f"{right}_ptr", *batch, f"{left}_row_stride", f"{left}_inner_stride",
        f"{right}_inner_stride", f"{right}_col_stride",
    ]  # fmt: skip


def _sizes(job: MatmulJob) -> list[str]:
    inner = "padded" if job.parts else "n_inner"
    if job.split:
        return ["n_rows", "n_cols", inner, "all_rows", "share"]
    walked = ["n_batches"] if job.batched and job.tile.persistent else []
    reduced = ["all_rows"] if job.reduced and not job.down else []
    return [*walked, "n_rows", "n_cols", inner, *reduced, *_reduced_sizes(job)]


def _header(job: MatmulJob, lines: Sequence[str]) -> list[str]:
    stores = ["partial_ptr"] if job.split else _pointers(job)
    blocks = [
        f"{name}: tl.constexpr" for name in ("BLOCK_ROWS", "BLOCK_COLS", "BLOCK_INNER", "GROUP")
    ]
    constants = [] if job.split else _constants(job, lines)
    return [*_factors(job), *stores, *_sizes(job), *constants, *blocks]


def _launcher(job: MatmulJob) -> str:
    region, product = job.region, job.product
    left, right = job.left, job.right
    first, *others = region.outputs
    names = ", ".join([left, right, *(operand.name for operand in region.operands)])
    lines = [
        f"def {region.name}({names}):",
        f'    """{job.summary}"""',
        *source.make_contiguous(region.operands),
        f"    {first.name} = torch.empty({_shape(job)}, dtype=torch.{first.dtype}, "
        f"device={left}.device)",
        *(f"    {o.name} = torch.empty_like({first.name}, dtype=torch.{o.dtype})" for o in others),
        f"    if {first.name}.numel() == 0:  # a grid of zero programs cannot be launched",
        f"        return {source.result(region)}",
        *_factor_lines(product, left, right),
        f"    n_rows, n_cols = {left}.shape[-2], {right}.shape[-2]",
        *(_parts_lines(job) if job.parts else _tiles_lines(job)),
        *_grid(job),
        *(
            [f"    all_rows = {_all_rows(job)}"]
            if job.split or (job.reduced and not job.down)
            else []
        ),
        *(_partial_lines(job) if job.split else []),
        *(
            reduced_rows.before_launch(region, left, *_reduced_tile(job), batched=job.batched)
            if job.reduced
            else []
        ),
        *_size_lines(job),
        source.wrap_items(f"    _{region.name}_kernel[grid](", _arguments(job), ")").replace(
            "\n", "\n    "
        ),
        *(_finish_launch(job) if job.split else []),
        *([reduced_rows.launch(region)] if job.reduced else []),
        f"    return {source.result(region)}",
        "",
    ]
    return "\n".join(lines)


def _factor_lines(product: MatmulProduct, left: str, right: str) -> list[str]:
    """The factors as the kernels walk them; a view costs the host as much as an allocation."""
    batch = "batch, " if product.batched else ""
    forms = [
        (left, product.left_rows(left, right), f"[{batch}rows, inner]"),
        (right, product.right_columns(right, left), f"[{batch}columns, inner]"),
    ]
    return [f"    {name} = {text}  # {sizes}" for name, text, sizes in forms if text != name]


def _all_rows(job: MatmulJob) -> str:
    return f"{job.left}.shape[0] * n_rows" if job.batched else "n_rows"


def _shape(job: MatmulJob) -> str:
    """Source of the result's shape."""
    if job.reduced:
        return reduced_rows.shape(job.product, job.left, job.right, down=job.down, kept=job.kept)
    return job.product.shape(job.left, job.right)


def _reduced_tile(job: MatmulJob) -> tuple[int, int]:
    """Rows and columns of the tiles that are reduced."""
    return (FINISH_ROWS, FINISH_COLS) if job.split else (job.tile.rows, job.tile.cols)


def _parts_lines(job: MatmulJob) -> list[str]:
    left, right, tile = job.left, job.right, job.tile
    lines = [
        f"    {left}_parts, {left}_scale, {right}_parts, {right}_scale = _split_float16({left}, "
        f"{right})",
        f"    padded = {left}_parts.shape[1] // 2",
    ]
    sides = [(left, tile.rows), (right, tile.cols)] if job.descriptors else []
    return [
        *lines,
        *(
            f"    {name}_tiles = TensorDescriptor.from_tensor({name}_parts, [{size}, {tile.inner}])"
            for name, size in sides
        ),
    ]


def _tiles_lines(job: MatmulJob) -> list[str]:
    return [f"    n_inner = {job.left}.shape[-1]"]


def _grid(job: MatmulJob) -> list[str]:
    tile = job.tile
    down, across = source.blocks("n_rows", tile.rows), source.blocks("n_cols", tile.cols)
    if tile.persistent:
        return _walkers(job, f"{down} * ({across})")
    programs = [f"{down} * ({across})"]
    programs += [f"{job.left}.shape[0]"] if job.batched else []
    programs += [str(tile.splits)] if job.split else []
    return [f"    grid = ({', '.join(programs)}{',' if len(programs) == 1 else ''})"]


def _walkers(job: MatmulJob, tiles: str) -> list[str]:
    each = "one program" if job.tile.resident == 1 else f"{job.tile.resident} programs"
    lines = [f"    n_batches = {job.left}.shape[0]"] if job.batched else []
    tiles = f"n_batches * {tiles}" if job.batched else tiles
    return [
        *lines,
        f"    # {each} for each of {PROCESSORS} multiprocessors",
        f"    grid = (min({tiles}, {job.tile.walkers}),)",
    ]


def _partial_lines(job: MatmulJob) -> list[str]:
    tile, inner = job.tile, "padded" if job.parts else "n_inner"
    device = f"device={job.left}.device"
    return [
        f"    share = {source.blocks(inner, tile.inner * tile.splits)} * {tile.inner}",
        f"    partial = torch.empty({tile.splits} * all_rows * n_cols, dtype=torch.float32, "
        f"{device})",
    ]


def _size_lines(job: MatmulJob) -> list[str]:
    text = "\n".join(_tail(job))
    found = sizes_in(text, job.region.dims)
    dims = {dim.name: dim for dim in job.region.dims}
    # Both begin with the product's rows.
    first = job.left if job.down else job.region.outputs[0].name
    return [
        f"    {name} = {dims[name].source.replace('out.', f'{first}.')}"
        for name in found
        if name not in ("n_cols", "all_rows")
    ]


def _names_of_sizes(job: MatmulJob) -> list[str]:
    return [line.split(" = ")[0].strip() for line in _size_lines(job)]


def _arguments(job: MatmulJob) -> list[str]:
    left, right, tile = job.left, job.right, job.tile
    if job.parts:
        kind = "tiles" if job.descriptors else "parts"
        factors = [f"{left}_{kind}", f"{right}_{kind}", f"{left}_scale", f"{right}_scale"]
    else:
        batch = [f"{left}.stride(0)", f"{right}.stride(0)"] if job.batched else []
        strides = [
            f"{left}.stride(-2)",
            f"{left}.stride(-1)",
            f"{right}.stride(-1)",
            f"{right}.stride(-2)",
        ]
        factors = [left, right, *batch, *strides]
    stores = ["partial"] if job.split else _tensor_arguments(job)
    sizes = [] if job.split else _names_of_sizes(job)
    blocks = [f"BLOCK_ROWS={tile.rows}", f"BLOCK_COLS={tile.cols}", f"BLOCK_INNER={tile.inner}"]
    launch = [f"GROUP={GROUP}", f"num_warps={tile.warps}", f"num_stages={tile.stages}"]
    return [*factors, *stores, *_sizes(job), *sizes, *blocks, *launch]


def _finish_launch(job: MatmulJob) -> list[str]:
    arguments = [
        "partial", *_tensor_arguments(job), str(job.tile.splits), "n_rows", "n_cols", "all_rows",
        *_reduced_sizes(job),
        *_names_of_sizes(job), "num_warps=4",
    ]  # fmt: skip
    batch = f", {job.left}.shape[0]" if job.batched else ""
    grid = f"{source.blocks('n_rows', FINISH_ROWS)}, {source.blocks('n_cols', FINISH_COLS)}{batch}"
    head = f"    _{job.region.name}_finish_kernel[({grid})]("
    return [source.wrap_items(head, arguments, ")").replace("\n", "\n    ")]
