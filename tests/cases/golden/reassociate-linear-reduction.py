"""A linear layer whose outputs are only summed."""

import torch
import torch.nn as nn


# kernel-lsp: workload x=f32[128,4096]
class Total(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4096, 4096)

    def _forward_eager(self, x):
        scores = self.linear(x)
        return torch.sum(scores, dim=1, keepdim=True)

    def forward(self, x):
        # Verified on cuda for x: float32 (128, 4096).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            x.is_cuda
            and x.dtype == torch.float32
            and x.shape[1:] == (4096,)
            and not torch.is_autocast_enabled("cuda")
            and type(linear := self.linear) is torch.nn.Linear
            and not (linear._forward_hooks or linear._forward_pre_hooks)
            and (linear_weight := linear.weight).dtype == torch.float32
            and linear_weight.shape == (4096, 4096)
        ):
            return self._forward_eager(x)
        # sum(x @ W.T + b) over output features is x @ sum(W) + sum(b).
        # Folded on each call, so training and load_state_dict stay right.
        weight_sum = torch.sum(linear_weight, dim=0)
        return (x @ weight_sum + torch.sum(linear.bias)).unsqueeze(-1)
