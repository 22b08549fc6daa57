"""Softmax of scaled scores with an additive mask."""

import torch


# kernel-lsp: workload scores=f32[8192,2000] bias=f32[2000]
def attention_weights(scores, bias):
    shifted = scores * 0.125 + bias
    return torch.softmax(shifted, dim=-1)
