"""Triton statements of one tile of a matrix product: where it lies, and the loop over the inner
dimension."""

from __future__ import annotations

from kernel_lsp.rewrite.codegen.matmul.plan import MatmulJob


def begin(job: MatmulJob) -> list[str]:
    """Which tile a program computes; of a persistent plan the head of the loop that the rest
    stands in."""
    sizes = "    row_tiles, col_tiles = tl.cdiv(n_rows, BLOCK_ROWS), tl.cdiv(n_cols, BLOCK_COLS)"
    if job.tile.persistent:
        return [sizes, *_walk(job)]
    lines = ["    tile = tl.program_id(0)"]
    if job.batched:
        lines.append("    batch = tl.program_id(1).to(tl.int64)  # int64: offsets can pass 2**31")
    if job.split:
        lines.append(f"    part = tl.program_id({2 if job.batched else 1})")
    return [*lines, sizes]


def _walk(job: MatmulJob) -> list[str]:
    """Flattened with the loop over the inner dimension, it is one pipeline."""
    why = "    # Flattened: blocks of the next tile are loaded while this one is finished."
    if not job.batched:
        head = (
            "    for tile in tl.range(tl.program_id(0), row_tiles * col_tiles, tl.num_programs(0), "
        )
        return [why, head + "flatten=True):"]
    return [
        "    tiles = row_tiles * col_tiles",
        why,
        "    for walked in tl.range(tl.program_id(0), n_batches * tiles, tl.num_programs(0), "
        "flatten=True):",
        "        batch = (walked // tiles).to(tl.int64)  # int64: offsets can pass 2**31",
        "        tile = walked % tiles",
    ]


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


def parts_loop(job: MatmulJob) -> list[str]:
    left, right = job.left, job.right
    row, col = "start_row", "start_col"
    lines = []
    if not job.descriptors:
        return _pointers_loop(job)
    if job.batched:
        row, col = "left_row", "right_row"
        lines = [
            "    # The batches lie below each other; rows of the next one are masked at the end.",
            "    left_row = (batch * n_rows + start_row).to(tl.int32)",
            "    right_row = (batch * n_cols + start_col).to(tl.int32)",
        ]
    return [
        *lines,
        "    product = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)",
        *_range(job, "padded"),
        f"        {left}_high = {left}_parts.load([{row}, start])",
        f"        {left}_low = {left}_parts.load([{row}, padded + start])",
        f"        {right}_high = {right}_parts.load([{col}, start])",
        f"        {right}_low = {right}_parts.load([{col}, padded + start])",
        *_dots(job, ".T"),
    ]


def _pointers_loop(job: MatmulJob) -> list[str]:
    """The same without descriptors: making two of them takes the host longer than short products
    run."""
    left, right = job.left, job.right
    rows, cols = ("batch * n_rows + ", "batch * n_cols + ") if job.batched else ("", "")
    left_rows, right_cols = (f"({rows}left_rows)", f"({cols}right_cols)") if job.batched else (
        "left_rows", "right_cols",
    )  # fmt: skip
    return [
        "    left_rows = (start_row + tl.arange(0, BLOCK_ROWS)[:, None]).to(tl.int64)",
        "    right_cols = (start_col + tl.arange(0, BLOCK_COLS)[None, :]).to(tl.int64)",
        "    inner = tl.arange(0, BLOCK_INNER)",
        f"    left_at = {left}_parts_ptr + {left_rows} * 2 * padded + inner[None, :]",
        f"    right_at = {right}_parts_ptr + {right_cols} * 2 * padded + inner[:, None]",
        "    product = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)",
        *_range(job, "padded"),
        f"        {left}_high = tl.load(left_at + start, mask=left_rows < n_rows, other=0.0)",
        f"        {left}_low = tl.load(left_at + padded + start, mask=left_rows < n_rows, "
        f"other=0.0)",
        f"        {right}_high = tl.load(right_at + start, mask=right_cols < n_cols, other=0.0)",
        f"        {right}_low = tl.load(right_at + padded + start, mask=right_cols < n_cols, "
        f"other=0.0)",
        *_dots(job, ""),
    ]


def _dots(job: MatmulJob, turned: str) -> list[str]:
    """Three products of parts. ``turned``: what makes columns of the right factor's rows."""
    left, right = job.left, job.right
    return [
        "        # low * low is below the last bit of float32",
        f"        block = tl.dot({left}_low, {right}_high{turned})",
        f"        block = tl.dot({left}_high, {right}_low{turned}, block)",
        f"        block = tl.dot({left}_high, {right}_high{turned}, block)",
        "        product += block  # not on the tensor core, which drops low bits when it adds to "
        "a long sum",
    ]


def tiles_loop(job: MatmulJob) -> list[str]:
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
    dot = "product += _dot_float16x3({0}_tile, {1}_tile)" if job.float32 else (
        "product = tl.dot({0}_tile, {1}_tile, product)"
    )  # fmt: skip
    return [
        *shifts,
        "    left_rows = (start_row + tl.arange(0, BLOCK_ROWS)[:, None]).to(tl.int64)",
        "    right_cols = (start_col + tl.arange(0, BLOCK_COLS)[None, :]).to(tl.int64)",
        "    product = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)",
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
        f"        {dot.format(left, right)}",
    ]
