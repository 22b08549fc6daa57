"""Two convolutions with an activation between them."""

import torch
import torch.nn as nn
import torch.nn.functional as F


# kernel-lsp: workload images=f32[32,64,56,56]
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.widen = nn.Conv2d(64, 128, kernel_size=3, padding=1)
        self.narrow = nn.Conv2d(128, 64, kernel_size=1)

    def _forward_eager(self, images):
        hidden = torch.relu(self.widen(images))
        return self.narrow(hidden)

    def forward(self, images):
        # Verified on cuda for images: float32 (32, 64, 56, 56).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            images.is_cuda
            and images.dtype == torch.float32
            and images.shape[1:] == (64, 56, 56)
            and not torch.is_autocast_enabled("cuda")
            and type(widen := self.widen) is torch.nn.Conv2d
            and (widen.kernel_size, widen.stride, widen.padding, widen.dilation, widen.groups,
                widen.padding_mode, widen.output_padding) == ((3, 3), (1, 1), (1, 1), (1, 1), 1,
                'zeros', (0, 0))
            and not (widen._forward_hooks or widen._forward_pre_hooks)
            and type(narrow := self.narrow) is torch.nn.Conv2d
            and (narrow.kernel_size, narrow.stride, narrow.padding, narrow.dilation, narrow.groups,
                narrow.padding_mode, narrow.output_padding) == ((1, 1), (1, 1), (0, 0), (1, 1), 1,
                'zeros', (0, 0))
            and not (narrow._forward_hooks or narrow._forward_pre_hooks)
            and (narrow_weight := narrow.weight).dtype == torch.float32
            and narrow_weight.shape == (64, 128, 1, 1)
            and (widen_weight := widen.weight).dtype == torch.float32
            and widen_weight.shape == (128, 64, 3, 3)
        ):
            return self._forward_eager(images)
        # Convolutions run fastest when the channels of a pixel are neighbors.
        packed = images.contiguous(memory_format=torch.channels_last)
        packed_2 = widen_weight.contiguous(memory_format=torch.channels_last)
        hidden = F.relu(F.conv2d(packed, packed_2, widen.bias, padding=(1, 1)))
        # Convolutions run fastest when the channels of a pixel are neighbors.
        packed = hidden.contiguous(memory_format=torch.channels_last)
        packed_2 = narrow_weight.contiguous(memory_format=torch.channels_last)
        # The result's strides stay what they were.
        return F.conv2d(packed, packed_2, narrow.bias).contiguous()
