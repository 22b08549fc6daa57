"""The middle of an inverted residual block."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def _fused_conv2d_relu6_kernel(
    features_ptr, weight_ptr, bias_ptr, out_ptr, in_channels: tl.constexpr, out_channels: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr, out_width: tl.constexpr, n_pixels: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr,
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
    base = features_ptr + image * (in_channels * 192 * height * width)
    out_y = pixels // out_width
    out_x = pixels % out_width
    acc = tl.zeros((BLOCK_PIXELS, BLOCK_CHANNELS), tl.float32)
    for tap in tl.static_range(9):
        y = (out_y * 2 - 1 + tap // 3)[:, None]
        x = (out_x * 2 - 1 + tap % 3)[:, None]
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)  # beyond lies padding
        patch = tl.load(base + channels[None, :] * (height * width) + y * width + x,
                        mask=pixel_mask[:, None] & channel_mask[None, :] & inside, other=0.0)
        filters = tl.load(weight_ptr + channels * 9 + tap, mask=channel_mask)
        acc += patch * filters[None, :]
    bias_value = tl.load(bias_ptr + channels[None, :], mask=channel_mask[None, :])
    conv2d = acc + bias_value
    relu6 = tl.where(tl.where(conv2d < 0.0, 0.0, conv2d) > 6.0, 6.0, tl.where(conv2d < 0.0, 0.0, conv2d))
    place = (image * out_channels + channels[None, :]) * n_pixels + pixels[:, None]
    tl.store(out_ptr + place, relu6, mask=pixel_mask[:, None] & channel_mask[None, :])


def fused_conv2d_relu6(features, weight, bias):
    """A 3 x 3 convolution and relu6, in one kernel.

    features: float32 (batch, channels, height, width)
    weight: float32 (out_channels, channels of a group, kernel_height, kernel_width)
    bias: float32 (192,)
    out: float32 (batch, 192, 28, 28)
    """
    features, weight, bias = features.contiguous(), weight.contiguous(), bias.contiguous()
    batch, _, height, width = features.shape
    out_channels, in_channels, kernel_height, kernel_width = weight.shape
    out_height = (height - 1) // 2 + 1
    out_width = (width - 1) // 2 + 1
    n_pixels = out_height * out_width
    tiles = batch * ((n_pixels + 255) // 256)
    shape = (batch, out_channels, out_height, out_width)
    out = torch.empty(shape, dtype=torch.float32, device=features.device)
    if out.numel() > 0:  # a grid of zero programs cannot be launched
        grid = (tiles * (out_channels),)
        _fused_conv2d_relu6_kernel[grid](
            features, weight, bias, out, in_channels, out_channels, height, width, out_width, n_pixels,
            BLOCK_PIXELS=256, BLOCK_CHANNELS=1, num_warps=4,
        )
    return out


class Depthwise(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(192, 192, 3, stride=2, padding=1, groups=192)

    def _forward_eager(self, features):
        return F.relu6(self.conv(features))

    def forward(self, features):
        # Verified on cuda for features: float32 (16, 192, 56, 56).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            features.is_cuda
            and features.dtype == torch.float32
            and features.shape[1:] == (192, 56, 56)
            and not torch.is_autocast_enabled("cuda")
            and type(conv := self.conv) is torch.nn.Conv2d
            and (conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups,
                conv.padding_mode, conv.output_padding) == ((3, 3), (2, 2), (1, 1), (1, 1), 192,
                'zeros', (0, 0))
            and not (conv._forward_hooks or conv._forward_pre_hooks)
            and (conv_weight := conv.weight).dtype == torch.float32
            and conv_weight.shape == (192, 1, 3, 3)
            and features.is_contiguous()
            and not torch._C._are_functorch_transforms_active()
            and features.get_device() == torch.cuda.current_device()
            and not (torch.is_grad_enabled() and (features.requires_grad
                or conv_weight.requires_grad or any(p.requires_grad for p in self.parameters())))
        ):
            return self._forward_eager(features)
        return fused_conv2d_relu6(features, conv_weight, conv.bias)


def get_inputs():
    return [torch.randn(16, 192, 56, 56)]
