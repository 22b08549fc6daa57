"""A causal mask that is made anew in each call."""

import torch


# kernel-lsp: workload scores=f32[16,512,512]
def causal(scores):
    mask = torch.ones(512, 512, device=scores.device).tril() == 0
    return scores.masked_fill(mask, float("-inf"))
