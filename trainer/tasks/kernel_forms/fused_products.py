"""Forms whose products become something else before they are written: distances, maxima,
convolutions."""

from __future__ import annotations

from trainer.tasks.kernel_forms.pieces import Draw, KernelForm, function, inside, loop
from trainer.tasks.kernel_forms.product_pieces import (
    BLOCKS,
    INNER,
    PLACES,
    READ_A,
    READ_B,
    TWIN,
    WRITE,
    ZEROS,
    blocks,
    half,
    launch_product,
    matrices,
    tile,
)


def squared_distances(d: Draw) -> KernelForm:
    """Between the rows of two matrices, by their product."""
    dtype, size = half(d), d.rng.choice(((4096, 128, 4096), (8192, 64, 4096), (2000, 512, 6000)))
    near = d.rng.random() < 0.5
    read_b = tile("b", "columns", "inner", "N", "K")
    return KernelForm(
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
        launcher=launch_product(d, "a, b", sizes="M, K = a.shape\nN = b.shape[0]"),
        inputs={
            "a": (dtype, (size[:2], TWIN[:2])),
            "b": (dtype, ((size[2], size[1]), (TWIN[2], TWIN[1]))),
        },
        plain=("(lambda v: 1 / (1 + v))" if near else "")
        + "(torch.cdist(a.double(), b.double()) ** 2)",
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


def product_reduced(d: Draw) -> KernelForm:
    """One number for each row of a product that is never written."""
    dtype, name = half(d), d.rng.choice(sorted(KEPT))
    begin, step, written, plain = KEPT[name]
    size = d.rng.choice(((8192, 128, 2048), (16384, 64, 1024), (4096, 256, 4096)))
    m, n, k = blocks(d)
    product = inside(
        ZEROS,
        loop("start in range(0, K, BLOCK_K)", INNER, READ_A, READ_B, "total += tl.dot(a, b)"),
        'scores = tl.where(columns[None, :] < N, total * 0.25, float("-inf"))',
        *step,
    )
    return KernelForm(
        kernel=function(
            f"kernel(a_ptr, b_ptr, out_ptr, M, N, K, {BLOCKS})",
            PLACES[0],
            f"best = {begin}",
            "weight = tl.zeros((BLOCK_M,), dtype=tl.float32)" if name == "logsumexp" else "",
            f"for first in range(0, N, BLOCK_N):\n    columns = first + tl.arange(0, "
            f"BLOCK_N)\n{product}",
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
        inputs=matrices(dtype, size),
        plain=plain.replace("a @ b", "0.25 * (a @ b)"),
    )


def convolution(d: Draw) -> KernelForm:
    """Along a sequence, channels last: a product for each place of the window."""
    dtype, taps = half(d), d.one(2, 3, 5)
    batch, length, k, n = d.rng.choice(
        ((8, 2048, 256, 256), (16, 1024, 512, 128), (4, 8000, 128, 128))
    )
    product = inside(
        "source = rows + tap - TAPS // 2",
        loop(
            "start in range(0, K, BLOCK_K)",
            INNER,
            "near = (source[:, None] >= 0) & (source[:, None] < M) & (inner[None, :] < K)",
            "a = tl.load(a_ptr + (batch * M + source[:, None]) * K + inner[None, :], mask=near, "
            "other=0.0)",
            tile("b", "inner", "columns", "K", "N", "tap * K * N + "),
            "total += tl.dot(a, b)",
        ),
    )
    (bm, bn, bk), (lines, chained) = blocks(d), d.chain("y", 0, 1)
    plain = f"torch.nn.functional.pad(a, (0, 0, {taps // 2}, {(taps - 1) // 2}))"
    plain = f"(lambda p: sum(p[:, t : t + a.shape[1]] @ b[t] for t in range({taps})))({plain})"
    return KernelForm(
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
            f"kernel[grid](a, b, out, M, N, K, TAPS={taps}, BLOCK_M={bm}, BLOCK_N={bn}, "
            f"BLOCK_K={bk}"
            f"{d.options()})",
            "return out",
        ),
        inputs={
            "a": (dtype, ((batch, length, k), (2, *TWIN[:2]))),
            "b": (dtype, ((taps, k, n), (taps, *TWIN[1:]))),
        },
        plain=chained.format(v=plain),
    )
