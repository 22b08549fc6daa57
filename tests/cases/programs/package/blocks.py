"""Blocks whose constructors take an object, whose calls take tuples and caches, which call each other's forward."""

import torch
import torch.nn.functional as F
from torch import nn

from .settings import Cache, Gate, Settings

EPS = 1e-5
REGISTRY = {}


def register(cls):
    if cls.__name__ in REGISTRY:
        raise ValueError(f"{cls.__name__} is registered twice")
    REGISTRY[cls.__name__] = cls
    return cls


@register
class Norm(nn.Module):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.weight = nn.Parameter(torch.ones(settings.width))

    def forward(self, x):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)
        return x * scale * self.weight


@register
class GatedLayer(nn.Module):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.up = nn.Linear(settings.width, 2 * settings.width, bias=False)
        self.down = nn.Linear(settings.width, settings.width, bias=False)

    def forward(self, x):
        gate, value = self.up(x).chunk(2, dim=-1)
        act = F.silu(gate) if self.settings.gate is Gate.SILU else F.gelu(gate)
        clamp = self.settings.limits["clamp"]
        return self.down((act * value).clamp(-clamp, clamp))


@register
class Recurrent(nn.Module):
    """One step of a cell on a tuple of states."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.mix = nn.Linear(settings.width, settings.width)

    def forward(self, x, states):
        hidden, memory = states
        gate = torch.sigmoid(self.mix(x) + hidden)
        memory = gate * memory + (1 - gate) * torch.tanh(x)
        return gate * torch.tanh(memory), (hidden + gate, memory)


@register
class Cached(nn.Module):
    """Attention of one token over a cache that grows."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.heads = settings.heads
        self.qkv = nn.Linear(settings.width, 3 * settings.width, bias=False)

    def forward(self, x, cache: Cache):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        cache.keys.append(k)
        cache.values.append(v)
        keys, values = torch.cat(cache.keys, dim=2), torch.cat(cache.values, dim=2)
        mixed = F.scaled_dot_product_attention(q, keys, values)
        return mixed.transpose(1, 2).reshape(batch, length, width)


class Stack(nn.Module):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.norm = Norm(settings)
        self.layer = GatedLayer(settings)
        self.cell = Recurrent(settings)
        self.attention = Cached(settings)

    def forward(self, x, states, cache):
        x = x + self.layer.forward(self.norm(x))
        y, states = self.cell(x, states)
        return y + self.attention(x, cache), states
