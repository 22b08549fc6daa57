# expect: rewritten
"""A distribution that does not look at its parameters is arithmetic."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        scale = torch.exp(torch.tanh(x)) + 1
        return torch.distributions.Normal(x, scale, validate_args=False).log_prob(x * 2)


def get_inputs():
    return [torch.randn(64, 80)]
