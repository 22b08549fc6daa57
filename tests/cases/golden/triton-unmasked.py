"""Sums of rows by tiles, in float32."""

import torch
import triton
import triton.language as tl


@triton.jit
def row_sums_kernel(x_ptr, out_ptr, n_rows, n_columns, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
    # Whether n_rows is a multiple of BLOCK_R, so that nothing is masked.
    EVEN_N_ROWS: tl.constexpr = False,
    # Whether n_columns is a multiple of BLOCK_C, so that nothing is masked.
    EVEN_N_COLUMNS: tl.constexpr = False
):
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    row_mask = (rows < n_rows) | EVEN_N_ROWS  # the last block reaches past the end
    total = tl.zeros((BLOCK_R,), dtype=tl.float32)
    for start in range(0, n_columns, BLOCK_C):
        columns = start + tl.arange(0, BLOCK_C)
        # The last piece of a row may be shorter.
        mask = row_mask[:, None] & ((columns[None, :] < n_columns) | EVEN_N_COLUMNS)
        x = tl.load(x_ptr + rows[:, None] * n_columns + columns[None, :], mask=mask, other=0.0)
        total += tl.sum(x.to(tl.float32), axis=1)
    tl.store(out_ptr + rows, total, mask=row_mask)


# kernel-lsp: workload x=f16[4096,1024]
def row_sums(x: torch.Tensor) -> torch.Tensor:
    """x: (n_rows, n_columns), contiguous; the result is float32."""
    n_rows, n_columns = x.shape
    out = torch.empty(n_rows, device=x.device, dtype=torch.float32)
    BLOCK_C = 64
    grid = lambda meta: (triton.cdiv(n_rows, meta["BLOCK_R"]),)  # noqa: E731
    row_sums_kernel[grid](
        x, out, n_rows, n_columns,
        BLOCK_R=8, BLOCK_C=BLOCK_C,
        EVEN_N_ROWS=n_rows % 8 == 0,
        EVEN_N_COLUMNS=n_columns % BLOCK_C == 0,
    )
    return out
