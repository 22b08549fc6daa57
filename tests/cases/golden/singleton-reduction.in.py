"""Reductions over a dimension of size 1."""

import torch


# kernel-lsp: workload scores=f32[4096,1]
def pooled(scores):
    best = torch.max(scores, dim=1, keepdim=True).values
    return torch.logsumexp(best, dim=1, keepdim=True) * 2.0
