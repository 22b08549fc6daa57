"""A product of two matrices with a vector."""

import torch


# kernel-lsp: workload left=f32[2048,2048] right=f32[2048,2048] vector=f32[2048,1]
def _apply_both_eager(left, right, vector):
    return left @ right @ vector


def apply_both(left, right, vector):
    # Verified on cuda for left: float32 (2048, 2048); right: float32 (2048, 2048); vector: float32 (2048, 1).
    # Anything that the reasoning below does not cover takes the original path.
    if not (
        left.is_cuda
        and left.dtype == torch.float32
        and left.shape == (2048, 2048)
        and right.is_cuda
        and right.dtype == torch.float32
        and right.shape == (2048, 2048)
        and vector.is_cuda
        and vector.dtype == torch.float32
        and vector.shape == (2048, 1)
        and not torch.is_autocast_enabled("cuda")
    ):
        return _apply_both_eager(left, right, vector)
    # (A @ B) @ C = A @ (B @ C), and this order needs fewer operations.
    product = right @ vector
    return left @ product
