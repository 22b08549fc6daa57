"""Forms that bring a line of numbers to its own scale: softmax and plain norms, of rows and of
columns.

Or write the statistic of a row alone. A row is read at once, in passes, or beside other short
ones."""

from __future__ import annotations

from trainer.tasks.kernel_forms.pieces import Draw, KernelForm, function, loop
from trainer.tasks.kernel_forms.row_pieces import SIZES, loads
from trainer.tasks.kernel_forms.tile_pieces import AT_TILE, TILE

ADDED, GREATER = "{s} += {x}", "{s} = tl.maximum({s}, {x})"
STATISTICS = {
    "total": ("0.0", ADDED, "tl.sum(tl.where(mask, x, 0.0), axis=0)"),
    "squares": ("0.0", ADDED, "tl.sum(tl.where(mask, x * x, 0.0), axis=0)"),
    "largest": ('float("-inf")', GREATER, 'tl.max(tl.where(mask, x, float("-inf")), axis=0)'),
    "weight": ("0.0", ADDED, "tl.sum(tl.where(mask, tl.exp(x - largest), 0.0), axis=0)"),
    "spread": (
        "0.0",
        ADDED,
        "tl.sum(tl.where(mask, (x - total / columns) * (x - total / columns), 0.0), axis=0)",
    ),
}
"""Name -> what a loop begins with, how it joins the next block's, and that of a block."""
ROWS = {
    "softmax": (("largest", "weight"), "tl.exp(x - largest) / weight", "torch.softmax(x, 1)"),
    "log_softmax": (
        ("largest", "weight"),
        "x - largest - tl.log(weight)",
        "torch.log_softmax(x, 1)",
    ),
    "standardize": (
        ("total", "spread"),
        "(x - total / columns) * tl.rsqrt(spread / columns + 1e-5)",
        "(x - x.mean(1, True)) * torch.rsqrt(x.var(1, correction=0, keepdim=True) + 1e-5)",
    ),
    "rms": (
        ("squares",),
        "x * tl.rsqrt(squares / columns + 1e-5)",
        "x * torch.rsqrt((x * x).mean(1, True) + 1e-5)",
    ),
    "unit": (
        ("squares",),
        "x / tl.sqrt(squares + 1e-6)",
        "x / torch.sqrt((x * x).sum(1, True) + 1e-6)",
    ),
    "center": (("total",), "x - total / columns", "x - x.mean(1, True)"),
    "below": (("largest",), "x - largest", "x - x.amax(1, True)"),
}
"""Name -> statistics of a row, what is written, PyTorch."""
SCALARS = {
    "sum": (("total",), "total", "x.sum(1)"),
    "mean": (("total",), "total / columns", "x.mean(1)"),
    "largest": (("largest",), "largest", "x.amax(1)"),
    "norm": (("squares",), "tl.sqrt(squares)", "torch.sqrt((x * x).sum(1))"),
    "logsumexp": (("largest", "weight"), "largest + tl.log(weight)", "torch.logsumexp(x, 1)"),
    "variance": (("total", "spread"), "spread / columns", "x.var(1, correction=0)"),
}
"""Likewise, of one number a row."""


def rows_in_passes(d: Draw) -> KernelForm:
    """A loop over the row for each statistic, and one that writes."""
    return _rows(d, whole=False)


def rows_at_once(d: Draw) -> KernelForm:
    """The whole row in one block."""
    return _rows(d, whole=True)


def _rows(d: Draw, *, whole: bool) -> KernelForm:
    scalar = d.rng.random() < 0.4
    table = SCALARS if scalar else ROWS
    names, written, plain = table[d.rng.choice(sorted(table))]
    lines, chained = d.chain("y", 0, 2)
    block = "triton.next_power_of_2(columns)" if whole else str(d.one(128, 256, 1024, 1024, 2048))
    load = "x = tl.load(x_ptr + row * columns + column, mask=mask, other=0.0).to(tl.float32)\n"
    place = "column = start + tl.arange(0, BLOCK)\n"
    body = "    row = tl.program_id(0).to(tl.int64)\n"
    if whole:
        body += f"    column = tl.arange(0, BLOCK)\n    mask = column < columns\n    {load}"
        body += "".join(f"    {name} = {STATISTICS[name][2]}\n" for name in names)
    else:
        for name in names:
            begin, joined, block_of = STATISTICS[name]
            step = joined.format(s=name, x=block_of)
            body += (
                f"    {name} = {begin}\n    for start in range(0, columns, BLOCK):\n        {place}"
            )
            body += f"        mask = column < columns\n        {load}        {step}\n"
    if scalar:
        body += f"    y = {written}\n{lines}    tl.store(out_ptr + row, y)\n"
    elif whole:
        body += (
            f"    y = {written}\n{lines}    tl.store(out_ptr + row * columns + column, y, "
            f"mask=mask)\n"
        )
    else:
        inner = "".join(f"    {line}\n" for line in lines.splitlines())
        body += (
            f"    for start in range(0, columns, BLOCK):\n        {place}        mask = column < "
            f"columns\n"
        )
        body += f"        {load}        y = {written}\n{inner}"
        body += "        tl.store(out_ptr + row * columns + column, y, mask=mask)\n"
    made = "torch.empty(rows, device=x.device, dtype=x.dtype)" if scalar else "torch.empty_like(x)"
    sizes = d.shape(*(size for size in SIZES if not whole or size[1] <= 16384))
    return KernelForm(
        kernel=f"def kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):\n{body}",
        launcher=f"def launch(x):\n    rows, columns = x.shape\n    out = {made}\n"
        f"    kernel[(rows,)](x, out, columns, BLOCK={block}{d.options()})\n    return out\n",
        inputs={"x": (d.dtype, (sizes, (6, 300)))},
        plain=chained.format(v=plain),
    )


SHORT = {
    "softmax": (
        "e = tl.exp(x - tl.max(x, axis=1)[:, None])",
        "y = e / tl.sum(e, axis=1)[:, None]",
        "torch.softmax(x, 1)",
    ),
    "rms": (
        "s = tl.sum(tl.where(mask, x * x, 0.0), axis=1) / columns",
        "y = x * tl.rsqrt(s + 1e-5)[:, None]",
        "x * torch.rsqrt((x * x).mean(1, True) + 1e-5)",
    ),
    "share": (
        "p = tl.where(mask, tl.abs(x), 0.0)",
        "y = x / (tl.sum(p, axis=1)[:, None] + 1e-6)",
        "x / (x.abs().sum(1, True) + 1e-6)",
    ),
    "running": ("p = tl.where(mask, x, 0.0)", "y = tl.cumsum(p, axis=1)", "torch.cumsum(x, 1)"),
}


def short_rows(d: Draw) -> KernelForm:
    """Many short rows, several to a program."""
    name = d.rng.choice(sorted(SHORT))
    first, second, plain = SHORT[name]
    r = d.one(1, 2, 8, 32, 64)
    sizes = d.shape((262144, 64), (524288, 32), (131072, 128), (100000, 100), (65536, 256))
    lines, chained = d.chain("y", 0, 2)
    read = loads("x", at="row[:, None] * columns + column[None, :]", other='float("-inf")')
    return KernelForm(
        kernel=function(
            "kernel(x_ptr, out_ptr, rows, columns, BLOCK_R: tl.constexpr, WIDTH: tl.constexpr)",
            "row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)",
            "column = tl.arange(0, WIDTH)",
            "mask = (row[:, None] < rows) & (column[None, :] < columns)",
            read if name == "softmax" else read.replace('float("-inf")', "0.0"),
            first,
            second,
            lines,
            "tl.store(out_ptr + row[:, None] * columns + column[None, :], y, mask=mask)",
        ),
        launcher=function(
            "launch(x)",
            "rows, columns = x.shape",
            "out = torch.empty_like(x)",
            f"grid = (triton.cdiv(rows, {r}),)",
            f"kernel[grid](x, out, rows, columns, BLOCK_R={r}, "
            f"WIDTH=triton.next_power_of_2(columns)"
            f"{d.options()})",
            "return out",
        ),
        inputs={"x": ("f32" if name == "running" else d.dtype, (sizes, (70, 20)))},
        plain=chained.format(v=plain),
    )


DOWN = {
    "softmax": (
        'float("-inf")',
        "tl.exp(x - largest[None, :]) / weight[None, :]",
        "torch.softmax(x, 0)",
    ),
    "unit": (
        "0.0",
        "x * tl.rsqrt(squares + 1e-6)[None, :]",
        "x * torch.rsqrt((x * x).sum(0, True) + 1e-6)",
    ),
    "center": ("0.0", "x - (total / rows)[None, :]", "x - x.mean(0, True)"),
}


def _down(other: str, *parts: str) -> str:
    return loop(
        "start in range(0, rows, BLOCK_R)",
        "row = start + tl.arange(0, BLOCK_R)",
        "mask = (row[:, None] < rows) & (column[None, :] < columns)",
        f"x = tl.load(x_ptr + {AT_TILE}, mask=mask, other={other}).to(tl.float32)",
        *parts,
    )


def _down_statistics(d: Draw, name: str, other: str) -> list[str]:
    zeros = "tl.zeros((BLOCK_C,), dtype=tl.float32)"
    if name != "softmax":
        word, value = ("squares", "x * x") if name == "unit" else ("total", "x")
        return [f"{word} = {zeros}", _down(other, f"{word} += tl.sum({value}, axis=0)")]
    # columns past the end are -inf throughout: kept finite, nothing of them is written
    begin = ["largest = tl.full((BLOCK_C,), -1e30, dtype=tl.float32)", f"weight = {zeros}"]
    if d.rng.random() < 0.5:
        online = ["new = tl.maximum(largest, tl.max(x, axis=0))", "weight *= tl.exp(largest - new)"]
        online += ["weight += tl.sum(tl.exp(x - new[None, :]), axis=0)", "largest = new"]
        return [*begin, _down(other, *online)]
    first = _down(other, "largest = tl.maximum(largest, tl.max(x, axis=0))")
    return [*begin, first, _down(other, "weight += tl.sum(tl.exp(x - largest[None, :]), axis=0)")]


def down_columns(d: Draw) -> KernelForm:
    """Softmax or a norm along the first dimension: a block of columns a program."""
    name = d.rng.choice(sorted(DOWN))
    other, written, plain = DOWN[name]
    statistics = _down_statistics(d, name, other)
    r, c = d.one(4, 16, 32, 128), d.one(16, 32, 64, 128)
    sizes = d.shape((4096, 4096), (16384, 1024), (1024, 8192), (2000, 3000))
    return KernelForm(
        kernel=function(
            f"kernel(x_ptr, out_ptr, rows, columns, {', '.join(TILE)})",
            "column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)",
            *statistics,
            _down(other, f"tl.store(out_ptr + {AT_TILE}, {written}, mask=mask)"),
        ),
        launcher=function(
            "launch(x)",
            "rows, columns = x.shape",
            "out = torch.empty_like(x)",
            f"grid = (triton.cdiv(columns, {c}),)",
            f"kernel[grid](x, out, rows, columns, BLOCK_R={r}, BLOCK_C={c}{d.options()})",
            "return out",
        ),
        inputs={"x": (d.dtype, (sizes, (150, 140)))},
        plain=plain,
    )
