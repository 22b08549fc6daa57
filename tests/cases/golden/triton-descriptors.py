"""A linear layer, whose weight lies in memory row by row of outputs."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def linear_kernel(
    x_ptr, weight_ptr, out_ptr, M, N, K, x_stride, weight_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    x_tiles=None, weight_tiles=None,
):  # fmt: skip
    """Each program computes one block of the result."""
    row_block = tl.program_id(0)
    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + (rows % M)[:, None] * x_stride + inner[None, :]
    weight_ptrs = weight_ptr + inner[:, None] + (columns % N)[None, :] * weight_stride
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        left = K - start
        x = (
            tl.load(x_ptrs, mask=inner[None, :] < left, other=0.0)
            if x_tiles is None
            else x_tiles.load([row_block * BLOCK_M, start])
        )  # the last block may be partial
        weight = (
            tl.load(weight_ptrs, mask=inner[:, None] < left, other=0.0)
            if weight_tiles is None
            else tl.trans(weight_tiles.load([tl.program_id(1) * BLOCK_N, start]))
        )  # as above
        total = tl.dot(x, weight, total)
        x_ptrs += BLOCK_K
        weight_ptrs += BLOCK_K
    # Blocks at the edges are partial.
    mask = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(out_ptr + rows[:, None] * N + columns[None, :], total.to(tl.float16), mask=mask)


# kernel-lsp: workload x=f16[4096,2048] weight=f16[8192,2048]
def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x: (M, K), weight: (N, K), both with neighboring numbers in rows; returns (M, N)."""
    M, K = x.shape
    N = weight.shape[0]
    out = torch.empty((M, N), device=x.device, dtype=x.dtype)
    grid = (triton.cdiv(M, 128), triton.cdiv(N, 128))
    # TMA copies whole tiles, from Hopper on and where addresses and rows are multiples of 16 bytes.
    x_tiles = weight_tiles = None
    if (
        (x.is_cpu or (x.is_cuda and torch.cuda.get_device_capability(x.device)[0] >= 9))
        and x.data_ptr() % 16 == weight.data_ptr() % 16 == 0
        and x.element_size() == weight.element_size() == 2
        and x.stride(0) % 8 == weight.stride(0) % 8 == 0
        and min(M, K, N) > 0
        and x.stride(0) >= K
        and weight.stride(0) >= K
        and max(M * x.stride(0), N * weight.stride(0)) < 2**31
    ):
        x_tiles = TensorDescriptor(x, [M, K], [x.stride(0), 1], [128, 64])
        weight_tiles = TensorDescriptor(weight, [N, K], [weight.stride(0), 1], [128, 64])
    linear_kernel[grid](
        x, weight, out, M, N, K, x.stride(0), weight.stride(0),
        BLOCK_M=128, BLOCK_N=128, BLOCK_K=64,
        x_tiles=x_tiles,
        weight_tiles=weight_tiles,
    )
    return out
