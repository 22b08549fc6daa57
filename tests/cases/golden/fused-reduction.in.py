"""Squared, summed and rooted along rows."""

import torch


# kernel-lsp: workload features=f32[8192,4096]
def spread(features):
    scaled = torch.tanh(features) * 2.0
    return torch.logsumexp(scaled, dim=1)
