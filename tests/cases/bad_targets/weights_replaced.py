# expect: refused: Model was called with tensors in the place of its weights (torch.func.functional_call)
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 7)
        self.linear._parameters["weight"] = torch.ones(7, 8)

    def forward(self, x):
        return torch.sum(self.linear(x), dim=1, keepdim=True)


def get_inputs():
    return [torch.randn(6, 8)]


def get_init_inputs():
    return []
