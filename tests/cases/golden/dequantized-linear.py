"""The up projection of a decoding step, with weights of 8 bits and a scale for each row."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def _dequantized_linear_kernel(
    x_ptr, weight_ptr, scale_ptr, out_ptr, n_rows, n_out, n_in: tl.constexpr, BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
):
    """Each program computes BLOCK_OUT columns of 4 rows."""
    outs = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)[:, None]
    first_row = tl.program_id(1) * 4
    row_0 = tl.full([1, 1], first_row + 0, tl.int64)
    row_1 = tl.full([1, 1], first_row + 1, tl.int64)
    row_2 = tl.full([1, 1], first_row + 2, tl.int64)
    row_3 = tl.full([1, 1], first_row + 3, tl.int64)
    products_0 = tl.zeros([BLOCK_OUT, BLOCK_IN], tl.float32)
    products_1 = tl.zeros([BLOCK_OUT, BLOCK_IN], tl.float32)
    products_2 = tl.zeros([BLOCK_OUT, BLOCK_IN], tl.float32)
    products_3 = tl.zeros([BLOCK_OUT, BLOCK_IN], tl.float32)
    for start in range(0, n_in, BLOCK_IN):
        cols = tl.max_contiguous(start + tl.arange(0, BLOCK_IN), 8)[None, :]
        mask = (outs < n_out) & (cols < n_in)  # the last columns, and the last block
        stored = tl.load(weight_ptr + outs.to(tl.int64) * (n_in) + cols, mask=mask, other=0)
        number = (stored).to(tl.float32)
        inside = (cols < n_in) & (row_0 < n_rows)  # rows that exist
        x_number = tl.load(x_ptr + row_0 * n_in + cols, mask=inside, other=0.0).to(tl.float32)
        products_0 += number * x_number
        inside = (cols < n_in) & (row_1 < n_rows)  # rows that exist
        x_number = tl.load(x_ptr + row_1 * n_in + cols, mask=inside, other=0.0).to(tl.float32)
        products_1 += number * x_number
        inside = (cols < n_in) & (row_2 < n_rows)  # rows that exist
        x_number = tl.load(x_ptr + row_2 * n_in + cols, mask=inside, other=0.0).to(tl.float32)
        products_2 += number * x_number
        inside = (cols < n_in) & (row_3 < n_rows)  # rows that exist
        x_number = tl.load(x_ptr + row_3 * n_in + cols, mask=inside, other=0.0).to(tl.float32)
        products_3 += number * x_number
    total = tl.sum(products_0, axis=1)[:, None] * tl.load(scale_ptr + outs, mask=outs < n_out).to(tl.float32)
    mask = (outs < n_out) & (row_0 < n_rows)  # the last columns and rows
    tl.store(out_ptr + row_0 * n_out + outs, total, mask=mask)
    total = tl.sum(products_1, axis=1)[:, None] * tl.load(scale_ptr + outs, mask=outs < n_out).to(tl.float32)
    mask = (outs < n_out) & (row_1 < n_rows)  # the last columns and rows
    tl.store(out_ptr + row_1 * n_out + outs, total, mask=mask)
    total = tl.sum(products_2, axis=1)[:, None] * tl.load(scale_ptr + outs, mask=outs < n_out).to(tl.float32)
    mask = (outs < n_out) & (row_2 < n_rows)  # the last columns and rows
    tl.store(out_ptr + row_2 * n_out + outs, total, mask=mask)
    total = tl.sum(products_3, axis=1)[:, None] * tl.load(scale_ptr + outs, mask=outs < n_out).to(tl.float32)
    mask = (outs < n_out) & (row_3 < n_rows)  # the last columns and rows
    tl.store(out_ptr + row_3 * n_out + outs, total, mask=mask)


def dequantized_linear(x, weight, scale):
    """A product with a weight of whole numbers, which is scaled as it is read.

    x: bfloat16 (n_rows, n_in)
    weight: int8 (n_out, n_in)
    scale: bfloat16 (n_out,)
    out: bfloat16 (n_rows, n_out)
    """
    x = x.contiguous()
    weight = weight.contiguous()
    scale = scale.contiguous()
    n_out, n_in = weight.shape[0], x.shape[-1]
    n_rows = x.numel() // n_in
    out = torch.empty((*x.shape[:-1], n_out), dtype=x.dtype, device=x.device)
    if n_rows > 0:  # a grid of zero programs cannot be launched
        grid = ((n_out + 1) // 2, (n_rows + 3) // 4)
        _dequantized_linear_kernel[grid](
            x, weight, scale, out, n_rows, n_out, n_in, BLOCK_OUT=2, BLOCK_IN=1024, num_warps=4,
        )
    return out


# kernel-lsp: workload hidden=bf16[4,1,4096]
class Up(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.zeros(11008, 4096, dtype=torch.int8))
        self.register_buffer("scale", torch.ones(11008, dtype=torch.bfloat16))

    def _forward_eager(self, hidden):
        return F.linear(hidden, self.weight.to(hidden.dtype)) * self.scale

    def forward(self, hidden):
        # Verified on cuda for hidden: bfloat16 (4, 1, 4096).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            hidden.is_cuda
            and hidden.dtype == torch.bfloat16
            and hidden.shape == (4, 1, 4096)
            and not torch.is_autocast_enabled("cuda")
            and (scale := self.scale).dtype == torch.bfloat16
            and (weight := self.weight).dtype == torch.int8
            and weight.shape == (11008, 4096)
            and hidden.is_contiguous()
            and not torch._C._are_functorch_transforms_active()
            and hidden.get_device() == torch.cuda.current_device()
            and not (torch.is_grad_enabled() and (hidden.requires_grad or scale.requires_grad))
        ):
            return self._forward_eager(hidden)
        return dequantized_linear(hidden, weight, scale)
