"""A product of lower triangular matrices."""

import torch
import torch.nn as nn


# kernel-lsp: workload left=f32[2048,2048] right=f32[2048,2048]
class LowerProduct(nn.Module):
    def forward(self, left, right):
        lower_left = torch.tril(left)
        lower_right = torch.tril(right)
        return torch.relu(lower_left @ lower_right)
