"""Reductions over a dimension of size 1."""

import torch


# kernel-lsp: workload scores=f32[4096,1]
def _pooled_eager(scores):
    best = torch.max(scores, dim=1, keepdim=True).values
    return torch.logsumexp(best, dim=1, keepdim=True) * 2.0


def pooled(scores):
    # Verified on cuda for scores: float32 (4096, 1).
    # Anything that the reasoning below does not cover takes the original path.
    if not (
        scores.is_cuda
        and scores.dtype == torch.float32
        and scores.shape[1:] == (1,)
        and not torch.is_autocast_enabled("cuda")
    ):
        return _pooled_eager(scores)
    return scores * 2.0
