"""A Huber loss of scaled predictions."""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def _fused_mul_huber_loss_partial_kernel(
    predicted_ptr, target_ptr, partial_ptr, n_cols, BLOCK_SIZE: tl.constexpr,
):
    """Each program reduces every n_chunks-th block to one partial result."""
    chunk, n_chunks = tl.program_id(0), tl.num_programs(0)
    lane_sum = tl.full([BLOCK_SIZE], 0.0, tl.float32)
    for start in range(tl.program_id(0).to(tl.int64) * BLOCK_SIZE, n_cols, n_chunks * BLOCK_SIZE):
        cols = start + tl.arange(0, BLOCK_SIZE)
        mask = cols < n_cols  # the last block is not full
        predicted = tl.load(predicted_ptr + cols, mask=mask)
        scaled = predicted * 0.5
        target = tl.load(target_ptr + cols, mask=mask)
        difference = scaled - target
        distance = tl.abs(difference)
        near = distance <= 0.5
        square = distance * distance
        quadratic = square * 0.5
        sub = distance - 0.25
        linear = sub * 0.5
        loss = tl.where(near, quadratic, linear)
        lane_sum = lane_sum + tl.where(mask, loss, 0.0)
    total = tl.sum(lane_sum, axis=0)
    tl.store(partial_ptr + chunk, total)


@triton.jit
def _fused_mul_huber_loss_kernel(out_ptr, partial_ptr, n_chunks, n_cols, MAX_CHUNKS: tl.constexpr):
    """Combines the partial results of a row."""
    chunks = tl.arange(0, MAX_CHUNKS)
    present = chunks < n_chunks  # absent chunks weigh nothing
    partial_sum = tl.load(partial_ptr + chunks, mask=present, other=0.0)
    total = tl.sum(partial_sum, axis=0)
    huber_loss = total / n_cols
    tl.store(out_ptr, huber_loss)


def fused_mul_huber_loss(predicted, target):
    """Mul and huber_loss in one pass.

    predicted, target: float32 (n_cols,)
    out: one float32 number
    """
    predicted, target = predicted.contiguous(), target.contiguous()
    n_cols = predicted.numel()
    out = torch.empty((), dtype=torch.float32, device=predicted.device)
    n_chunks = max(1, min((n_cols + 4095) // 4096, 1024))
    partial = torch.empty(n_chunks, dtype=torch.float32, device=predicted.device)
    _fused_mul_huber_loss_partial_kernel[(n_chunks,)](
        predicted, target, partial, n_cols, BLOCK_SIZE=4096, num_warps=8,
    )
    _fused_mul_huber_loss_kernel[(1,)](out, partial, n_chunks, n_cols, MAX_CHUNKS=1024, num_warps=8)
    return out


# kernel-lsp: workload predicted=f32[4096,4096] target=f32[4096,4096]
def _loss_eager(predicted, target):
    return F.huber_loss(predicted * 0.5, target, delta=0.5)


def loss(predicted, target):
    # Verified on cuda for predicted: float32 (4096, 4096); target: float32 (4096, 4096).
    # Anything that the reasoning below does not cover takes the original path.
    if not (
        predicted.is_cuda
        and predicted.dtype == torch.float32
        and predicted.shape[1:] == (4096,)
        and target.is_cuda
        and target.dtype == torch.float32
        and target.shape == (predicted.shape[0], 4096)
        and not torch.is_autocast_enabled("cuda")
        and predicted.is_contiguous()
        and target.is_contiguous()
        and not torch._C._are_functorch_transforms_active()
        and predicted.get_device() == torch.cuda.current_device()
        and not (torch.is_grad_enabled() and (predicted.requires_grad or target.requires_grad))
    ):
        return _loss_eager(predicted, target)
    return fused_mul_huber_loss(predicted, target)
