"""Forms of products of matrices: layouts, the order of programs, batches, and what follows at
once."""

from __future__ import annotations

from trainer.tasks.kernel_forms.pieces import Draw, KernelForm, Shapes, function, loop
from trainer.tasks.kernel_forms.product_pieces import (
    BLOCKS,
    INNER,
    PLACES,
    READ_A,
    READ_B,
    SIZES,
    TWIN,
    WRITE,
    ZEROS,
    blocks,
    both,
    half,
    launch_product,
    matrices,
    tile,
)


def product(d: Draw) -> KernelForm:
    """A product (M, K) x (K, N), sometimes with a bias by column, and up to two operations on it."""
    m, n, k = d.one(16, 32, 64, 128), d.one(16, 32, 64, 128), d.one(16, 32, 64)
    dtype = d.rng.choice(("bf16", "bf16", "f16"))
    a, b = d.rng.choice(
        (((4096, 1024), (1024, 4096)), ((8192, 512), (512, 1024)), ((2048, 4096), (4096, 2048)))
    )
    lines, chained = d.chain("y", 0, 2)
    bias = d.rng.random() < 0.5
    added = (
        "    y = y + tl.load(bias_ptr + columns, mask=columns < N).to(tl.float32)[None, :]\n"
        if bias
        else ""
    )
    names, pointers = ("a, b, bias", "a_ptr, b_ptr, bias_ptr") if bias else ("a, b", "a_ptr, b_ptr")
    return KernelForm(
        kernel=f"def kernel({pointers}, out_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: "
        f"tl.constexpr,"
        " BLOCK_K: tl.constexpr):\n"
        "    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)\n"
        "    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)\n"
        "    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)\n"
        "    for start in range(0, K, BLOCK_K):\n        inner = start + tl.arange(0, BLOCK_K)\n"
        "        a = tl.load(a_ptr + rows[:, None] * K + inner[None, :], mask=(rows[:, None] < M) &"
        " (inner[None, :] < K), other=0.0)\n"
        "        b = tl.load(b_ptr + inner[:, None] * N + columns[None, :], mask=(inner[:, "
        "None] < K) &"
        " (columns[None, :] < N), other=0.0)\n"
        f"        total += tl.dot(a, b)\n    y = total\n{added}{lines}"
        "    mask = (rows[:, None] < M) & (columns[None, :] < N)\n"
        "    tl.store(out_ptr + rows[:, None] * N + columns[None, :], y, mask=mask)\n",
        launcher=f"def launch({names}):\n    M, K = a.shape\n    N = b.shape[1]\n"
        "    out = torch.empty(M, N, device=a.device, dtype=a.dtype)\n"
        f"    grid = (triton.cdiv(M, {m}), triton.cdiv(N, {n}))\n"
        f"    kernel[grid]({names}, out, M, N, K, BLOCK_M={m}, BLOCK_N={n}, "
        f"BLOCK_K={k}{d.options()})\n"
        "    return out\n",
        inputs={
            "a": (dtype, (a, (40, 50))),
            "b": (dtype, (b, (50, 45))),
            **({"bias": (dtype, ((b[1],), (45,)))} if bias else {}),
        },
        plain=chained.format(v="(a @ b + bias)" if bias else "(a @ b)"),
    )


IN_LINE = ("across = tl.cdiv(N, BLOCK_N)", "pid_m = pid // across", "pid_n = pid % across")
IN_BANDS = (
    "down, across = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)",
    "band = pid // (4 * across)",
    "height = tl.minimum(down - band * 4, 4)",
    "pid_m = band * 4 + (pid % (4 * across)) % height",
    "pid_n = (pid % (4 * across)) // height",
)
"""The tile of a program: row after row, or down four rows of tiles at a time, which share what
they read."""
STEPPING = loop(
    "start in range(0, K, BLOCK_K)",
    "left = K - start",
    "a = tl.load(a_tile, mask=(rows[:, None] < M) & (inner[None, :] < left), other=0.0)",
    "b = tl.load(b_tile, mask=(inner[:, None] < left) & (columns[None, :] < N), other=0.0)",
    "total = tl.dot(a, b, total)",
    "a_tile += BLOCK_K * a_inner",
    "b_tile += BLOCK_K * b_inner",
)


def _strides(name: str, turned: bool) -> str:
    return ", ".join(f"{name}.stride({dim})" for dim in ((1, 0) if turned else (0, 1)))


def product_laid_out(d: Draw) -> KernelForm:
    """Either factor may lie transposed; pointers step along, strides are arguments, the grid is a
    line."""
    turned_a, turned_b, size = d.rng.random() < 0.5, d.rng.random() < 0.6, d.rng.choice(SIZES)
    dtype = half(d) if size[1] <= 1024 else "bf16"
    bias, grouped, (m, n, k) = d.rng.random() < 0.5, d.rng.random() < 0.5, blocks(d)
    lines, chained = d.chain("y", 0, 2)
    names = "a, b" + ", bias" * bias
    pointers = ", ".join(f"{name}_ptr" for name in names.split(", "))
    shapes: dict[str, Shapes] = {
        "a": both(lambda s: (s[1], s[0]) if turned_a else (s[0], s[1]), size),
        "b": both(lambda s: (s[2], s[1]) if turned_b else (s[1], s[2]), size),
        **({"bias": both(lambda s: (s[2],), size)} if bias else {}),
    }
    strides = f"{_strides('a', turned_a)}, {_strides('b', turned_b)}"
    plain = f"{'a.t()' if turned_a else 'a'} @ {'b.t()' if turned_b else 'b'}" + " + bias" * bias
    return KernelForm(
        kernel=function(
            f"kernel({pointers}, out_ptr, M, N, K, a_row, a_inner, b_inner, b_column, {BLOCKS})",
            "pid = tl.program_id(0)",
            *(IN_BANDS if grouped else IN_LINE),
            "rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)",
            "columns = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)",
            "inner = tl.arange(0, BLOCK_K)",
            "a_tile = a_ptr + rows[:, None] * a_row + inner[None, :] * a_inner",
            "b_tile = b_ptr + inner[:, None] * b_inner + columns[None, :] * b_column",
            ZEROS,
            STEPPING,
            "y = total",
            "y += tl.load(bias_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]"
            if bias
            else "",
            lines,
            *WRITE,
        ),
        launcher=function(
            f"launch({names})",
            f"{'K, M' if turned_a else 'M, K'} = a.shape",
            f"N = b.shape[{0 if turned_b else 1}]",
            "out = torch.empty(M, N, device=a.device, dtype=a.dtype)",
            f"grid = (triton.cdiv(M, {m}) * triton.cdiv(N, {n}),)",
            f"kernel[grid]({names}, out, M, N, K, {strides}, BLOCK_M={m}, BLOCK_N={n}, BLOCK_K={k}"
            f"{d.options()})",
            "return out",
        ),
        inputs={name: (dtype, (work, twin)) for name, (work, twin) in shapes.items()},
        plain=chained.format(v=f"({plain})"),
    )


def product_finished(d: Draw) -> KernelForm:
    """With a scale a row and a column, or with a residual that may be gated."""
    scaled, dtype, size = d.rng.random() < 0.5, "bf16", d.rng.choice(SIZES)
    extra: dict[str, tuple[str, Shapes]]
    after: tuple[str, ...]
    lines, chained = d.chain("y", 0, 1)
    if scaled:
        names = "a, b, s, t"
        extra = {"s": (dtype, ((size[0],), (TWIN[0],))), "t": (dtype, ((size[2],), (TWIN[2],)))}
        after = (
            "s = tl.load(s_ptr + rows, mask=rows < M, other=0.0).to(tl.float32)",
            "t = tl.load(t_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)",
            "y = total * s[:, None] * t[None, :]",
        )
        plain = "(a @ b * s[:, None] * t)"
    else:
        names, gate = "a, b, r", d.rng.random() < 0.5
        extra = {"r": (dtype, ((size[0], size[2]), (TWIN[0], TWIN[2])))}
        read = tile("r", "rows", "columns", "M", "N").replace(
            "other=0.0)", "other=0.0).to(tl.float32)"
        )
        after = (read, "y = total * tl.sigmoid(r)" if gate else "y = total + r")
        plain = "(a @ b * torch.sigmoid(r))" if gate else "(a @ b + r)"
    pointers = ", ".join(f"{name}_ptr" for name in names.split(", "))
    return KernelForm(
        kernel=function(
            f"kernel({pointers}, out_ptr, M, N, K, {BLOCKS})",
            *PLACES,
            ZEROS,
            loop("start in range(0, K, BLOCK_K)", INNER, READ_A, READ_B, "total += tl.dot(a, b)"),
            *after,
            lines,
            *WRITE,
        ),
        launcher=launch_product(d, names),
        inputs={**matrices(dtype, size), **extra},
        plain=chained.format(v=plain),
    )


def product_gated(d: Draw) -> KernelForm:
    """Two products of one matrix, one opens the other."""
    dtype, size = "bf16", d.rng.choice(SIZES)
    gate, plain = d.rng.choice(
        (
            ("gate * tl.sigmoid(gate)", "torch.nn.functional.silu(a @ b)"),
            ("tl.maximum(gate, 0.0)", "torch.relu(a @ b)"),
            ("tl.sigmoid(gate)", "torch.sigmoid(a @ b)"),
        )
    )
    return KernelForm(
        kernel=function(
            f"kernel(a_ptr, b_ptr, c_ptr, out_ptr, M, N, K, {BLOCKS})",
            *PLACES,
            ZEROS.replace("total", "gate"),
            ZEROS.replace("total", "value"),
            loop(
                "start in range(0, K, BLOCK_K)",
                INNER,
                READ_A,
                READ_B,
                tile("c", "inner", "columns", "K", "N"),
                "gate = tl.dot(a, b, gate)",
                "value = tl.dot(a, c, value)",
            ),
            f"y = {gate} * value",
            *WRITE,
        ),
        launcher=launch_product(d, "a, b, c"),
        inputs={**matrices(dtype, size), "c": (dtype, (size[1:], TWIN[1:]))},
        plain=f"{plain} * (a @ c)",
    )


def product_batched(d: Draw) -> KernelForm:
    """A product for each of several pairs; the second factor may be one for all."""
    shared, dtype = d.rng.random() < 0.3, half(d)
    batch, m, k, n = d.rng.choice(
        ((16, 1024, 512, 1024), (64, 512, 128, 512), (128, 256, 256, 256), (32, 1000, 64, 1000))
    )
    lines, chained = d.chain("y", 0, 2)
    read_b = READ_B if shared else tile("b", "inner", "columns", "K", "N", "batch * K * N + ")
    return KernelForm(
        kernel=function(
            f"kernel(a_ptr, b_ptr, out_ptr, M, N, K, {BLOCKS})",
            "batch = tl.program_id(2).to(tl.int64)",
            *PLACES,
            ZEROS,
            loop(
                "start in range(0, K, BLOCK_K)",
                INNER,
                tile("a", "rows", "inner", "M", "K", "batch * M * K + "),
                read_b,
                "total += tl.dot(a, b)",
            ),
            "y = total",
            lines,
            WRITE[0],
            WRITE[1].replace("out_ptr +", "out_ptr + batch * M * N +"),
        ),
        launcher=launch_product(
            d, "a, b", sizes="batch, M, K = a.shape\nN = b.shape[-1]", batch="batch"
        ),
        inputs={
            "a": (dtype, ((batch, m, k), (3, *TWIN[:2]))),
            "b": (dtype, ((k, n), TWIN[1:]) if shared else ((batch, k, n), (3, *TWIN[1:]))),
        },
        plain=chained.format(v="(a @ b)"),
    )
