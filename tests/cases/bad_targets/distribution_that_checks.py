# expect: refused: Model makes a distribution, which checks the values of its parameters: `around = torch.distributions.Normal(y, torch.exp(y), validate_args=True)`
"""A distribution looks at its parameters when it is made; where anything was compiled before, only
one that is asked to."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        y = self.layer(x)
        around = torch.distributions.Normal(y, torch.exp(y), validate_args=True)
        return around.log_prob(x)


def get_inputs():
    return [torch.randn(4, 8)]
