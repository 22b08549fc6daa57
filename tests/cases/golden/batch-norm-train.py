"""The end of a residual block while it is trained."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def _fused_batch_norm_add_relu_statistics_partial_kernel(
    images_ptr, partial_ptr, n_outer, n_channels: tl.constexpr, n_inner: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Count, mean and squared deviations of a chunk (Welford, lane by lane)."""
    chunk, n_chunks = tl.program_id(1), tl.num_programs(1)
    channel = tl.program_id(0)
    lane_count = tl.full([BLOCK_SIZE], 0.0, tl.float32)
    lane_mean = tl.full([BLOCK_SIZE], 0.0, tl.float32)
    lane_m2 = tl.full([BLOCK_SIZE], 0.0, tl.float32)
    step = 0.0
    for start in range(chunk * BLOCK_SIZE, n_outer * n_inner, n_chunks * BLOCK_SIZE):
        offs = start + tl.arange(0, BLOCK_SIZE)
        mask = offs < n_outer * n_inner  # the last block is not full
        outer = (offs // n_inner).to(tl.int64)  # int64: offsets can pass 2**31
        inner = offs % n_inner
        step += 1.0
        images = tl.load(images_ptr + outer * n_channels * n_inner + channel * n_inner + inner, mask=mask)
        lane_count += tl.where(mask, 1.0, 0.0)
        delta = tl.where(mask, images - lane_mean, 0.0)
        lane_mean += delta * (1.0 / step)
        lane_m2 += delta * tl.where(mask, images - lane_mean, 0.0)
    count = tl.sum(lane_count, axis=0)
    mean = tl.sum(lane_mean * lane_count, axis=0) / tl.maximum(count, 1.0)
    m2 = tl.sum(lane_m2 + lane_count * (lane_mean - mean) * (lane_mean - mean), axis=0)
    tl.store(partial_ptr + (0 * n_channels + channel) * n_chunks + chunk, count)
    tl.store(partial_ptr + (1 * n_channels + channel) * n_chunks + chunk, mean)
    tl.store(partial_ptr + (2 * n_channels + channel) * n_chunks + chunk, m2)


@triton.jit
def _fused_batch_norm_add_relu_statistics_kernel(
    partial_ptr, mean_ptr, rstd_ptr, running_mean_ptr, running_var_ptr, n_channels, n_chunks, n_elements,
    MAX_CHUNKS: tl.constexpr,
):
    """Each program merges the chunks of one channel."""
    channel = tl.program_id(0)
    chunks = tl.arange(0, MAX_CHUNKS)
    mask = chunks < n_chunks  # MAX_CHUNKS is a power of two
    where, stride = partial_ptr + channel * n_chunks + chunks, n_channels * n_chunks
    count = tl.load(where, mask=mask, other=0.0)
    means = tl.load(where + stride, mask=mask, other=0.0)
    m2s = tl.load(where + 2 * stride, mask=mask, other=0.0)
    mean = tl.sum(means * count, axis=0) / n_elements
    m2 = tl.sum(m2s + count * (means - mean) * (means - mean), axis=0)
    tl.store(mean_ptr + channel, mean)
    tl.store(rstd_ptr + channel, 1.0 / tl.sqrt(m2 / n_elements + 1e-05))
    running_mean = tl.load(running_mean_ptr + channel).to(tl.float32)
    running_var = tl.load(running_var_ptr + channel).to(tl.float32)
    new_mean = 0.1 * mean + 0.9 * running_mean
    unbiased = m2 / (n_elements - 1)
    new_var = 0.1 * unbiased + 0.9 * running_var
    tl.store(running_mean_ptr + channel, new_mean)
    tl.store(running_var_ptr + channel, new_var)


def fused_batch_norm_add_relu_statistics(images, running_mean, running_var):
    """Mean and 1 / sqrt(var + eps) by channel, float32 (n_channels,)."""
    images = images.contiguous()
    n_outer = images.shape[0]
    n_channels = images.shape[1]
    n_inner = images.shape[2] * images.shape[3]
    n_elements = n_outer * n_inner
    if n_elements < 2:
        raise ValueError(
            f"Expected more than 1 value per channel when training, "
            f"got input size {images.shape}"
        )
    n_chunks = max(1, min(16, (n_outer * n_inner + 1023) // 1024))
    mean = torch.empty(n_channels, dtype=torch.float32, device=images.device)
    rstd, partial = torch.empty_like(mean), mean.new_empty((3, *mean.shape, n_chunks))
    _fused_batch_norm_add_relu_statistics_partial_kernel[(n_channels, n_chunks)](
        images, partial, n_outer, n_channels, n_inner, BLOCK_SIZE=1024, num_warps=4,
    )
    _fused_batch_norm_add_relu_statistics_kernel[(n_channels,)](
        partial, mean, rstd, running_mean, running_var, n_channels, n_chunks, n_elements, MAX_CHUNKS=16,
        num_warps=1,
    )
    torch.autograd.graph.increment_version((running_mean, running_var))
    return mean, rstd


@triton.jit
def _fused_batch_norm_add_relu_apply_kernel(
    images_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, residual_ptr, out_ptr, n_elements,
    n_channels: tl.constexpr, n_inner: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):
    """Each program handles BLOCK_SIZE consecutive elements."""
    start = tl.program_id(0).to(tl.int64) * BLOCK_SIZE  # int64: offsets can pass 2**31
    offs = start + tl.arange(0, BLOCK_SIZE)
    mask = offs < n_elements  # the last block reaches past the end
    # Broadcasts are resolved in 32 bits: 64-bit division is many times slower.
    index = (start % (n_channels * n_inner)).to(tl.int32) + tl.arange(0, BLOCK_SIZE)
    images = tl.load(images_ptr + offs, mask=mask)
    mean = tl.load(mean_ptr + (index // n_inner) % n_channels, mask=mask)
    difference = images - mean
    rstd = tl.load(rstd_ptr + (index // n_inner) % n_channels, mask=mask)
    normed = difference * rstd
    weight = tl.load(weight_ptr + (index // n_inner) % n_channels, mask=mask)
    scaled = normed * weight
    bias = tl.load(bias_ptr + (index // n_inner) % n_channels, mask=mask)
    shifted = scaled + bias
    residual = tl.load(residual_ptr + offs, mask=mask)
    shifted_2 = shifted + residual
    relu = tl.where(shifted_2 < 0.0, 0.0, shifted_2)
    tl.store(out_ptr + offs, relu, mask=mask)


def fused_batch_norm_add_relu_apply(images, mean, rstd, weight, bias, residual):
    """Fused batch norm add relu in one pass over given statistics.

    images, residual, out: float32 (n_outer, n_channels, n_inner)
    mean, rstd, weight, bias: float32 (n_channels,)
    """
    images = images.contiguous()
    mean = mean.contiguous()
    rstd = rstd.contiguous()
    weight = weight.contiguous()
    bias = bias.contiguous()
    residual = residual.contiguous()
    out = torch.empty_like(images, dtype=torch.float32)
    n_channels = images.shape[1]
    n_inner = images.shape[2] * images.shape[3]
    n_elements = out.numel()
    if n_elements > 0:  # a grid of zero programs cannot be launched
        grid = ((n_elements + 1023) // 1024,)
        _fused_batch_norm_add_relu_apply_kernel[grid](
            images, mean, rstd, weight, bias, residual, out, n_elements, n_channels, n_inner,
            BLOCK_SIZE=1024, num_warps=4,
        )
    return out


@triton.jit
def _fused_batch_norm_add_relu_sums_kernel(
    images_ptr, residual_ptr, grad_out_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, partial_ptr, n_outer,
    n_channels: tl.constexpr, n_inner: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):
    """Each program adds up a chunk of a channel."""
    chunk, n_chunks = tl.program_id(1), tl.num_programs(1)
    channel = tl.program_id(0)
    mean = tl.load(mean_ptr + channel)
    rstd = tl.load(rstd_ptr + channel)
    weight = tl.load(weight_ptr + channel)
    bias = tl.load(bias_ptr + channel)
    lane_sum = tl.full([BLOCK_SIZE], 0.0, tl.float32)
    lane_sum_2 = tl.full([BLOCK_SIZE], 0.0, tl.float32)
    for start in range(chunk * BLOCK_SIZE, n_outer * n_inner, n_chunks * BLOCK_SIZE):
        offs = start + tl.arange(0, BLOCK_SIZE)
        mask = offs < n_outer * n_inner  # the last block is not full
        outer = (offs // n_inner).to(tl.int64)  # int64: offsets can pass 2**31
        inner = offs % n_inner
        images = tl.load(images_ptr + outer * n_channels * n_inner + channel * n_inner + inner, mask=mask)
        difference = images - mean
        normed = difference * rstd
        scaled = normed * weight
        shifted = scaled + bias
        residual = tl.load(residual_ptr + outer * n_channels * n_inner + channel * n_inner + inner, mask=mask)
        le = (shifted + residual) <= 0.0
        grad_out = tl.load(grad_out_ptr + outer * n_channels * n_inner + channel * n_inner + inner, mask=mask)
        grad_shifted = tl.where(le, 0.0, grad_out)
        lane_sum = lane_sum + tl.where(mask, grad_shifted, 0.0)
        grad_times_normed = grad_shifted * normed
        lane_sum_2 = lane_sum_2 + tl.where(mask, grad_times_normed, 0.0)
    grad_shifted_2 = tl.sum(lane_sum, axis=0)
    tl.store(partial_ptr + (0 * n_channels + channel) * n_chunks + chunk, grad_shifted_2)
    grad_times_normed_2 = tl.sum(lane_sum_2, axis=0)
    tl.store(partial_ptr + (1 * n_channels + channel) * n_chunks + chunk, grad_times_normed_2)


def fused_batch_norm_add_relu_sums(images, residual, grad_out, mean, rstd, weight, bias):
    """Sums over all but the channels, float32 (2, n_channels)."""
    images = images.contiguous()
    residual = residual.contiguous()
    grad_out = grad_out.contiguous()
    mean = mean.contiguous()
    rstd = rstd.contiguous()
    weight = weight.contiguous()
    bias = bias.contiguous()
    n_outer = images.shape[0]
    n_channels = images.shape[1]
    n_inner = images.shape[2] * images.shape[3]
    n_chunks = max(1, min(16, (n_outer * n_inner + 1023) // 1024))
    partial = torch.empty((2, n_channels, n_chunks), dtype=torch.float32, device=images.device)
    _fused_batch_norm_add_relu_sums_kernel[(n_channels, n_chunks)](
        images, residual, grad_out, mean, rstd, weight, bias, partial, n_outer, n_channels, n_inner,
        BLOCK_SIZE=1024, num_warps=4,
    )
    return partial.sum(-1)


@triton.jit
def _fused_batch_norm_add_relu_backward_kernel(
    images_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, residual_ptr, grad_out_ptr, sum_grad_ptr,
    sum_grad_normed_ptr, grad_images_ptr, n_elements, n_outer: tl.constexpr, n_channels: tl.constexpr,
    n_inner: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):
    """Each program handles BLOCK_SIZE consecutive elements."""
    start = tl.program_id(0).to(tl.int64) * BLOCK_SIZE  # int64: offsets can pass 2**31
    offs = start + tl.arange(0, BLOCK_SIZE)
    mask = offs < n_elements  # the last block reaches past the end
    # Broadcasts are resolved in 32 bits: 64-bit division is many times slower.
    index = (start % (n_channels * n_inner)).to(tl.int32) + tl.arange(0, BLOCK_SIZE)
    images = tl.load(images_ptr + offs, mask=mask)
    mean = tl.load(mean_ptr + (index // n_inner) % n_channels, mask=mask)
    difference = images - mean
    rstd = tl.load(rstd_ptr + (index // n_inner) % n_channels, mask=mask)
    normed = difference * rstd
    weight = tl.load(weight_ptr + (index // n_inner) % n_channels, mask=mask)
    scaled = normed * weight
    bias = tl.load(bias_ptr + (index // n_inner) % n_channels, mask=mask)
    shifted = scaled + bias
    residual = tl.load(residual_ptr + offs, mask=mask)
    le = (shifted + residual) <= 0.0
    grad_out = tl.load(grad_out_ptr + offs, mask=mask)
    grad_shifted = tl.where(le, 0.0, grad_out)
    sum_grad = tl.load(sum_grad_ptr + (index // n_inner) % n_channels, mask=mask)
    sum_grad_normed = tl.load(sum_grad_normed_ptr + (index // n_inner) % n_channels, mask=mask)
    along_normed = normed * sum_grad_normed
    grad_of_statistics = sum_grad + along_normed
    share = 1.0 / (n_outer * n_inner)
    mean_grad = grad_of_statistics * share
    centered_grad = grad_shifted - mean_grad
    scale = rstd * weight
    grad_images = centered_grad * scale
    tl.store(grad_images_ptr + offs, grad_images, mask=mask)


def fused_batch_norm_add_relu_backward(images, mean, rstd, weight, bias, residual, grad_out, sum_grad, sum_grad_normed):
    """Gradients of fused_batch_norm_add_relu.

    images, residual, grad_out, grad_images: float32 (n_outer, n_channels, n_inner)
    mean, rstd, weight, bias, sum_grad, sum_grad_normed: float32 (n_channels,)
    """
    images = images.contiguous()
    mean = mean.contiguous()
    rstd = rstd.contiguous()
    weight = weight.contiguous()
    bias = bias.contiguous()
    residual = residual.contiguous()
    grad_out = grad_out.contiguous()
    sum_grad = sum_grad.contiguous()
    sum_grad_normed = sum_grad_normed.contiguous()
    grad_images = torch.empty_like(images, dtype=torch.float32)
    n_outer = images.shape[0]
    n_channels = images.shape[1]
    n_inner = images.shape[2] * images.shape[3]
    n_elements = grad_images.numel()
    if n_elements > 0:  # a grid of zero programs cannot be launched
        grid = ((n_elements + 1023) // 1024,)
        _fused_batch_norm_add_relu_backward_kernel[grid](
            images, mean, rstd, weight, bias, residual, grad_out, sum_grad, sum_grad_normed, grad_images,
            n_elements, n_outer, n_channels, n_inner, BLOCK_SIZE=1024, num_warps=4,
        )
    return grad_images


def fused_batch_norm_add_relu_eager(images, mean, rstd, weight, bias, residual):
    """The same in PyTorch, for gradients of gradients; the statistics are made again."""
    normalized = torch.nn.functional.batch_norm(
        images, None, None, weight, bias, training=True, eps=1e-05
    )
    add = normalized + residual
    relu = torch.nn.functional.relu(add)
    return relu


def differentiate_again(ctx, eager, *grads):
    """Gradients through PyTorch operations, so that they can be differentiated once more."""
    inputs = [saved.view_as(saved) for saved in ctx.saved_tensors]  # each use gets a gradient of its own
    asked = [item for item, needed in zip(inputs, ctx.needs_input_grad) if needed]
    outputs = eager(*inputs)
    found = iter(torch.autograd.grad(outputs, asked, grads, create_graph=True, allow_unused=True))
    return tuple(next(found) if needed else None for needed in ctx.needs_input_grad)


class _FusedBatchNormAddRelu(torch.autograd.Function):
    """Fused batch norm add relu, given the statistics of the batch.

    Inputs and statistics are kept for the backward. It takes two passes: sums by channel of the
    gradient and of the gradient times the normalized input, then all gradients at once.
    """

    @staticmethod
    def forward(ctx, images, mean, rstd, weight, bias, residual):
        ctx.save_for_backward(images, mean, rstd, weight, bias, residual)
        return fused_batch_norm_add_relu_apply(images, mean, rstd, weight, bias, residual)

    @staticmethod
    def backward(ctx, grad_out):
        if torch.is_grad_enabled():  # create_graph=True: a kernel has no derivative of its own
            return differentiate_again(ctx, fused_batch_norm_add_relu_eager, grad_out)
        images, mean, rstd, weight, bias, residual = ctx.saved_tensors
        sum_grad, sum_grad_normed = fused_batch_norm_add_relu_sums(
            images, residual, grad_out, mean, rstd, weight, bias,
        )
        grad_images = fused_batch_norm_add_relu_backward(
            images, mean, rstd, weight, bias, residual, grad_out, sum_grad, sum_grad_normed,
        )
        return grad_images, None, None, sum_grad_normed.to(weight.dtype), sum_grad.to(bias.dtype), None


def fused_batch_norm_add_relu(images, weight, bias, residual, running_mean, running_var):
    """Fused batch norm add relu: batch statistics, then one pass."""
    mean, rstd = fused_batch_norm_add_relu_statistics(images.detach(), running_mean, running_var)
    return _FusedBatchNormAddRelu.apply(images, mean, rstd, weight, bias, residual)


# kernel-lsp: workload images=f32[64,128,56,56] residual=f32[64,128,56,56] train
class BlockEnd(nn.Module):
    def __init__(self, channels=128):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def _forward_eager(self, images, residual):
        return torch.relu(self.norm(images) + residual)

    def forward(self, images, residual):
        # Verified on cuda for images: float32 (64, 128, 56, 56); residual: float32 (64, 128, 56, 56).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            images.is_cuda
            and images.dtype == torch.float32
            and images.shape == (64, 128, 56, 56)
            and residual.is_cuda
            and residual.dtype == torch.float32
            and residual.shape == (64, 128, 56, 56)
            and not torch.is_autocast_enabled("cuda")
            and type(norm := self.norm) is torch.nn.BatchNorm2d
            and (norm.track_running_stats, norm.affine) == (True, True)
            and not (norm._forward_hooks or norm._forward_pre_hooks)
            and norm.training
            and norm.eps == 1e-05
            and norm.momentum == 0.1
            and images.is_contiguous()
            and residual.is_contiguous()
            and not torch._C._are_functorch_transforms_active()
            and images.get_device() == torch.cuda.current_device()
        ):
            return self._forward_eager(images, residual)
        norm.num_batches_tracked.add_(1)
        relu_fused = fused_batch_norm_add_relu(images, norm.weight, norm.bias, residual, norm.running_mean, norm.running_var)
        return relu_fused
