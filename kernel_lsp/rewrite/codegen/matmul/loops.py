"""Triton statements of one tile of a matrix product: where it lies, and the loop over the inner
dimension."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.rewrite.codegen.matmul.plan import MatmulJob

TILES = "    row_tiles, col_tiles = tl.cdiv(n_rows, BLOCK_ROWS), tl.cdiv(n_cols, BLOCK_COLS)"
SUMS = "    product = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)"
WHY_AGAIN = (
    "    # Infinity times a low part has another sign for half of all numbers, and scales overflow "
    "where\n    # factors are near the largest number: again, carefully."
)


def statements(job: MatmulJob, finish: list[str]) -> list[str]:
    """The body of the kernel. ``finish``: what becomes of the ``product`` of a tile."""
    if job.tile.persistent:
        return _walks(job, finish)
    lines = ["    tile = tl.program_id(0)"]
    if job.batched:
        lines.append("    batch = tl.program_id(1).to(tl.int64)  # int64: offsets can pass 2**31")
    if job.split:
        lines.append(f"    part = tl.program_id({2 if job.batched else 1})")
    lines += [TILES, *_place(), *_product(job, careful=False)]
    if job.float32:
        again = [SUMS, *_sum(job, careful=True)]
        lines += [WHY_AGAIN, "    if _any_special(product):", *_indented(again)]
    return [*lines, *finish]


def _walks(job: MatmulJob, finish: list[str]) -> list[str]:
    """A persistent program computes tile after tile. A second loop for some of them would end the
    pipeline over all: they are noted, and all are computed again."""
    count = "n_batches * row_tiles * col_tiles" if job.batched else "row_tiles * col_tiles"
    place = [*_walked_tile(job), *_place()]
    noted = ["    again = tl.maximum(again, _any_special(product))"] if job.float32 else []
    lines = [
        TILES,
        *(["    again = 0"] if job.float32 else []),
        "    # Flattened: blocks of the next tile are loaded while this one is finished.",
        f"    for walked in tl.range(tl.program_id(0), {count}, tl.num_programs(0), flatten=True):",
        *_indented([*place, *_product(job, careful=False), *noted, *finish]),
    ]
    if not job.float32:
        return lines
    return [
        *lines,
        WHY_AGAIN,
        f"    count = tl.where(again > 0, {count}, 0)",
        "    for walked in range(tl.program_id(0), count, tl.num_programs(0)):",
        *_indented([*place, *_product(job, careful=True), *finish]),
    ]


def _walked_tile(job: MatmulJob) -> list[str]:
    if not job.batched:
        return ["    tile = walked"]
    return [
        "    batch = (walked // (row_tiles * col_tiles)).to(tl.int64)  # offsets can pass 2**31",
        "    tile = walked % (row_tiles * col_tiles)",
    ]


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _place() -> list[str]:
    return [
        "    # Programs that run at the same time share GROUP rows of tiles, and so their "
        "inputs in L2.",
        "    group = tile // (GROUP * col_tiles)",
        "    height = tl.minimum(row_tiles - group * GROUP, GROUP)",
        "    start_row = (group * GROUP + tile % (GROUP * col_tiles) % height) * BLOCK_ROWS",
        "    start_col = tile % (GROUP * col_tiles) // height * BLOCK_COLS",
    ]


def _bounds(job: MatmulJob, end: str) -> list[str]:
    """Where the inner dimension starts and ends for a tile of triangular matrices; the rest is
    zero."""
    product = job.product
    begins, ends = list[str](), [end]
    if product.left_half:
        (begins if product.left_half == "upper" else ends).append("start_row")
    if product.right_half:
        (begins if product.right_half == "lower" else ends).append("start_col")
    lines = ["    # Zeros above or below a diagonal are not multiplied."]
    begin = (
        begins[0]
        if len(begins) == 1
        else f"tl.maximum({begins[0]}, {begins[1]})"
        if begins
        else "0"
    )
    last = ends[0]
    for item in ends[1:]:
        last = (
            f"tl.minimum({last}, {item} + {'BLOCK_ROWS' if item == 'start_row' else 'BLOCK_COLS'})"
        )
    lines.append(f"    begin, end = {begin}, {last}")
    if product.kept_half == "upper":
        lines.append(
            "    end = tl.where(start_col + BLOCK_COLS > start_row, end, 0)  # nothing of it "
            "is kept"
        )
    if product.kept_half == "lower":
        lines.append(
            "    end = tl.where(start_row + BLOCK_ROWS > start_col, end, 0)  # nothing of it "
            "is kept"
        )
    return lines


def _range(job: MatmulJob, end: str) -> list[str]:
    if job.product.triangular:
        return [*_bounds(job, end), "    for start in range(begin, end, BLOCK_INNER):"]
    if not job.split:
        return [f"    for start in range(0, {end}, BLOCK_INNER):"]
    return [
        f"    end = tl.minimum(part * share + share, {end})",
        "    for start in range(part * share, end, BLOCK_INNER):",
    ]


def _product(job: MatmulJob, *, careful: bool) -> list[str]:
    """The product of one tile as float32."""
    return [*_before_sums(job), SUMS, *indices(job), *_sum(job, careful=careful)]


def _sum(job: MatmulJob, *, careful: bool) -> list[str]:
    return [*_loop(job, careful=careful), *_scale(job, careful=careful)]


def indices(job: MatmulJob, rows: str = "BLOCK_ROWS", cols: str = "BLOCK_COLS") -> list[str]:
    """Rows and columns of a tile, and what of it lies inside of the result."""
    lines = [
        f"    rows = start_row + tl.arange(0, {rows})[:, None].to(tl.int64)",
        f"    cols = start_col + tl.arange(0, {cols})[None, :]",
        "    # The last tiles reach past the end of the rows and of the columns.",
        "    row_mask, col_mask = rows < n_rows, cols < n_cols",
        "    mask = row_mask & col_mask  # both",
    ]
    return [*lines, "    rows += batch * n_rows"] if job.batched else lines


def _scale(job: MatmulJob, *, careful: bool) -> list[str]:
    """Undoes the powers of two that the parts were divided by."""
    if not job.parts:
        return []
    left = f"tl.load({job.left}_scale_ptr + rows, mask=row_mask)"
    cols = "batch * n_cols + cols" if job.batched else "cols"
    right = f"tl.load({job.right}_scale_ptr + {cols}, mask=col_mask)"
    if not careful:
        return [f"    product *= {left}", f"    product *= {right}"]
    return [
        "    product = _scaled(",
        f"        product, {left},",
        f"        {right},",
        "    )",
    ]


def _before_sums(job: MatmulJob) -> list[str]:
    """What the loop reads from."""
    left, right = job.left, job.right
    if job.descriptors:
        return _rows_of_descriptors(job)
    lines = [
        "    left_rows = (start_row + tl.arange(0, BLOCK_ROWS)[:, None]).to(tl.int64)",
        "    right_cols = (start_col + tl.arange(0, BLOCK_COLS)[None, :]).to(tl.int64)",
    ]
    if job.parts:
        rows = "(batch * n_rows + left_rows)" if job.batched else "left_rows"
        cols = "(batch * n_cols + right_cols)" if job.batched else "right_cols"
        return [
            *lines,
            "    inner = tl.arange(0, BLOCK_INNER)",
            f"    left_at = {left}_parts_ptr + {rows} * 2 * padded + inner[None, :]",
            f"    right_at = {right}_parts_ptr + {cols} * 2 * padded + inner[:, None]",
        ]
    if not job.batched:
        return lines
    return [
        f"    {left}_batch_ptr = {left}_ptr + batch * {left}_batch_stride",
        f"    {right}_batch_ptr = {right}_ptr + batch * {right}_batch_stride",
        *lines,
    ]


def _rows_of_descriptors(job: MatmulJob) -> list[str]:
    if not job.batched:
        return []
    return [
        "    # The batches lie below each other; rows of the next one are masked at the end.",
        "    left_row = (batch * n_rows + start_row).to(tl.int32)",
        "    right_row = (batch * n_cols + start_col).to(tl.int32)",
    ]


def _loop(job: MatmulJob, *, careful: bool) -> list[str]:
    """Adds the products of blocks to the sums."""
    if not job.parts:
        return _tiles_loop(job, careful=careful)
    return (
        _descriptors_loop(job, careful=careful)
        if job.descriptors
        else _pointers_loop(job, careful=careful)
    )


def _descriptors_loop(job: MatmulJob, *, careful: bool) -> list[str]:
    left, right = job.left, job.right
    row, col = ("left_row", "right_row") if job.batched else ("start_row", "start_col")
    return [
        *_range(job, "padded"),
        f"        {left}_high = {left}_parts.load([{row}, start])",
        f"        {left}_low = {left}_parts.load([{row}, padded + start])",
        f"        {right}_high = {right}_parts.load([{col}, start])",
        f"        {right}_low = {right}_parts.load([{col}, padded + start])",
        *_dots(job, ".T", careful=careful),
    ]


def _pointers_loop(job: MatmulJob, *, careful: bool) -> list[str]:
    """The same without descriptors: making two of them takes the host longer than short products
    run."""
    left, right = job.left, job.right
    return [
        *_range(job, "padded"),
        f"        {left}_high = tl.load(left_at + start, mask=left_rows < n_rows, other=0.0)",
        f"        {left}_low = tl.load(left_at + padded + start, mask=left_rows < n_rows, "
        f"other=0.0)",
        f"        {right}_high = tl.load(right_at + start, mask=right_cols < n_cols, other=0.0)",
        f"        {right}_low = tl.load(right_at + padded + start, mask=right_cols < n_cols, "
        f"other=0.0)",
        *_dots(job, "", careful=careful),
    ]


def _dots(job: MatmulJob, turned: str, *, careful: bool) -> list[str]:
    """The product of parts. ``turned``: what makes columns of the right factor's rows."""
    left, right = job.left, job.right
    return [
        f"        block = _dot_parts({left}_high, {left}_low, {right}_high{turned}, "
        f"{right}_low{turned}, {careful})",
        "        product += block  # not on the tensor core, which drops low bits when it adds to "
        "a long sum",
    ]


def _tiles_loop(job: MatmulJob, *, careful: bool) -> list[str]:
    left, right = job.left, job.right
    of_batch = "_batch" if job.batched else ""
    left_ptr, right_ptr = f"{left}{of_batch}_ptr", f"{right}{of_batch}_ptr"
    end = "end" if job.split or job.product.triangular else "n_inner"
    dot = f"product = tl.dot({left}_tile, {right}_tile, product)"
    if job.float32:
        dot = f"product += _dot_float16x3({left}_tile, {right}_tile, {careful})"
    return [
        *_range(job, "n_inner"),
        "        inner = start + tl.arange(0, BLOCK_INNER).to(tl.int64)",
        f"        # past the end of {end} and of the rows and columns zeros stand in",
        f"        {left}_tile = tl.load(",
        f"            {left_ptr} + left_rows * {left}_row_stride + inner[None, :] * "
        f"{left}_inner_stride,",
        f"            mask=(left_rows < n_rows) & (inner[None, :] < {end}),",
        "            other=0.0,",
        "        )",
        f"        {right}_tile = tl.load(",
        f"            {right_ptr} + inner[:, None] * {right}_inner_stride + right_cols * "
        f"{right}_col_stride,",
        f"            mask=(inner[:, None] < {end}) & (right_cols < n_cols),",
        "            other=0.0,",
        "        )",
        f"        {dot}",
    ]
