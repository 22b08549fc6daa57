# expect: refused: Model computes on quantized tensors (aten::dequantize)
"""It is given a quantized tensor."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        return torch.relu(x.dequantize()) * 2 + 1


def get_inputs():
    return [torch.quantize_per_tensor(torch.randn(6, 8), 0.1, 0, torch.qint8)]
