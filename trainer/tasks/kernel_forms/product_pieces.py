"""What forms around a product of matrices share: tiles of three lengths, how they are read and
written.

Half precision, sums in float32.
"""

from __future__ import annotations

from collections.abc import Callable

from trainer.tasks.kernel_forms.pieces import Draw, Shapes, function

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
SIZES = (
    (4096, 1024, 4096),
    (8192, 512, 1024),
    (2048, 4096, 2048),
    (1024, 8192, 1024),
    (3000, 1000, 2000),
)
"""M, K, N."""
TWIN = (40, 50, 45)
ProductSizes = tuple[int, int, int]


def tile(name: str, rows: str, columns: str, many: str, wide: str, first: str = "") -> str:
    """A tile of a matrix with ``many`` rows, ``wide`` columns: ``rows`` and ``columns`` of it."""
    return (
        f"{name} = tl.load({name}_ptr + {first}{rows}[:, None] * {wide} + {columns}[None, :],"
        f" mask=({rows}[:, None] < {many}) & ({columns}[None, :] < {wide}), other=0.0)\n"
    )


READ_A, READ_B = tile("a", "rows", "inner", "M", "K"), tile("b", "inner", "columns", "K", "N")


def half(d: Draw) -> str:
    """Where sums are short: what follows a long one passes the range of float16."""
    return d.rng.choice(("bf16", "bf16", "f16"))


def blocks(d: Draw) -> tuple[int, int, int]:
    """(BLOCK_M, BLOCK_N, BLOCK_K)."""
    return d.one(16, 32, 64, 128), d.one(16, 32, 64, 128), d.one(16, 32, 64)


def launch_product(
    d: Draw, names: str, *, sizes: str = "M, K = a.shape\nN = b.shape[1]", batch: str = ""
) -> str:
    """Text of a launcher of one program per tile of the result (M, N). ``sizes``: lines that read M, K
    and N; ``batch``: name of the number of products, for a third axis of the grid."""
    m, n, k = blocks(d)
    shape = f"{batch and batch + ', '}M, N"
    return function(
        f"launch({names})",
        sizes,
        f"out = torch.empty({shape}, device=a.device, dtype=a.dtype)",
        f"grid = (triton.cdiv(M, {m}), triton.cdiv(N, {n}){batch and ', ' + batch})",
        f"kernel[grid]({names}, out, M, N, K, BLOCK_M={m}, BLOCK_N={n}, BLOCK_K={k}{d.options()})",
        "return out",
    )


def both(shape: Callable[[ProductSizes], tuple[int, ...]], size: ProductSizes) -> Shapes:
    """A tensor's shape in the workload and in its twin, by (M, K, N)."""
    return shape(size), shape(TWIN)


def matrices(dtype: str, size: ProductSizes) -> dict[str, tuple[str, Shapes]]:
    """Inputs a (M, K) and b (K, N)."""
    return {
        "a": (dtype, (size[:2], TWIN[:2])),
        "b": (dtype, (size[1:], TWIN[1:])),
    }
