"""Forms of kernels around products of matrices: layouts, batches, what follows a product, attention.

As in `trainer.kernel_forms`: tiles, warps and the order of programs drawn. Half precision, sums in float32.
"""

from __future__ import annotations

from collections.abc import Callable

from trainer.kernel_forms import Draw, Form, Shapes, function, inside, loop

BLOCKS = "BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr"
PLACES = (
    "rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)",
    "columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)",
)
ZEROS = "total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)"
INNER = "inner = start + tl.arange(0, BLOCK_K)"
WRITE = (
    "mask = (rows[:, None] < M) & (columns[None, :] < N)",
    "tl.store(out_ptr + rows[:, None] * N + columns[None, :], y, mask=mask)",
)
SIZES = ((4096, 1024, 4096), (8192, 512, 1024), (2048, 4096, 2048), (1024, 8192, 1024), (3000, 1000, 2000))
"""M, K, N."""
TWIN = (40, 50, 45)
Sizes = tuple[int, int, int]


def _read(name: str, rows: str, columns: str, many: str, wide: str, first: str = "") -> str:
    """A tile of a matrix with ``many`` rows, ``wide`` columns: ``rows`` and ``columns`` of it."""
    return (
        f"{name} = tl.load({name}_ptr + {first}{rows}[:, None] * {wide} + {columns}[None, :],"
        f" mask=({rows}[:, None] < {many}) & ({columns}[None, :] < {wide}), other=0.0)\n"
    )


READ_A, READ_B = _read("a", "rows", "inner", "M", "K"), _read("b", "inner", "columns", "K", "N")


def _half(d: Draw) -> str:
    """Where sums are short: what follows a long one passes the range of float16."""
    return d.rng.choice(("bf16", "bf16", "f16"))


def _blocks(d: Draw) -> tuple[int, int, int]:
    return d.one(16, 32, 64, 128), d.one(16, 32, 64, 128), d.one(16, 32, 64)


def _launch(d: Draw, names: str, *, sizes: str = "M, K = a.shape\nN = b.shape[1]", batch: str = "") -> str:
    m, n, k = _blocks(d)
    shape = f"{batch and batch + ', '}M, N"
    return function(
        f"launch({names})",
        sizes,
        f"out = torch.empty({shape}, device=a.device, dtype=a.dtype)",
        f"grid = (triton.cdiv(M, {m}), triton.cdiv(N, {n}){batch and ', ' + batch})",
        f"kernel[grid]({names}, out, M, N, K, BLOCK_M={m}, BLOCK_N={n}, BLOCK_K={k}{d.options()})",
        "return out",
    )


def _both(shape: Callable[[Sizes], tuple[int, ...]], size: Sizes) -> Shapes:
    return shape(size), shape(TWIN)


def _matrices(dtype: str, size: Sizes) -> dict[str, tuple[str, Shapes]]:
    return {
        "a": (dtype, (size[:2], TWIN[:2])),
        "b": (dtype, (size[1:], TWIN[1:])),
    }


def product_laid_out(d: Draw) -> Form:
    """Either factor may lie transposed; pointers step along, strides are arguments, the grid is a line."""
    turned_a, turned_b, size = d.rng.random() < 0.5, d.rng.random() < 0.6, d.rng.choice(SIZES)
    dtype = _half(d) if size[1] <= 1024 else "bf16"
    bias, grouped, (m, n, k) = d.rng.random() < 0.5, d.rng.random() < 0.5, _blocks(d)
    lines, chained = d.chain("y", 0, 2)
    order = ["across = tl.cdiv(N, BLOCK_N)", "pid_m = pid // across", "pid_n = pid % across"]
    if grouped:
        order = ["down, across = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)", "band = pid // (4 * across)"]
        order += [
            "height = tl.minimum(down - band * 4, 4)",
            "pid_m = band * 4 + (pid % (4 * across)) % height",
        ]
        order += ["pid_n = (pid % (4 * across)) // height"]
    names = "a, b" + ", bias" * bias
    pointers = ", ".join(f"{name}_ptr" for name in names.split(", "))
    shapes: dict[str, Shapes] = {
        "a": _both(lambda s: (s[1], s[0]) if turned_a else (s[0], s[1]), size),
        "b": _both(lambda s: (s[2], s[1]) if turned_b else (s[1], s[2]), size),
        **({"bias": _both(lambda s: (s[2],), size)} if bias else {}),
    }
    strides = f"{', '.join(f'a.stride({i})' for i in ((1, 0) if turned_a else (0, 1)))}, "
    strides += ", ".join(f"b.stride({i})" for i in ((1, 0) if turned_b else (0, 1)))
    plain = f"{'a.t()' if turned_a else 'a'} @ {'b.t()' if turned_b else 'b'}" + " + bias" * bias
    return Form(
        kernel=function(
            f"kernel({pointers}, out_ptr, M, N, K, a_row, a_inner, b_inner, b_column, {BLOCKS})",
            "pid = tl.program_id(0)",
            *order,
            "rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)",
            "columns = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)",
            "inner = tl.arange(0, BLOCK_K)",
            "a_tile = a_ptr + rows[:, None] * a_row + inner[None, :] * a_inner",
            "b_tile = b_ptr + inner[:, None] * b_inner + columns[None, :] * b_column",
            ZEROS,
            loop(
                "start in range(0, K, BLOCK_K)",
                "left = K - start",
                "a = tl.load(a_tile, mask=(rows[:, None] < M) & (inner[None, :] < left), other=0.0)",
                "b = tl.load(b_tile, mask=(inner[:, None] < left) & (columns[None, :] < N), other=0.0)",
                "total = tl.dot(a, b, total)",
                "a_tile += BLOCK_K * a_inner",
                "b_tile += BLOCK_K * b_inner",
            ),
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


def product_finished(d: Draw) -> Form:
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
        read = _read("r", "rows", "columns", "M", "N").replace("other=0.0)", "other=0.0).to(tl.float32)")
        after = (read, "y = total * tl.sigmoid(r)" if gate else "y = total + r")
        plain = "(a @ b * torch.sigmoid(r))" if gate else "(a @ b + r)"
    pointers = ", ".join(f"{name}_ptr" for name in names.split(", "))
    return Form(
        kernel=function(
            f"kernel({pointers}, out_ptr, M, N, K, {BLOCKS})",
            *PLACES,
            ZEROS,
            loop("start in range(0, K, BLOCK_K)", INNER, READ_A, READ_B, "total += tl.dot(a, b)"),
            *after,
            lines,
            *WRITE,
        ),
        launcher=_launch(d, names),
        inputs={**_matrices(dtype, size), **extra},
        plain=chained.format(v=plain),
    )


def product_gated(d: Draw) -> Form:
    """Two products of one matrix, one opens the other."""
    dtype, size = "bf16", d.rng.choice(SIZES)
    gate, plain = d.rng.choice(
        (
            ("gate * tl.sigmoid(gate)", "torch.nn.functional.silu(a @ b)"),
            ("tl.maximum(gate, 0.0)", "torch.relu(a @ b)"),
            ("tl.sigmoid(gate)", "torch.sigmoid(a @ b)"),
        )
    )
    return Form(
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
                _read("c", "inner", "columns", "K", "N"),
                "gate = tl.dot(a, b, gate)",
                "value = tl.dot(a, c, value)",
            ),
            f"y = {gate} * value",
            *WRITE,
        ),
        launcher=_launch(d, "a, b, c"),
        inputs={**_matrices(dtype, size), "c": (dtype, (size[1:], TWIN[1:]))},
        plain=f"{plain} * (a @ c)",
    )


def product_batched(d: Draw) -> Form:
    """A product for each of several pairs; the second factor may be one for all."""
    shared, dtype = d.rng.random() < 0.3, _half(d)
    batch, m, k, n = d.rng.choice(
        ((16, 1024, 512, 1024), (64, 512, 128, 512), (128, 256, 256, 256), (32, 1000, 64, 1000))
    )
    lines, chained = d.chain("y", 0, 2)
    read_b = READ_B if shared else _read("b", "inner", "columns", "K", "N", "batch * K * N + ")
    return Form(
        kernel=function(
            f"kernel(a_ptr, b_ptr, out_ptr, M, N, K, {BLOCKS})",
            "batch = tl.program_id(2).to(tl.int64)",
            *PLACES,
            ZEROS,
            loop(
                "start in range(0, K, BLOCK_K)",
                INNER,
                _read("a", "rows", "inner", "M", "K", "batch * M * K + "),
                read_b,
                "total += tl.dot(a, b)",
            ),
            "y = total",
            lines,
            WRITE[0],
            WRITE[1].replace("out_ptr +", "out_ptr + batch * M * N +"),
        ),
        launcher=_launch(d, "a, b", sizes="batch, M, K = a.shape\nN = b.shape[-1]", batch="batch"),
        inputs={
            "a": (dtype, ((batch, m, k), (3, *TWIN[:2]))),
            "b": (dtype, ((k, n), TWIN[1:]) if shared else ((batch, k, n), (3, *TWIN[1:]))),
        },
        plain=chained.format(v="(a @ b)"),
    )


def matvec_batched(d: Draw) -> Form:
    r, c, late = d.one(1, 4, 16, 32), d.one(32, 64, 128, 256), d.rng.random() < 0.5
    sizes = d.shape((32, 1024, 512), (128, 256, 1024), (16, 2048, 2048), (64, 1000, 300))
    step = "total += a * x[None, :]" if late else "total += tl.sum(a * x[None, :], axis=1)"
    return Form(
        kernel=function(
            "kernel(a_ptr, x_ptr, out_ptr, rows, columns, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr)",
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


def squared_distances(d: Draw) -> Form:
    """Between the rows of two matrices, by their product."""
    dtype, size = _half(d), d.rng.choice(((4096, 128, 4096), (8192, 64, 4096), (2000, 512, 6000)))
    near = d.rng.random() < 0.5
    read_b = _read("b", "columns", "inner", "N", "K")
    return Form(
        kernel=function(
            f"kernel(a_ptr, b_ptr, out_ptr, M, N, K, {BLOCKS})",
            *PLACES,
            ZEROS,
            "long = tl.zeros((BLOCK_M,), dtype=tl.float32)",
            "wide = tl.zeros((BLOCK_N,), dtype=tl.float32)",
            loop(
                "start in range(0, K, BLOCK_K)",
                INNER,
                READ_A,
                read_b,
                "total += tl.dot(a, tl.trans(b))",
                "long += tl.sum(a.to(tl.float32) * a.to(tl.float32), axis=1)",
                "wide += tl.sum(b.to(tl.float32) * b.to(tl.float32), axis=1)",
            ),
            "y = long[:, None] + wide[None, :] - 2.0 * total",
            "y = 1.0 / (1.0 + tl.maximum(y, 0.0))" if near else "",
            *WRITE,
        ),
        launcher=_launch(d, "a, b", sizes="M, K = a.shape\nN = b.shape[0]"),
        inputs={
            "a": (dtype, (size[:2], TWIN[:2])),
            "b": (dtype, ((size[2], size[1]), (TWIN[2], TWIN[1]))),
        },
        plain=("(lambda v: 1 / (1 + v))" if near else "") + "(torch.cdist(a.double(), b.double()) ** 2)",
    )


KEPT = {
    "largest": (
        'tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)',
        ("best = tl.maximum(best, tl.max(scores, axis=1))",),
        "best",
        "(a @ b).amax(1)",
    ),
    "logsumexp": (
        'tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)',
        (
            "new = tl.maximum(best, tl.max(scores, axis=1))",
            "weight = weight * tl.exp(best - new) + tl.sum(tl.exp(scores - new[:, None]), axis=1)",
            "best = new",
        ),
        "best + tl.log(weight)",
        "torch.logsumexp(a @ b, 1)",
    ),
}


def product_reduced(d: Draw) -> Form:
    """One number for each row of a product that is never written."""
    dtype, name = _half(d), d.rng.choice(sorted(KEPT))
    begin, step, written, plain = KEPT[name]
    size = d.rng.choice(((8192, 128, 2048), (16384, 64, 1024), (4096, 256, 4096)))
    m, n, k = _blocks(d)
    product = inside(
        ZEROS,
        loop("start in range(0, K, BLOCK_K)", INNER, READ_A, READ_B, "total += tl.dot(a, b)"),
        'scores = tl.where(columns[None, :] < N, total * 0.25, float("-inf"))',
        *step,
    )
    return Form(
        kernel=function(
            f"kernel(a_ptr, b_ptr, out_ptr, M, N, K, {BLOCKS})",
            PLACES[0],
            f"best = {begin}",
            "weight = tl.zeros((BLOCK_M,), dtype=tl.float32)" if name == "logsumexp" else "",
            f"for first in range(0, N, BLOCK_N):\n    columns = first + tl.arange(0, BLOCK_N)\n{product}",
            f"tl.store(out_ptr + rows, {written}, mask=rows < M)",
        ),
        launcher=function(
            "launch(a, b)",
            "M, K = a.shape\nN = b.shape[1]",
            "out = torch.empty(M, device=a.device, dtype=torch.float32)",
            f"grid = (triton.cdiv(M, {m}),)",
            f"kernel[grid](a, b, out, M, N, K, BLOCK_M={m}, BLOCK_N={n}, BLOCK_K={k}{d.options()})",
            "return out",
        ),
        inputs=_matrices(dtype, size),
        plain=plain.replace("a @ b", "0.25 * (a @ b)"),
    )


def convolution(d: Draw) -> Form:
    """Along a sequence, channels last: a product for each place of the window."""
    dtype, taps = _half(d), d.one(2, 3, 5)
    batch, length, k, n = d.rng.choice(((8, 2048, 256, 256), (16, 1024, 512, 128), (4, 8000, 128, 128)))
    product = inside(
        "source = rows + tap - TAPS // 2",
        loop(
            "start in range(0, K, BLOCK_K)",
            INNER,
            "near = (source[:, None] >= 0) & (source[:, None] < M) & (inner[None, :] < K)",
            "a = tl.load(a_ptr + (batch * M + source[:, None]) * K + inner[None, :], mask=near, other=0.0)",
            _read("b", "inner", "columns", "K", "N", "tap * K * N + "),
            "total += tl.dot(a, b)",
        ),
    )
    (bm, bn, bk), (lines, chained) = _blocks(d), d.chain("y", 0, 1)
    plain = f"torch.nn.functional.pad(a, (0, 0, {taps // 2}, {(taps - 1) // 2}))"
    plain = f"(lambda p: sum(p[:, t : t + a.shape[1]] @ b[t] for t in range({taps})))({plain})"
    return Form(
        kernel=function(
            f"kernel(a_ptr, b_ptr, out_ptr, M, N, K, TAPS: tl.constexpr, {BLOCKS})",
            "batch = tl.program_id(2).to(tl.int64)",
            *PLACES,
            ZEROS,
            f"for tap in range(TAPS):\n{product}",
            "y = total",
            lines,
            WRITE[0],
            WRITE[1].replace("out_ptr +", "out_ptr + batch * M * N +"),
        ),
        launcher=function(
            "launch(a, b)",
            "batch, M, K = a.shape\nN = b.shape[2]",
            "out = torch.empty(batch, M, N, device=a.device, dtype=a.dtype)",
            f"grid = (triton.cdiv(M, {bm}), triton.cdiv(N, {bn}), batch)",
            f"kernel[grid](a, b, out, M, N, K, TAPS={taps}, BLOCK_M={bm}, BLOCK_N={bn}, BLOCK_K={bk}"
            f"{d.options()})",
            "return out",
        ),
        inputs={
            "a": (dtype, ((batch, length, k), (2, *TWIN[:2]))),
            "b": (dtype, ((taps, k, n), (taps, *TWIN[1:]))),
        },
        plain=chained.format(v=plain),
    )


def attention(d: Draw) -> Form:
    """Keys and values go by in blocks, the softmax is brought along; often only up to the row's own place."""
    causal, dtype, turned = d.rng.random() < 0.5, _half(d), d.rng.random() < 0.5
    m, n = d.one(16, 32, 64, 128), d.one(16, 32, 64)
    sizes = d.shape((32, 2048, 64), (64, 1024, 64), (16, 2048, 128), (128, 512, 32), (48, 1000, 64))
    kept = "column[None, :] < length" if not causal else "column[None, :] <= row[:, None]"
    keys = "k_ptr + first + column[:, None] * WIDTH + lane[None, :], mask=column[:, None] < length"
    if turned:
        keys = "k_ptr + first + column[None, :] * WIDTH + lane[:, None], mask=column[None, :] < length"
    later = "torch.ones(q.shape[1], q.shape[1]).triu(1).bool()"
    scores = "(q @ k.transpose(1, 2) * q.shape[2] ** -0.5)"
    scores += f".masked_fill({later}, float('-inf'))" if causal else ""
    return Form(
        kernel=function(
            "kernel(q_ptr, k_ptr, v_ptr, out_ptr, length, scale, WIDTH: tl.constexpr,"
            " BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr)",
            "first = tl.program_id(1).to(tl.int64) * length * WIDTH",
            "row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)",
            "lane = tl.arange(0, WIDTH)",
            "place = first + row[:, None] * WIDTH + lane[None, :]",
            "q = tl.load(q_ptr + place, mask=row[:, None] < length, other=0.0)",
            'largest = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)',
            "weight = tl.zeros((BLOCK_M,), dtype=tl.float32)",
            "total = tl.zeros((BLOCK_M, WIDTH), dtype=tl.float32)",
            "end = tl.minimum(length, (tl.program_id(0) + 1) * BLOCK_M)" if causal else "",
            loop(
                f"start in range(0, {'end' if causal else 'length'}, BLOCK_N)",
                "column = start + tl.arange(0, BLOCK_N)",
                f"k = tl.load({keys}, other=0.0)",
                f"scores = tl.dot(q, {'k' if turned else 'tl.trans(k)'}) * scale",
                f'scores = tl.where({kept}, scores, float("-inf"))',
                "new = tl.maximum(largest, tl.max(scores, axis=1))",
                "p = tl.exp(scores - new[:, None])",
                "fade = tl.exp(largest - new)",
                "weight = weight * fade + tl.sum(p, axis=1)",
                "v = tl.load(v_ptr + first + column[:, None] * WIDTH + lane[None, :],"
                " mask=column[:, None] < length, other=0.0)",
                "total = total * fade[:, None] + tl.dot(p.to(v.dtype), v)",
                "largest = new",
            ),
            "tl.store(out_ptr + place, total / weight[:, None], mask=row[:, None] < length)",
        ),
        launcher=function(
            "launch(q, k, v)",
            "heads, length, width = q.shape",
            "out = torch.empty_like(q)",
            f"grid = (triton.cdiv(length, {m}), heads)",
            f"kernel[grid](q, k, v, out, length, width**-0.5, WIDTH=width, BLOCK_M={m}, BLOCK_N={n}"
            f"{d.options()})",
            "return out",
        ),
        inputs=dict.fromkeys("qkv", (dtype, (sizes, (2, 70, 32)))),
        plain=f"torch.softmax({scores}, 2) @ v",
    )


FORMS: dict[Callable[[Draw], Form], int] = {
    product_laid_out: 3,
    product_finished: 2,
    product_gated: 1,
    product_batched: 2,
    matvec_batched: 1,
    squared_distances: 1,
    product_reduced: 1,
    convolution: 1,
    attention: 2,
}
"""With how often each is drawn."""
