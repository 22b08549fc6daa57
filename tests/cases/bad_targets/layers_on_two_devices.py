# expect: refused: Model is spread over cuda:0 and cuda:1
"""A model that is spread over two devices."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8, device="cuda:0")
        self.second = nn.Linear(8, 4, device="cuda:1")

    def forward(self, x):
        return self.second(torch.relu(self.first(x)).to("cuda:1") * 2 + 1)


def get_inputs():
    return [torch.randn(6, 8, device="cuda:0")]
