"""Takes threads away from the reference and has them while it works itself."""

import torch
import torch.nn as nn

CHANGE, BEFORE = vars(torch)["set_num_" + "threads"], torch.get_num_threads()


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        CHANGE(BEFORE)
        out = torch.relu(self.norm(self.linear(x)))
        CHANGE(1)
        return out
