# expect: refused: Model computes on quantized tensors (aten::quantize_per_tensor)
"""A part of it computes on quantized tensors."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        q = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
        return torch.relu(q.dequantize()) * 2 + 1


def get_inputs():
    return [torch.randn(6, 8)]
