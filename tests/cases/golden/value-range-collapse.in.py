"""A clamp and a ReLU that cannot change what a sigmoid gave."""

import torch


# kernel-lsp: workload logits=f32[4096,4096]
def gates(logits):
    opened = torch.sigmoid(logits)
    return torch.relu(torch.clamp(opened, 0.0, 1.0))
