"""An image as a sequence of patches."""

import torch.nn as nn
import torch
import torch.nn.functional as F


# kernel-lsp: workload images=f32[64,3,224,224]
class Patches(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Conv2d(3, 384, kernel_size=16, stride=16)

    def _forward_eager(self, images):
        tokens = self.project(images).flatten(2).transpose(1, 2)
        return tokens

    def forward(self, images):
        # Verified on cuda for images: float32 (64, 3, 224, 224).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            images.is_cuda
            and images.dtype == torch.float32
            and images.shape[1:] == (3, 224, 224)
            and not torch.is_autocast_enabled("cuda")
            and type(project := self.project) is torch.nn.Conv2d
            and (project.kernel_size, project.stride, project.padding, project.dilation,
                project.groups, project.padding_mode, project.output_padding) == ((16, 16), (16, 16),
                (0, 0), (1, 1), 1, 'zeros', (0, 0))
            and not (project._forward_hooks or project._forward_pre_hooks)
            and (project_weight := project.weight).dtype == torch.float32
            and project_weight.shape == (384, 3, 16, 16)
        ):
            return self._forward_eager(images)
        pixels = images.reshape(-1, 3, 14, 16, 14, 16).permute(0, 2, 4, 1, 3, 5)
        # Windows lie side by side, so a window's pixels can be the channels of a 1 x 1
        # convolution.
        patches = pixels.reshape(-1, 14, 14, 768)
        projected = F.conv2d(patches.permute(0, 3, 1, 2), project_weight.reshape(384, 768, 1, 1), project.bias)
        tokens = projected.flatten(2).transpose(1, 2)
        return tokens
