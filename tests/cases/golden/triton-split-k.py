"""The gradient of a narrow layer's weight: a small result, a long sum."""

import torch
import triton
import triton.language as tl


@triton.jit
def weight_kernel(
    grad_ptr, x_ptr, out_ptr, n_out, n_in, n_rows,
    BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_R: tl.constexpr, n_splits, n_elements,
):
    outs = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    ins = tl.program_id(1) * BLOCK_I + tl.arange(0, BLOCK_I)
    out_mask = outs < n_out  # the last block reaches past the end
    in_mask = ins < n_in  # the last block reaches past the end
    total = tl.zeros((BLOCK_O, BLOCK_I), dtype=tl.float32)
    split = tl.program_id(2)
    share = tl.cdiv(n_rows, BLOCK_R * n_splits) * BLOCK_R
    for start in range(split * share, tl.minimum(split * share + share, n_rows), BLOCK_R):
        rows = start + tl.arange(0, BLOCK_R)
        row_mask = rows < n_rows  # the last piece may be shorter
        grad_mask = out_mask[:, None] & row_mask[None, :]  # both at once
        x_mask = row_mask[:, None] & in_mask[None, :]  # both at once
        grad = tl.load(grad_ptr + rows[None, :] * n_out + outs[:, None], mask=grad_mask, other=0.0)
        x = tl.load(x_ptr + rows[:, None] * n_in + ins[None, :], mask=x_mask, other=0.0)
        total = tl.dot(grad, x, total)
    mask = out_mask[:, None] & in_mask[None, :]  # both at once
    tl.store(out_ptr + split.to(tl.int64) * n_elements + outs[:, None] * n_in + ins[None, :], total, mask=mask)


# kernel-lsp: workload grad=bf16[65536,128] x=bf16[65536,256]
def weight_gradient(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """grad: bfloat16 (n_rows, n_out); x: bfloat16 (n_rows, n_in); the result: (n_out, n_in)."""
    n_rows, n_out = grad.shape
    n_in = x.shape[1]
    out = torch.empty((n_out, n_in), device=x.device, dtype=torch.bfloat16)
    grid = (triton.cdiv(n_out, 64), triton.cdiv(n_in, 64))
    # With few tiles each is computed in shares, which are added up in a fixed order.
    shares = max(1, min(32, 264 // max(1, triton.cdiv(n_out, 64) * triton.cdiv(n_in, 64))))
    partial = torch.empty((shares, *out.shape), dtype=torch.float32, device=out.device)
    weight_kernel[(triton.cdiv(n_out, 64), triton.cdiv(n_in, 64), shares)](
        grad, x, partial, n_out, n_in, n_rows,
        BLOCK_O=64, BLOCK_I=64, BLOCK_R=64,
        n_splits=shares,
        n_elements=out.numel(),
    )
    out.copy_(partial.sum(0))
    return out
