"""Words for numbers begin beside their neighbors: random weights of the compact form know that 8
follows 7.

With embeddings that have nothing to do with each other every number has to be learned by itself,
and 5,000 plans are too few: a small model on 106 programs of held-out families came from 1.029 to
1.044 times the rule (trainer/LOG.md). Waves of several lengths over the number, as positions have
them (Vaswani et al. 2017, 3.5), with phases and order of their own for each kind of word, at the
usual spread. Not covered: other words."""

from __future__ import annotations

import math
import re
from collections import defaultdict

import torch
from torch import Tensor

from kernel_lsp.agents.prompt_encoding import TOKENS

NUMBER = re.compile(r"([gpbide])(-?\d+)(?:\.(\d))?")
KIN = {"p": "d"}
"""Powers of two and the quarters between them are one kind."""
SPREAD = 0.02
"""Standard deviation of the other words' weights."""
OWN = 0.15
"""Of its random weights that a word keeps."""
LONGEST, SHORTEST = 60.0, 3.0
"""Waves, in steps of a kind's words."""
STEPS = {"d": 4.0}
"""In a unit."""


def place(weights: Tensor, seed: int) -> None:
    """Set the rows of numbers. ``weights`` (words, H), H even."""
    draw = torch.Generator().manual_seed(seed)
    half = weights.shape[1] // 2
    waves = 2 * math.pi * torch.logspace(math.log10(1 / LONGEST), math.log10(1 / SHORTEST), half)
    for kind, numbers in _kinds().items():
        phase = 2 * math.pi * torch.rand(half, generator=draw)
        order = torch.randperm(2 * half, generator=draw)
        common = SPREAD * torch.randn(2 * half, generator=draw)
        for token, value in numbers:
            angle = STEPS.get(kind, 1.0) * value * waves + phase
            wave = math.sqrt(2) * SPREAD * torch.cat([angle.sin(), angle.cos()])[order]
            weights[token] = wave + common + OWN * weights[token]


def _kinds() -> dict[str, list[tuple[int, float]]]:
    """Kind -> (token, number) of its words."""
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for word, token in TOKENS.items():
        if match := NUMBER.fullmatch(word):
            kind, whole, quarter = match.groups()
            found[KIN.get(kind, kind)].append((token, int(whole) + int(quarter or 0) / 4))
    return dict(found)
