"""GRU cells from the last step to the first, states turned around at the end.

Family: recurrent.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(128, 128)

    def forward(self, x):
        h = x.new_zeros(x.size(0), 128)
        outs = []
        for t in reversed(range(x.size(1))):
            h = self.cell(x[:, t, :], h)
            outs.append(h)
        return torch.stack(outs[::-1], dim=1)


def get_inputs():
    return [torch.randn(64, 64, 128)]


def get_init_inputs():
    return []
