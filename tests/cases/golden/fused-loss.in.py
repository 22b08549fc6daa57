"""A Huber loss of scaled predictions."""

import torch
import torch.nn.functional as F


# kernel-lsp: workload predicted=f32[4096,4096] target=f32[4096,4096]
def loss(predicted, target):
    return F.huber_loss(predicted * 0.5, target, delta=0.5)
