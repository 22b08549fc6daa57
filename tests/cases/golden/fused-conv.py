"""The first block of an image network."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def _fused_conv2d_batch_norm_hardswish_max_pool2d_kernel(
    image_ptr, weight_ptr, bias_ptr, norm_weight_ptr, norm_bias_ptr, running_mean_ptr, running_var_ptr,
    out_ptr, in_channels: tl.constexpr, out_channels: tl.constexpr, height: tl.constexpr,
    width: tl.constexpr, out_width: tl.constexpr, n_pixels: tl.constexpr, BLOCK_PIXELS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """One tile of BLOCK_PIXELS pixels of an image x BLOCK_CHANNELS output channels."""
    channel_tiles = tl.cdiv(out_channels, BLOCK_CHANNELS)
    pixel_tiles = tl.cdiv(n_pixels, BLOCK_PIXELS)
    tile = tl.program_id(0) // channel_tiles  # channels vary fastest: they share the input
    image = (tile // pixel_tiles).to(tl.int64)  # int64: offsets can pass 2**31
    pixels = tile % pixel_tiles * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)
    pixel_mask = pixels < n_pixels  # the last tile of an image reaches past its end
    channels = tl.program_id(0) % channel_tiles * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    channel_mask = channels < out_channels  # as the last tile of channels does
    base = image_ptr + image * (in_channels * height * width)
    pooled_y = (pixels // (out_width // 2)) * 2
    pooled_x = (pixels % (out_width // 2)) * 2
    pooled = tl.full((BLOCK_PIXELS, BLOCK_CHANNELS), -float("inf"), tl.float32)
    for window in range(4):
        out_y = pooled_y + window // 2
        out_x = pooled_x + window % 2
        acc = tl.zeros((BLOCK_PIXELS, BLOCK_CHANNELS), tl.float32)
        terms = tl.arange(0, BLOCK_K)  # (input channel, tap), as in the filter
        term_mask = terms < in_channels * 9  # the block is filled up with zeros
        y = (out_y - 1)[None, :] + (terms // 3 % 3)[:, None]
        x = (out_x - 1)[None, :] + (terms % 3)[:, None]
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)  # beyond lies padding
        patch = tl.load(base + (terms // 9)[:, None] * (height * width) + y * width + x,
                        mask=term_mask[:, None] & pixel_mask[None, :] & inside, other=0.0)
        row = channels[None, :] * (in_channels * 9)
        filters = tl.load(weight_ptr + row + terms[:, None],
                          mask=term_mask[:, None] & channel_mask[None, :], other=0.0)
        acc = tl.dot(tl.trans(patch), filters, acc, input_precision="tf32x3")
        bias_value = tl.load(bias_ptr + channels[None, :], mask=channel_mask[None, :])
        conv2d = acc + bias_value
        running_mean_value = tl.load(running_mean_ptr + channels[None, :], mask=channel_mask[None, :])
        centered = conv2d - running_mean_value
        running_var_value = tl.load(running_var_ptr + channels[None, :], mask=channel_mask[None, :])
        add = running_var_value + 1e-05
        scale = 1.0 / tl.sqrt(add)
        norm_weight_value = tl.load(norm_weight_ptr + channels[None, :], mask=channel_mask[None, :])
        scale_2 = scale * norm_weight_value
        normed = centered * scale_2
        norm_bias_value = tl.load(norm_bias_ptr + channels[None, :], mask=channel_mask[None, :])
        normed_2 = normed + norm_bias_value
        active = normed_2 * tl.where(tl.where((normed_2 + 3.0) < 0.0, 0.0, (normed_2 + 3.0)) > 6.0, 6.0, tl.where((normed_2 + 3.0) < 0.0, 0.0, (normed_2 + 3.0))) / 6.0
        pooled = tl.maximum(pooled, active, propagate_nan=tl.PropagateNan.ALL)
    place = (image * out_channels + channels[None, :]) * n_pixels + pixels[:, None]
    tl.store(out_ptr + place, pooled, mask=pixel_mask[:, None] & channel_mask[None, :])


def fused_conv2d_batch_norm_hardswish_max_pool2d(image, weight, bias, norm_weight, norm_bias, running_mean, running_var):
    """A 3 x 3 convolution, batch_norm, hardswish and max_pool2d, in one kernel.

    image: float32 (batch, channels, height, width)
    weight: float32 (out_channels, channels of a group, kernel_height, kernel_width)
    bias: float32 (24,)
    norm_weight: float32 (24,)
    norm_bias: float32 (24,)
    running_mean: float32 (24,)
    running_var: float32 (24,)
    out: float32 (batch, 24, 64, 64)
    """
    image = image.contiguous()
    weight = weight.contiguous()
    bias = bias.contiguous()
    norm_weight = norm_weight.contiguous()
    norm_bias = norm_bias.contiguous()
    running_mean = running_mean.contiguous()
    running_var = running_var.contiguous()
    batch, _, height, width = image.shape
    out_channels, in_channels, kernel_height, kernel_width = weight.shape
    out_height = height
    out_width = width
    n_pixels = (out_height // 2) * (out_width // 2)
    tiles = batch * ((n_pixels + 127) // 128)
    shape = (batch, out_channels, out_height // 2, out_width // 2)
    out = torch.empty(shape, dtype=torch.float32, device=image.device)
    if out.numel() > 0:  # a grid of zero programs cannot be launched
        grid = (tiles * ((out_channels + 31) // 32),)
        _fused_conv2d_batch_norm_hardswish_max_pool2d_kernel[grid](
            image, weight, bias, norm_weight, norm_bias, running_mean, running_var, out, in_channels,
            out_channels, height, width, out_width, n_pixels, BLOCK_PIXELS=128, BLOCK_CHANNELS=32,
            BLOCK_K=32, num_warps=4, num_stages=4,
        )
    return out


class Stem(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 24, 3, padding=1)
        self.norm = nn.BatchNorm2d(24).eval()

    def _forward_eager(self, image):
        features = self.norm(self.conv(image))
        active = F.hardswish(features)
        return F.max_pool2d(active, 2)

    def forward(self, image):
        # Verified on cuda for image: float32 (64, 3, 128, 128).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            image.is_cuda
            and image.dtype == torch.float32
            and image.shape[1:] == (3, 128, 128)
            and not torch.is_autocast_enabled("cuda")
            and type(conv := self.conv) is torch.nn.Conv2d
            and (conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups,
                conv.padding_mode, conv.output_padding) == ((3, 3), (1, 1), (1, 1), (1, 1), 1,
                'zeros', (0, 0))
            and not (conv._forward_hooks or conv._forward_pre_hooks)
            and type(norm := self.norm) is torch.nn.BatchNorm2d
            and (norm.track_running_stats, norm.affine) == (True, True)
            and not (norm._forward_hooks or norm._forward_pre_hooks)
            and not norm.training
            and norm.eps == 1e-05
            and (conv_weight := conv.weight).dtype == torch.float32
            and conv_weight.shape == (24, 3, 3, 3)
            and image.is_contiguous()
            and not torch._C._are_functorch_transforms_active()
            and image.get_device() == torch.cuda.current_device()
            and not (torch.is_grad_enabled() and (image.requires_grad or conv_weight.requires_grad
                or any(p.requires_grad for p in self.parameters())))
        ):
            return self._forward_eager(image)
        return fused_conv2d_batch_norm_hardswish_max_pool2d(image, conv_weight, conv.bias, norm.weight, norm.bias, norm.running_mean, norm.running_var)


def get_inputs():
    return [torch.randn(64, 3, 128, 128)]
