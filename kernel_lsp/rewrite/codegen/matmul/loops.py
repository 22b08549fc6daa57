"""Triton statements of one tile of a matrix product: where it lies, and the loop over the inner
dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernel_lsp.rewrite.codegen.matmul.plan import MatmulJob


def begin(job: MatmulJob) -> list[str]:
    """Which tile a program computes."""
    lines = ["    tile = tl.program_id(0)"]
    if job.batched:
        lines.append("    batch = tl.program_id(1).to(tl.int64)  # int64: offsets can pass 2**31")
    if job.split:
        lines.append(f"    part = tl.program_id({2 if job.batched else 1})")
    return [*lines, TILES]


TILES = "    row_tiles, col_tiles = tl.cdiv(n_rows, BLOCK_ROWS), tl.cdiv(n_cols, BLOCK_COLS)"


def walks(job: MatmulJob, tile: Callable[[bool], list[str]]) -> list[str]:
    """The statements of a persistent program. ``tile``: those of one tile, careful or not."""
    count = "n_batches * row_tiles * col_tiles" if job.batched else "row_tiles * col_tiles"
    lines = [
        TILES,
        *(["    again = 0"] if job.float32 else []),
        "    # Flattened: blocks of the next tile are loaded while this one is finished.",
        f"    for walked in tl.range(tl.program_id(0), {count}, tl.num_programs(0), flatten=True):",
        *_indented([*_walked_tile(job), *tile(False)]),
    ]
    if not job.float32:
        return lines
    return [
        *lines,
        WHY_AGAIN,
        f"    count = tl.where(again > 0, {count}, 0)",
        "    for walked in range(tl.program_id(0), count, tl.num_programs(0)):",
        *_indented([*_walked_tile(job), *tile(True)]),
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


def place() -> list[str]:
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


SUMS = "    product = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)"
WHY_AGAIN = (
    "    # The low part of a number may have another sign: infinity times both is NaN. "
    "Again, carefully."
)


def loop(job: MatmulJob) -> list[str]:
    """The product of one tile, where a program computes one."""
    before, over = _loop(job, careful=False)
    if not job.float32:
        return [*before, SUMS, *over]
    _, again = _loop(job, careful=True)
    again_if = [WHY_AGAIN, "    if _any_nan(product):", *_indented([SUMS, *again])]
    return [*before, SUMS, *over, *again_if]


def walked_loop(job: MatmulJob, *, careful: bool) -> list[str]:
    """The product of one tile of many. A second loop for some of them would end the pipeline over
    all."""
    before, over = _loop(job, careful=careful)
    noted = ["    again = tl.maximum(again, _any_nan(product))"] if job.float32 else []
    return [*before, SUMS, *over, *([] if careful else noted)]


def _loop(job: MatmulJob, *, careful: bool) -> tuple[list[str], list[str]]:
    """What stands before the sums, and the loop that adds to them."""
    if not job.parts:
        return _tiles_loop(job, careful=careful)
    return (
        _descriptors_loop(job, careful=careful)
        if job.descriptors
        else _pointers_loop(job, careful=careful)
    )


def _descriptors_loop(job: MatmulJob, *, careful: bool) -> tuple[list[str], list[str]]:
    left, right = job.left, job.right
    row, col = "start_row", "start_col"
    lines = list[str]()
    if job.batched:
        row, col = "left_row", "right_row"
        lines = [
            "    # The batches lie below each other; rows of the next one are masked at the end.",
            "    left_row = (batch * n_rows + start_row).to(tl.int32)",
            "    right_row = (batch * n_cols + start_col).to(tl.int32)",
        ]
    return lines, [
        *_range(job, "padded"),
        f"        {left}_high = {left}_parts.load([{row}, start])",
        f"        {left}_low = {left}_parts.load([{row}, padded + start])",
        f"        {right}_high = {right}_parts.load([{col}, start])",
        f"        {right}_low = {right}_parts.load([{col}, padded + start])",
        *_dots(job, ".T", careful=careful),
    ]


def _pointers_loop(job: MatmulJob, *, careful: bool) -> tuple[list[str], list[str]]:
    """The same without descriptors: making two of them takes the host longer than short products
    run."""
    left, right = job.left, job.right
    rows, cols = ("batch * n_rows + ", "batch * n_cols + ") if job.batched else ("", "")
    left_rows, right_cols = (f"({rows}left_rows)", f"({cols}right_cols)") if job.batched else (
        "left_rows", "right_cols",
    )  # fmt: skip
    before = [
        "    left_rows = (start_row + tl.arange(0, BLOCK_ROWS)[:, None]).to(tl.int64)",
        "    right_cols = (start_col + tl.arange(0, BLOCK_COLS)[None, :]).to(tl.int64)",
        "    inner = tl.arange(0, BLOCK_INNER)",
        f"    left_at = {left}_parts_ptr + {left_rows} * 2 * padded + inner[None, :]",
        f"    right_at = {right}_parts_ptr + {right_cols} * 2 * padded + inner[:, None]",
    ]
    return before, [
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


def _tiles_loop(job: MatmulJob, *, careful: bool) -> tuple[list[str], list[str]]:
    left, right = job.left, job.right
    left_ptr, right_ptr = f"{left}_ptr", f"{right}_ptr"
    shifts = list[str]()
    if job.batched:
        left_ptr, right_ptr = f"{left}_batch_ptr", f"{right}_batch_ptr"
        shifts = [
            f"    {left_ptr} = {left}_ptr + batch * {left}_batch_stride",
            f"    {right_ptr} = {right}_ptr + batch * {right}_batch_stride",
        ]
    end = "end" if job.split or job.product.triangular else "n_inner"
    dot = f"product = tl.dot({left}_tile, {right}_tile, product)"
    if job.float32:
        dot = f"product += _dot_float16x3({left}_tile, {right}_tile, {careful})"
    before = [
        *shifts,
        "    left_rows = (start_row + tl.arange(0, BLOCK_ROWS)[:, None]).to(tl.int64)",
        "    right_cols = (start_col + tl.arange(0, BLOCK_COLS)[None, :]).to(tl.int64)",
    ]
    return before, [
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
