"""Forms of Triton kernels that `trainer.generated_kernels` draws from: each with what it is in PyTorch.

A form writes one kernel and the function that launches it, as people write them: blocks, warps, the number of
passes over a row are drawn, so some are good and some are not. Every length is read from the arguments, so
the same text runs on a tiny workload. More of them: kernel_forms_rows.py, _tiles.py, _products.py. Not
covered: atomics, kernels of several launches, autotune.
"""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

DTYPES = (("f32", 6), ("bf16", 3), ("f16", 1))
UNARY = {
    "relu": ("tl.maximum({v}, 0.0)", "torch.relu(v)"),
    "silu": ("{v} * tl.sigmoid({v})", "v * torch.sigmoid(v)"),
    "square": ("{v} * {v}", "v * v"),
    "bell": ("tl.exp(-{v} * {v})", "torch.exp(-v * v)"),
    "abs": ("tl.abs({v})", "torch.abs(v)"),
    "clamp": ("tl.minimum(tl.maximum({v}, -1.5), 1.5)", "torch.clamp(v, -1.5, 1.5)"),
    "log": ("tl.log(1.0 + tl.abs({v}))", "torch.log(1.0 + torch.abs(v))"),
    "root": ("tl.sqrt(tl.abs({v}) + 0.25)", "torch.sqrt(torch.abs(v) + 0.25)"),
    "gelu": ("0.5 * {v} * (1.0 + tl.erf({v} * 0.70710678))", "0.5 * v * (1.0 + torch.erf(v * 0.70710678))"),
    "shift": ("{v} * 0.5 + 0.125", "v * 0.5 + 0.125"),
}
"""Name -> how a kernel writes it of {v}, and PyTorch of v."""
Shapes = tuple[tuple[int, ...], tuple[int, ...]]
"""Of the workload and of the twin."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """One kernel with its launcher."""

    kernel: str
    """Text of the function ``kernel``, without its decorator."""
    launcher: str
    """Text of the function ``launch``, without its workload."""
    inputs: dict[str, tuple[str, Shapes]]
    """Argument -> dtype (index:N for indices below N) and shapes."""
    plain: str
    """What ``launch`` returns, as an expression of its arguments in float32."""


class Draw:
    """The choices of one kernel."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.dtype = rng.choices([name for name, _ in DTYPES], [weight for _, weight in DTYPES])[0]

    def one(self, *choices: int) -> int:
        return self.rng.choice(choices)

    def shape(self, *choices: tuple[int, ...]) -> tuple[int, ...]:
        return self.rng.choice(choices)

    def options(self) -> str:
        """Of the launch; most people write none."""
        warps = self.rng.choice((None, None, None, None, 1, 2, 8, 16))
        return f", num_warps={warps}" if warps else ""

    def chain(self, v: str, least: int, most: int) -> tuple[str, str]:
        """Some pointwise operations on the variable ``v``: lines of a kernel, and a function in PyTorch."""
        names = self.rng.sample(sorted(UNARY), self.rng.randint(least, most))
        lines = "".join(f"    {v} = {UNARY[name][0].format(v=v)}\n" for name in names)
        return lines, reduce(lambda inner, name: f"(lambda v: {UNARY[name][1]})({inner})", names, "{v}")


def inside(*parts: str) -> str:
    """Lines one level deeper; of each part its own indentation does not count."""
    return "".join(
        textwrap.indent(textwrap.dedent(part).rstrip("\n"), "    ") + "\n" for part in parts if part
    )


def function(head: str, *parts: str) -> str:
    return f"def {head}:\n{inside(*parts)}"


def loop(head: str, *parts: str) -> str:
    return f"for {head}:\n{inside(*parts)}"


def pointwise(d: Draw) -> Form:
    names = ["a", "b", "c"][: d.one(1, 1, 2, 2, 3)]
    block, sizes = d.one(64, 128, 256, 1024, 1024, 4096), d.shape((4096, 4096), (8192, 2048), (1000, 3000))
    signs = [d.rng.choice("+*-") for _ in names[1:]]
    loads = "".join(f"    {n} = tl.load({n}_ptr + offsets, mask=mask).to(tl.float32)\n" for n in names)
    joined = "".join(f"    a = a {sign} {n}\n" for sign, n in zip(signs, names[1:], strict=True))
    plain = reduce(
        lambda left, pair: f"({left} {pair[0]} {pair[1]})", zip(signs, names[1:], strict=True), "a"
    )
    lines, chained = d.chain("a", 1, 4)
    return Form(
        kernel=f"def kernel({', '.join(f'{n}_ptr' for n in names)}, out_ptr, n, BLOCK: tl.constexpr):\n"
        "    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    mask = offsets < n\n"
        f"{loads}{joined}{lines}    tl.store(out_ptr + offsets, a, mask=mask)\n",
        launcher=f"def launch({', '.join(names)}):\n    out = torch.empty_like(a)\n    n = a.numel()\n"
        f"    grid = (triton.cdiv(n, {block}),)\n"
        f"    kernel[grid]({', '.join(names)}, out, n, BLOCK={block}{d.options()})\n    return out\n",
        inputs=dict.fromkeys(names, (d.dtype, (sizes, (5, 70)))),
        plain=chained.format(v=plain),
    )


# --- rows ----------------------------------------------------------------------------------------

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
    "log_softmax": (("largest", "weight"), "x - largest - tl.log(weight)", "torch.log_softmax(x, 1)"),
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
    "unit": (("squares",), "x / tl.sqrt(squares + 1e-6)", "x / torch.sqrt((x * x).sum(1, True) + 1e-6)"),
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
SIZES = ((4096, 4096), (8192, 2048), (2048, 16384), (512, 65536), (32768, 512), (3000, 5000))


def rows_in_passes(d: Draw) -> Form:
    """A loop over the row for each statistic, and one that writes."""
    return _rows(d, whole=False)


def rows_at_once(d: Draw) -> Form:
    """The whole row in one block."""
    return _rows(d, whole=True)


def _rows(d: Draw, *, whole: bool) -> Form:
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
            body += f"    {name} = {begin}\n    for start in range(0, columns, BLOCK):\n        {place}"
            body += f"        mask = column < columns\n        {load}        {step}\n"
    if scalar:
        body += f"    y = {written}\n{lines}    tl.store(out_ptr + row, y)\n"
    elif whole:
        body += f"    y = {written}\n{lines}    tl.store(out_ptr + row * columns + column, y, mask=mask)\n"
    else:
        inner = "".join(f"    {line}\n" for line in lines.splitlines())
        body += (
            f"    for start in range(0, columns, BLOCK):\n        {place}        mask = column < columns\n"
        )
        body += f"        {load}        y = {written}\n{inner}"
        body += "        tl.store(out_ptr + row * columns + column, y, mask=mask)\n"
    made = "torch.empty(rows, device=x.device, dtype=x.dtype)" if scalar else "torch.empty_like(x)"
    sizes = d.shape(*(size for size in SIZES if not whole or size[1] <= 16384))
    return Form(
        kernel=f"def kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):\n{body}",
        launcher=f"def launch(x):\n    rows, columns = x.shape\n    out = {made}\n"
        f"    kernel[(rows,)](x, out, columns, BLOCK={block}{d.options()})\n    return out\n",
        inputs={"x": (d.dtype, (sizes, (6, 300)))},
        plain=chained.format(v=plain),
    )


# --- columns, both dimensions --------------------------------------------------------------------

COLUMNS = {
    "sum": ("0.0", "acc += tl.where(mask, x, 0.0)", "tl.sum(acc, axis=0)", "x.sum(0)"),
    "mean": ("0.0", "acc += tl.where(mask, x, 0.0)", "tl.sum(acc, axis=0) / rows", "x.mean(0)"),
    "squares": ("0.0", "acc += tl.where(mask, x * x, 0.0)", "tl.sum(acc, axis=0)", "(x * x).sum(0)"),
    "largest": (
        'float("-inf")',
        'acc = tl.maximum(acc, tl.where(mask, x, float("-inf")))',
        "tl.max(acc, axis=0)",
        "x.amax(0)",
    ),
}


def columns(d: Draw) -> Form:
    begin, step, end, plain = COLUMNS[d.rng.choice(sorted(COLUMNS))]
    r, c = d.one(16, 32, 64, 128), d.one(16, 32, 64, 128)
    sizes = d.shape((4096, 4096), (65536, 256), (1024, 16384), (16384, 1000))
    lines, chained = d.chain("y", 0, 2)
    return Form(
        kernel="def kernel(x_ptr, out_ptr, rows, columns, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):\n"
        "    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)\n"
        f"    acc = tl.full((BLOCK_R, BLOCK_C), {begin}, dtype=tl.float32)\n"
        "    for start in range(0, rows, BLOCK_R):\n        row = start + tl.arange(0, BLOCK_R)\n"
        "        mask = (row[:, None] < rows) & (column[None, :] < columns)\n"
        "        x = tl.load(x_ptr + row[:, None] * columns + column[None, :], mask=mask, other=0.0)"
        ".to(tl.float32)\n"
        f"        {step}\n    y = {end}\n{lines}    tl.store(out_ptr + column, y, mask=column < columns)\n",
        launcher="def launch(x):\n    rows, columns = x.shape\n"
        "    out = torch.empty(columns, device=x.device, dtype=x.dtype)\n"
        f"    grid = (triton.cdiv(columns, {c}),)\n"
        f"    kernel[grid](x, out, rows, columns, BLOCK_R={r}, BLOCK_C={c}{d.options()})\n    return out\n",
        inputs={"x": (d.dtype, (sizes, (150, 140)))},
        plain=chained.format(v=plain),
    )


def matvec(d: Draw) -> Form:
    r, c = d.one(1, 8, 16, 64), d.one(64, 128, 256, 512)
    sizes = d.shape((4096, 4096), (16384, 2048), (2048, 16384), (32768, 1024))
    lines, chained = d.chain("y", 0, 2)
    return Form(
        kernel="def kernel(a_ptr, x_ptr, out_ptr, rows, columns, BLOCK_R: tl.constexpr,"
        " BLOCK_C: tl.constexpr):\n"
        "    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)\n"
        "    total = tl.zeros((BLOCK_R,), dtype=tl.float32)\n"
        "    for start in range(0, columns, BLOCK_C):\n        column = start + tl.arange(0, BLOCK_C)\n"
        "        mask = (row[:, None] < rows) & (column[None, :] < columns)\n"
        "        a = tl.load(a_ptr + row[:, None] * columns + column[None, :], mask=mask, other=0.0)"
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


def row_dot(d: Draw) -> Form:
    block = d.one(128, 256, 1024, 2048)
    sizes = d.shape(*SIZES)
    lines, chained = d.chain("y", 0, 1)
    return Form(
        kernel="def kernel(a_ptr, b_ptr, out_ptr, columns, BLOCK: tl.constexpr):\n"
        "    row = tl.program_id(0).to(tl.int64)\n    total = tl.zeros((BLOCK,), dtype=tl.float32)\n"
        "    for start in range(0, columns, BLOCK):\n        column = start + tl.arange(0, BLOCK)\n"
        "        mask = column < columns\n"
        "        a = tl.load(a_ptr + row * columns + column, mask=mask, other=0.0).to(tl.float32)\n"
        "        b = tl.load(b_ptr + row * columns + column, mask=mask, other=0.0).to(tl.float32)\n"
        f"        total += a * b\n    y = tl.sum(total, axis=0)\n{lines}    tl.store(out_ptr + row, y)\n",
        launcher="def launch(a, b):\n    rows, columns = a.shape\n"
        "    out = torch.empty(rows, device=a.device, dtype=a.dtype)\n"
        f"    kernel[(rows,)](a, b, out, columns, BLOCK={block}{d.options()})\n    return out\n",
        inputs=dict.fromkeys(("a", "b"), (d.dtype, (sizes, (6, 300)))),
        plain=chained.format(v="(a * b).sum(1)"),
    )


def broadcast(d: Draw) -> Form:
    r, c = d.one(16, 32, 64), d.one(16, 32, 64, 128)
    turned = d.rng.random() < 0.5
    sizes = d.shape((4096, 4096), (8192, 2048), (2000, 9000))
    lines, chained = d.chain("y", 0, 2)
    target = "column[None, :] * rows + row[:, None]" if turned else "row[:, None] * columns + column[None, :]"
    shape = "columns, rows" if turned else "rows, columns"
    inner = "(x * scale + shift[:, None])"
    return Form(
        kernel="def kernel(x_ptr, scale_ptr, shift_ptr, out_ptr, rows, columns, BLOCK_R: tl.constexpr,"
        " BLOCK_C: tl.constexpr):\n"
        "    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)\n"
        "    column = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)\n"
        "    mask = (row[:, None] < rows) & (column[None, :] < columns)\n"
        "    x = tl.load(x_ptr + row[:, None] * columns + column[None, :], mask=mask).to(tl.float32)\n"
        "    scale = tl.load(scale_ptr + column, mask=column < columns).to(tl.float32)\n"
        "    shift = tl.load(shift_ptr + row, mask=row < rows).to(tl.float32)\n"
        f"    y = x * scale[None, :] + shift[:, None]\n{lines}"
        f"    tl.store(out_ptr + {target}, y, mask=mask)\n",
        launcher="def launch(x, scale, shift):\n    rows, columns = x.shape\n"
        f"    out = torch.empty({shape}, device=x.device, dtype=x.dtype)\n"
        f"    grid = (triton.cdiv(rows, {r}), triton.cdiv(columns, {c}))\n"
        f"    kernel[grid](x, scale, shift, out, rows, columns, BLOCK_R={r}, BLOCK_C={c}{d.options()})\n"
        "    return out\n",
        inputs={
            "x": (d.dtype, (sizes, (70, 75))),
            "scale": (d.dtype, ((sizes[1],), (75,))),
            "shift": (d.dtype, ((sizes[0],), (70,))),
        },
        plain=chained.format(v=inner + (".t()" if turned else "")),
    )


# --- products ------------------------------------------------------------------------------------


def product(d: Draw) -> Form:
    m, n, k = d.one(16, 32, 64, 128), d.one(16, 32, 64, 128), d.one(16, 32, 64)
    dtype = d.rng.choice(("bf16", "bf16", "f16"))
    a, b = d.rng.choice(
        (((4096, 1024), (1024, 4096)), ((8192, 512), (512, 1024)), ((2048, 4096), (4096, 2048)))
    )
    lines, chained = d.chain("y", 0, 2)
    bias = d.rng.random() < 0.5
    added = (
        "    y = y + tl.load(bias_ptr + columns, mask=columns < N).to(tl.float32)[None, :]\n" if bias else ""
    )
    names, pointers = ("a, b, bias", "a_ptr, b_ptr, bias_ptr") if bias else ("a, b", "a_ptr, b_ptr")
    return Form(
        kernel=f"def kernel({pointers}, out_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,"
        " BLOCK_K: tl.constexpr):\n"
        "    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)\n"
        "    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)\n"
        "    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)\n"
        "    for start in range(0, K, BLOCK_K):\n        inner = start + tl.arange(0, BLOCK_K)\n"
        "        a = tl.load(a_ptr + rows[:, None] * K + inner[None, :], mask=(rows[:, None] < M) &"
        " (inner[None, :] < K), other=0.0)\n"
        "        b = tl.load(b_ptr + inner[:, None] * N + columns[None, :], mask=(inner[:, None] < K) &"
        " (columns[None, :] < N), other=0.0)\n"
        f"        total += tl.dot(a, b)\n    y = total\n{added}{lines}"
        "    mask = (rows[:, None] < M) & (columns[None, :] < N)\n"
        "    tl.store(out_ptr + rows[:, None] * N + columns[None, :], y, mask=mask)\n",
        launcher=f"def launch({names}):\n    M, K = a.shape\n    N = b.shape[1]\n"
        "    out = torch.empty(M, N, device=a.device, dtype=a.dtype)\n"
        f"    grid = (triton.cdiv(M, {m}), triton.cdiv(N, {n}))\n"
        f"    kernel[grid]({names}, out, M, N, K, BLOCK_M={m}, BLOCK_N={n}, BLOCK_K={k}{d.options()})\n"
        "    return out\n",
        inputs={
            "a": (dtype, (a, (40, 50))),
            "b": (dtype, (b, (50, 45))),
            **({"bias": (dtype, ((b[1],), (45,)))} if bias else {}),
        },
        plain=chained.format(v="(a @ b + bias)" if bias else "(a @ b)"),
    )


# --- along a row ---------------------------------------------------------------------------------


def window(d: Draw) -> Form:
    """Each element with some of those before it."""
    taps, block = d.one(2, 3, 4, 5), d.one(128, 256, 1024)
    sizes = d.shape((4096, 4096), (1024, 16384), (16384, 1024))
    lines, chained = d.chain("y", 0, 2)
    loads = "".join(
        f"    y += tl.load(x_ptr + row * length + column - {tap}, mask=(column >= {tap}) & (column < length),"
        f" other=0.0).to(tl.float32) * tl.load(w_ptr + {tap}).to(tl.float32)\n"
        for tap in range(taps)
    )
    plain = f"sum(w[t] * torch.nn.functional.pad(x, (t, 0))[:, : x.shape[1]] for t in range({taps}))"
    return Form(
        kernel="def kernel(x_ptr, w_ptr, out_ptr, length, BLOCK: tl.constexpr):\n"
        "    row = tl.program_id(0).to(tl.int64)\n"
        "    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)\n"
        f"    y = tl.zeros((BLOCK,), dtype=tl.float32)\n{loads}{lines}"
        "    tl.store(out_ptr + row * length + column, y, mask=column < length)\n",
        launcher="def launch(x, w):\n    rows, length = x.shape\n    out = torch.empty_like(x)\n"
        f"    grid = (rows, triton.cdiv(length, {block}))\n"
        f"    kernel[grid](x, w, out, length, BLOCK={block}{d.options()})\n    return out\n",
        inputs={"x": (d.dtype, (sizes, (6, 300))), "w": (d.dtype, ((taps,), (taps,)))},
        plain=chained.format(v=plain),
    )


def running(d: Draw) -> Form:
    block = d.one(128, 256, 1024)
    sizes = d.shape((4096, 4096), (8192, 2048), (1024, 8192))
    lines, chained = d.chain("x", 0, 1)
    inner = "".join(f"    {line}\n" for line in lines.splitlines())
    return Form(
        kernel="def kernel(x_ptr, out_ptr, length, BLOCK: tl.constexpr):\n"
        "    row = tl.program_id(0).to(tl.int64)\n    before = 0.0\n"
        "    for start in range(0, length, BLOCK):\n        column = start + tl.arange(0, BLOCK)\n"
        "        mask = column < length\n"
        f"        x = tl.load(x_ptr + row * length + column, mask=mask, other=0.0).to(tl.float32)\n{inner}"
        "        x = tl.where(mask, x, 0.0)\n"
        "        tl.store(out_ptr + row * length + column, before + tl.cumsum(x, axis=0), mask=mask)\n"
        "        before += tl.sum(x, axis=0)\n",
        launcher="def launch(x):\n    rows, length = x.shape\n    out = torch.empty_like(x)\n"
        f"    kernel[(rows,)](x, out, length, BLOCK={block}{d.options()})\n    return out\n",
        inputs={"x": ("f32", (sizes, (6, 300)))},
        plain=f"torch.cumsum({chained.format(v='x')}, 1)",
    )


def gather(d: Draw) -> Form:
    block = d.one(64, 128, 512)
    table, count = d.rng.choice((((50000, 1024), 16384), ((10000, 4096), 8192), ((100000, 512), 32768)))
    lines, chained = d.chain("y", 0, 2)
    return Form(
        kernel="def kernel(table_ptr, index_ptr, out_ptr, width, BLOCK: tl.constexpr):\n"
        "    row = tl.program_id(0).to(tl.int64)\n    source = tl.load(index_ptr + row)\n"
        "    for start in range(0, width, BLOCK):\n        column = start + tl.arange(0, BLOCK)\n"
        "        mask = column < width\n"
        "        y = tl.load(table_ptr + source * width + column, mask=mask, other=0.0).to(tl.float32)\n"
        + "".join(f"    {line}\n" for line in lines.splitlines())
        + "        tl.store(out_ptr + row * width + column, y, mask=mask)\n",
        launcher="def launch(table, index):\n    count, width = index.shape[0], table.shape[1]\n"
        "    out = torch.empty(count, width, device=table.device, dtype=table.dtype)\n"
        f"    kernel[(count,)](table, index, out, width, BLOCK={block}{d.options()})\n    return out\n",
        inputs={
            "table": (d.dtype, (table, (5, 200))),
            "index": (f"index:{table[0]}", ((count,), (7,))),
        },
        plain=chained.format(v="table[index]"),
    )


FORMS: dict[Callable[[Draw], Form], int] = {
    pointwise: 3,
    rows_in_passes: 5,
    rows_at_once: 3,
    columns: 3,
    matvec: 2,
    row_dot: 1,
    broadcast: 2,
    product: 4,
    window: 2,
    running: 1,
    gather: 1,
}
"""With how often each is drawn."""
