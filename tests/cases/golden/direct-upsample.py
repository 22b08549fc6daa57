"""A segmentation head whose scores are brought to the size of the image."""

import torch.nn as nn
import torch.nn.functional as F
import torch
import triton
import triton.language as tl


@triton.jit
def _upsample_bilinear_weight(distance):
    """Share of an element at that distance in a result."""
    return tl.maximum(1.0 - tl.abs(distance), 0.0)


@triton.jit
def _upsample_bilinear_place(index, scale):
    """Where in the input a result lies."""
    return tl.maximum((index.to(tl.float32) + 0.5) * scale - 0.5, 0.0)


@triton.jit
def _upsample_bilinear_kernel(
    x_ptr, out_ptr, n_planes, scale_y, scale_x, height: tl.constexpr, width: tl.constexpr,
    out_height: tl.constexpr, out_width: tl.constexpr, BLOCK_PLANES: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):
    """Each program computes BLOCK_SIZE places of BLOCK_PLANES planes."""
    n_blocks: tl.constexpr = (out_height * out_width + BLOCK_SIZE - 1) // BLOCK_SIZE
    spots = tl.program_id(0) % n_blocks * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)[None, :]
    first_plane = (tl.program_id(0) // n_blocks).to(tl.int64) * BLOCK_PLANES  # offsets can pass 2**31
    planes = first_plane + tl.arange(0, BLOCK_PLANES)[:, None]
    mask = (planes < n_planes) & (spots < out_height * out_width)  # the last planes and places
    y = _upsample_bilinear_place(spots // out_width, scale_y)
    x = _upsample_bilinear_place(spots % out_width, scale_x)
    top, left = tl.floor(y).to(tl.int32), tl.floor(x).to(tl.int32)
    total = tl.zeros([BLOCK_PLANES, BLOCK_SIZE], tl.float32)
    for i in tl.static_range(2):
        row = tl.minimum(tl.maximum(top + i, 0), height - 1)
        line = tl.zeros([BLOCK_PLANES, BLOCK_SIZE], tl.float32)
        for j in tl.static_range(2):
            column = tl.minimum(tl.maximum(left + j, 0), width - 1)
            at = planes * (height * width) + row * width + column
            line += _upsample_bilinear_weight(x - (left + j)) * tl.load(x_ptr + at, mask=mask).to(tl.float32)
        total += _upsample_bilinear_weight(y - (top + i)) * line
    tl.store(out_ptr + planes * (out_height * out_width) + spots, total, mask=mask)


def upsample_bilinear(x):
    """Bilinear resampling, each result from its neighbors in the input.

    x: float16 (n_planes, height, width)
    out: float16 (n_planes, 512, 512)
    """
    x = x.contiguous()
    height, width = x.shape[-2:]
    n_planes = x.numel() // (height * width)
    out = torch.empty((*x.shape[:-2], 512, 512), dtype=x.dtype, device=x.device)
    if n_planes > 0:  # a grid of zero programs cannot be launched
        grid = ((n_planes + 3) // 4 * 2048,)
        _upsample_bilinear_kernel[grid](
            x, out, n_planes, 0.25, 0.25, height, width, 512, 512,
            BLOCK_PLANES=4, BLOCK_SIZE=128, num_warps=4,
        )
    return out


# kernel-lsp: workload features=f16[8,256,128,128]
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.classify = nn.Conv2d(256, 21, 1).half()

    def _forward_eager(self, features):
        scores = self.classify(features)
        return F.interpolate(scores, scale_factor=4, mode="bilinear", align_corners=False)

    def forward(self, features):
        # Verified on cuda for features: float16 (8, 256, 128, 128).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            features.is_cuda
            and features.dtype == torch.float16
            and features.shape[1:] == (256, 128, 128)
            and not torch.is_autocast_enabled("cuda")
            and (classify_weight := self.classify.weight).dtype == torch.float16
            and classify_weight.shape == (21, 256, 1, 1)
            and features.is_contiguous()
            and not torch._C._are_functorch_transforms_active()
            and features.get_device() == torch.cuda.current_device()
            and not (torch.is_grad_enabled() and (features.requires_grad
                or classify_weight.requires_grad or any(p.requires_grad for p in self.parameters())))
        ):
            return self._forward_eager(features)
        scores = self.classify(features)
        return upsample_bilinear(scores)
