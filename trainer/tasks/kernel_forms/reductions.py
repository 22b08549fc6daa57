"""Forms that leave one number of a row or a column: sums, products with a vector, distances,
places."""

from __future__ import annotations

from trainer.tasks.kernel_forms.pieces import Draw, KernelForm, function, loop
from trainer.tasks.kernel_forms.row_pieces import (
    NARROW,
    ROW,
    SCALAR,
    SIZES,
    TWIN,
    WHOLE,
    launch_rows,
    loads,
    passing,
)

COLUMNS = {
    "sum": ("0.0", "acc += tl.where(mask, x, 0.0)", "tl.sum(acc, axis=0)", "x.sum(0)"),
    "mean": ("0.0", "acc += tl.where(mask, x, 0.0)", "tl.sum(acc, axis=0) / rows", "x.mean(0)"),
    "squares": (
        "0.0",
        "acc += tl.where(mask, x * x, 0.0)",
        "tl.sum(acc, axis=0)",
        "(x * x).sum(0)",
    ),
    "largest": (
        'float("-inf")',
        'acc = tl.maximum(acc, tl.where(mask, x, float("-inf")))',
        "tl.max(acc, axis=0)",
        "x.amax(0)",
    ),
}


def columns(d: Draw) -> KernelForm:
    """A reduction of each column of a matrix (`COLUMNS`), a program for a block of columns."""
    begin, step, end, plain = COLUMNS[d.rng.choice(sorted(COLUMNS))]
    r, c = d.one(16, 32, 64, 128), d.one(16, 32, 64, 128)
    sizes = d.shape((4096, 4096), (65536, 256), (1024, 16384), (16384, 1000))
    lines, chained = d.chain("y", 0, 2)
    return KernelForm(
        kernel="def kernel(x_ptr, out_ptr, rows, columns, BLOCK_R: tl.constexpr, BLOCK_C: "
        "tl.constexpr):\n"
        "    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)\n"
        f"    acc = tl.full((BLOCK_R, BLOCK_C), {begin}, dtype=tl.float32)\n"
        "    for start in range(0, rows, BLOCK_R):\n        row = start + tl.arange(0, BLOCK_R)\n"
        "        mask = (row[:, None] < rows) & (column[None, :] < columns)\n"
        "        x = tl.load(x_ptr + row[:, None] * columns + column[None, :], mask=mask, "
        "other=0.0)"
        ".to(tl.float32)\n"
        f"        {step}\n    y = {end}\n{lines}    tl.store(out_ptr + column, y, mask=column < "
        f"columns)\n",
        launcher="def launch(x):\n    rows, columns = x.shape\n"
        "    out = torch.empty(columns, device=x.device, dtype=x.dtype)\n"
        f"    grid = (triton.cdiv(columns, {c}),)\n"
        f"    kernel[grid](x, out, rows, columns, BLOCK_R={r}, BLOCK_C={c}{d.options()})\n    "
        f"return out\n",
        inputs={"x": (d.dtype, (sizes, (150, 140)))},
        plain=chained.format(v=plain),
    )


def matvec(d: Draw) -> KernelForm:
    """A matrix (R, C) times a vector (C,), a program for a block of rows."""
    r, c = d.one(1, 8, 16, 64), d.one(64, 128, 256, 512)
    sizes = d.shape((4096, 4096), (16384, 2048), (2048, 16384), (32768, 1024))
    lines, chained = d.chain("y", 0, 2)
    return KernelForm(
        kernel="def kernel(a_ptr, x_ptr, out_ptr, rows, columns, BLOCK_R: tl.constexpr,"
        " BLOCK_C: tl.constexpr):\n"
        "    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)\n"
        "    total = tl.zeros((BLOCK_R,), dtype=tl.float32)\n"
        "    for start in range(0, columns, BLOCK_C):\n        column = start + tl.arange(0, "
        "BLOCK_C)\n"
        "        mask = (row[:, None] < rows) & (column[None, :] < columns)\n"
        "        a = tl.load(a_ptr + row[:, None] * columns + column[None, :], mask=mask, "
        "other=0.0)"
        ".to(tl.float32)\n"
        "        x = tl.load(x_ptr + column, mask=column < columns, other=0.0).to(tl.float32)\n"
        f"        total += tl.sum(a * x[None, :], axis=1)\n    y = total\n{lines}"
        "    tl.store(out_ptr + row, y, mask=row < rows)\n",
        launcher="def launch(a, x):\n    rows, columns = a.shape\n"
        "    out = torch.empty(rows, device=a.device, dtype=a.dtype)\n"
        f"    grid = (triton.cdiv(rows, {r}),)\n"
        f"    kernel[grid](a, x, out, rows, columns, BLOCK_R={r}, BLOCK_C={c}{d.options()})\n"
        "    return out\n",
        inputs={"a": (d.dtype, (sizes, (70, 300))), "x": (d.dtype, ((sizes[1],), (300,)))},
        plain=chained.format(v="(a @ x)"),
    )


def matvec_batched(d: Draw) -> KernelForm:
    """Matrices (B, R, C) times vectors (B, C), summed in each step or at the end."""
    r, c, late = d.one(1, 4, 16, 32), d.one(32, 64, 128, 256), d.rng.random() < 0.5
    sizes = d.shape((32, 1024, 512), (128, 256, 1024), (16, 2048, 2048), (64, 1000, 300))
    step = "total += a * x[None, :]" if late else "total += tl.sum(a * x[None, :], axis=1)"
    return KernelForm(
        kernel=function(
            "kernel(a_ptr, x_ptr, out_ptr, rows, columns, BLOCK_R: tl.constexpr, BLOCK_C: "
            "tl.constexpr)",
            "batch = tl.program_id(1).to(tl.int64)",
            "row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)",
            f"total = tl.zeros(({'BLOCK_R, BLOCK_C' if late else 'BLOCK_R,'}), dtype=tl.float32)",
            loop(
                "start in range(0, columns, BLOCK_C)",
                "column = start + tl.arange(0, BLOCK_C)",
                "mask = (row[:, None] < rows) & (column[None, :] < columns)",
                "a = tl.load(a_ptr + (batch * rows + row[:, None]) * columns + column[None, :],"
                " mask=mask, other=0.0).to(tl.float32)",
                "x = tl.load(x_ptr + batch * columns + column, mask=column < columns, other=0.0)"
                ".to(tl.float32)",
                step,
            ),
            f"y = {'tl.sum(total, axis=1)' if late else 'total'}",
            "tl.store(out_ptr + batch * rows + row, y, mask=row < rows)",
        ),
        launcher=function(
            "launch(a, x)",
            "batch, rows, columns = a.shape",
            "out = torch.empty(batch, rows, device=a.device, dtype=a.dtype)",
            f"grid = (triton.cdiv(rows, {r}), batch)",
            f"kernel[grid](a, x, out, rows, columns, BLOCK_R={r}, BLOCK_C={c}{d.options()})",
            "return out",
        ),
        inputs={
            "a": (d.dtype, (sizes, (3, 70, 130))),
            "x": (d.dtype, ((sizes[0], sizes[2]), (3, 130))),
        },
        plain="(a @ x[..., None])[..., 0]",
    )


def row_dot(d: Draw) -> KernelForm:
    """The product of two matrices row by row, summed: (R, C), (R, C) -> (R,)."""
    block = d.one(128, 256, 1024, 2048)
    sizes = d.shape(*SIZES)
    lines, chained = d.chain("y", 0, 1)
    return KernelForm(
        kernel="def kernel(a_ptr, b_ptr, out_ptr, columns, BLOCK: tl.constexpr):\n"
        "    row = tl.program_id(0).to(tl.int64)\n    total = tl.zeros((BLOCK,), "
        "dtype=tl.float32)\n"
        "    for start in range(0, columns, BLOCK):\n        column = start + tl.arange(0, BLOCK)\n"
        "        mask = column < columns\n"
        "        a = tl.load(a_ptr + row * columns + column, mask=mask, other=0.0).to(tl.float32)\n"
        "        b = tl.load(b_ptr + row * columns + column, mask=mask, other=0.0).to(tl.float32)\n"
        f"        total += a * b\n    y = tl.sum(total, axis=0)\n{lines}    tl.store(out_ptr + "
        f"row, y)\n",
        launcher="def launch(a, b):\n    rows, columns = a.shape\n"
        "    out = torch.empty(rows, device=a.device, dtype=a.dtype)\n"
        f"    kernel[(rows,)](a, b, out, columns, BLOCK={block}{d.options()})\n    return out\n",
        inputs=dict.fromkeys(("a", "b"), (d.dtype, (sizes, (6, 300)))),
        plain=chained.format(v="(a * b).sum(1)"),
    )


DISTANCES = {
    "l1": (("tl.abs(a - b)",), "{0}", "(a - b).abs().sum(1)"),
    "l2": (("(a - b) * (a - b)",), "tl.sqrt({0})", "torch.linalg.vector_norm(a - b, dim=1)"),
    "cosine": (
        ("a * b", "a * a", "b * b"),
        "{0} * tl.rsqrt({1} * {2} + 1e-12)",
        "torch.nn.functional.cosine_similarity(a, b)",
    ),
}


def distance(d: Draw) -> KernelForm:
    """Of the rows of two matrices, several rows to a program."""
    parts, written, plain = DISTANCES[d.rng.choice(("l1", "l2", "cosine", "cosine"))]
    r, c = d.one(1, 4, 16, 32), d.one(32, 64, 128, 256)
    late = d.rng.random() < 0.5
    body = []
    for i, part in enumerate(parts):
        body.append(f"s{i} += {part}" if late else f"s{i} += tl.sum({part}, axis=1)")
    shape = "(BLOCK_R, BLOCK_C)" if late else "(BLOCK_R,)"
    sums = [f"tl.sum(s{i}, axis=1)" if late else f"s{i}" for i in range(len(parts))]
    sizes = d.shape((4096, 4096), (16384, 1024), (65536, 256), (2048, 8192))
    return KernelForm(
        kernel=function(
            "kernel(a_ptr, b_ptr, out_ptr, rows, columns, BLOCK_R: tl.constexpr, BLOCK_C: "
            "tl.constexpr)",
            "row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)",
            *(f"s{i} = tl.zeros({shape}, dtype=tl.float32)" for i in range(len(parts))),
            loop(
                "start in range(0, columns, BLOCK_C)",
                "column = start + tl.arange(0, BLOCK_C)",
                "mask = (row[:, None] < rows) & (column[None, :] < columns)",
                loads("a", "b", at="row[:, None] * columns + column[None, :]"),
                *body,
            ),
            f"y = {written.format(*sums)}",
            "tl.store(out_ptr + row, y, mask=row < rows)",
        ),
        launcher=function(
            "launch(a, b)",
            "rows, columns = a.shape",
            "out = torch.empty(rows, device=a.device, dtype=torch.float32)",
            f"grid = (triton.cdiv(rows, {r}),)",
            f"kernel[grid](a, b, out, rows, columns, BLOCK_R={r}, BLOCK_C={c}{d.options()})",
            "return out",
        ),
        inputs=dict.fromkeys(("a", "b"), (d.dtype, (sizes, (70, 300)))),
        plain=plain,
    )


def peak(d: Draw) -> KernelForm:
    """Where the largest or smallest number of a row stands."""
    whole, most = d.rng.random() < 0.5, d.rng.random() < 0.6
    word, end, sign = ("max", "-inf", ">") if most else ("min", "inf", "<")
    read = loads("x", other=f'float("{end}")')
    if whole:
        body = [*WHOLE, read, f"place = tl.arg{word}(x, axis=0)"]
    elif d.rng.random() < 0.5:
        body = [f'best = float("{end}")', "place = 0"]
        step = [f"value = tl.{word}(x, axis=0)", f"there = start + tl.arg{word}(x, axis=0)"]
        step += [
            f"place = tl.where(value {sign} best, there, place)",
            f"best = tl.{word}imum(best, value)",
        ]
        body += [passing(read, *step)]
    else:
        body = [f'best = tl.full((BLOCK,), float("{end}"), dtype=tl.float32)']
        body += ["places = tl.zeros((BLOCK,), dtype=tl.int32)"]
        step = [f"better = x {sign} best", "places = tl.where(better, column, places)"]
        body += [passing(read, *step, "best = tl.where(better, x, best)")]
        body += [f"lane = tl.arg{word}(best, axis=0)"]
        body += ["place = tl.sum(tl.where(tl.arange(0, BLOCK) == lane, places, 0), axis=0)"]
    sizes = d.shape(*(NARROW if whole else SIZES))
    return KernelForm(
        kernel=function(
            "kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr)",
            ROW,
            *body,
            "tl.store(out_ptr + row, place)",
        ),
        launcher=launch_rows(d, "x", SCALAR.replace("float32", "int64"), whole),
        inputs={"x": ("f32", (sizes, TWIN))},
        plain=f"x.arg{word}(1)",
    )
