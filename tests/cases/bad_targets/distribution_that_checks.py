# expect: refused: Model makes a distribution, which checks the values of its parameters: `return torch.distributions.Normal(y, torch.exp(y)).log_prob(x)`
"""torch.distributions looks at its parameters when it is made."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        y = self.layer(x)
        return torch.distributions.Normal(y, torch.exp(y)).log_prob(x)


def get_inputs():
    return [torch.randn(4, 8)]
