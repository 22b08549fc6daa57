"""RMSNorm, rotary attention, no biases.

Family: transformer.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        angle = torch.outer(torch.arange(512.0), 10000 ** (-torch.arange(32) / 32))
        self.register_buffer("cos", torch.cat([angle, angle], dim=1).cos())
        self.register_buffer("sin", torch.cat([angle, angle], dim=1).sin())
        self.norm = RMSNorm(512)
        self.qkv = nn.Linear(512, 1536, bias=False)
        self.out = nn.Linear(512, 512, bias=False)

    def forward(self, x):
        kept = x
        x = self.norm(x)
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, 8, 64).permute(2, 0, 3, 1, 4)
        q = q * self.cos + torch.cat([-q[..., 32:], q[..., :32]], dim=-1) * self.sin
        k = k * self.cos + torch.cat([-k[..., 32:], k[..., :32]], dim=-1) * self.sin
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return kept + self.out(h.transpose(1, 2).reshape(batch, length, width))


def get_inputs():
    return [torch.randn(8, 512, 512)]


def get_init_inputs():
    return []
