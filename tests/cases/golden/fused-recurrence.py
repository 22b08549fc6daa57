"""A running average with a decay for each feature."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def _recurrence_kernel(
    keep_ptr, average_ptr, rsub_ptr, frames_ptr, out_ptr, n_steps, n_elements, n_cols: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, STEPS_AHEAD: tl.constexpr,
):
    """Each program carries BLOCK_SIZE elements of the state through all steps."""
    start = tl.program_id(0).to(tl.int64) * BLOCK_SIZE  # int64: offsets can pass 2**31
    offs = start + tl.arange(0, BLOCK_SIZE)
    mask = offs < n_elements  # the last block reaches past the end
    # Broadcasts are resolved in 32 bits: 64-bit division is many times slower.
    index = (start % n_cols).to(tl.int32) + tl.arange(0, BLOCK_SIZE)
    average = tl.load(average_ptr + offs, mask=mask)
    keep = tl.load(keep_ptr + index % n_cols, mask=mask)
    rsub = tl.load(rsub_ptr + index % n_cols, mask=mask)
    here = offs  # in the slice of the current step, in int64
    # What a step reads does not depend on the state, so it is fetched several steps ahead.
    for _ in tl.range(0, n_steps, num_stages=STEPS_AHEAD):
        frames_t = tl.load(frames_ptr + here, mask=mask)
        average_next = (keep * average) + (rsub * frames_t)
        tl.store(out_ptr + here, average_next, mask=mask)
        average = average_next
        here += n_elements


def recurrence(keep, average, rsub, frames):
    """A recurrence over dimension 0, element by element.

    keep: (256,)
    average: (64, 256), before the first step
    rsub: (256,)
    frames: (128, 64, 256)
    returns out: the state after every step
    """
    keep = keep.contiguous()
    average = average.contiguous()
    rsub = rsub.contiguous()
    frames = frames.contiguous()
    n_steps, n_elements = frames.shape[0], frames[0].numel()
    out = torch.empty_like(frames, dtype=torch.float32)
    n_cols = average.shape[1]
    if n_elements > 0:  # a grid of zero programs cannot be launched
        grid = ((n_elements + 127) // 128,)
        _recurrence_kernel[grid](
            keep, average, rsub, frames, out, n_steps, n_elements, n_cols, BLOCK_SIZE=128, STEPS_AHEAD=8,
            num_warps=4,
        )
    return out


# kernel-lsp: workload frames=f32[128,64,256]
class RunningAverage(nn.Module):
    def __init__(self, features=256):
        super().__init__()
        self.decay = nn.Parameter(torch.zeros(features))

    def _forward_eager(self, frames):
        keep = torch.sigmoid(self.decay)
        average = torch.zeros_like(frames[0])
        averages = []
        for frame in frames:
            average = keep * average + (1 - keep) * frame
            averages.append(average)
        return torch.stack(averages)

    def forward(self, frames):
        # Verified on cuda for frames: float32 (128, 64, 256).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            frames.is_cuda
            and frames.dtype == torch.float32
            and frames.shape == (128, 64, 256)
            and not torch.is_autocast_enabled("cuda")
            and (decay := self.decay).dtype == torch.float32
            and frames.is_contiguous()
            and not torch._C._are_functorch_transforms_active()
            and frames.get_device() == torch.cuda.current_device()
            and not (torch.is_grad_enabled() and (frames.requires_grad or decay.requires_grad))
        ):
            return self._forward_eager(frames)
        keep = torch.sigmoid(decay)
        average = torch.zeros_like(frames[0])
        rsub = 1 - keep
        return recurrence(keep, average, rsub, frames)
