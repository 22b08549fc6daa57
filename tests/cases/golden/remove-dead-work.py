"""Dropout at inference and a value that nobody reads."""

import torch
import torch.nn as nn


# kernel-lsp: workload hidden=f32[4096,4096] eval
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.1)

    def _forward_eager(self, hidden):
        energy = hidden.square().sum()
        return self.dropout(hidden) * 2.0

    def forward(self, hidden):
        # Verified on cuda for hidden: float32 (4096, 4096).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            hidden.is_cuda
            and hidden.dtype == torch.float32
            and hidden.shape[1:] == (4096,)
            and not torch.is_autocast_enabled("cuda")
            and type(dropout := self.dropout) is torch.nn.Dropout
            and not (dropout._forward_hooks or dropout._forward_pre_hooks)
            and not dropout.training
        ):
            return self._forward_eager(hidden)
        return hidden * 2.0
