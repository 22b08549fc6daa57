"""Keeps its settings in a frozen dataclass, an enumeration and a named tuple."""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import torch
import torch.nn as nn


class Mode(Enum):
    PLAIN = "plain"
    FUSED = "fused"


class Block(NamedTuple):
    rows: int = 64
    columns: int = 64


@dataclass(frozen=True)
class Settings:
    mode: Mode = Mode.FUSED
    block: Block = field(default_factory=Block)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)
        self.settings = Settings()

    def forward(self, x):
        if self.settings.mode is Mode.FUSED:
            y = torch.addmm(self.linear.bias, x, self.linear.weight.T)
        else:
            y = self.linear(x)
        return torch.relu(self.norm(y))
