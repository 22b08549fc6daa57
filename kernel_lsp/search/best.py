"""Best of n: independent samples, each from the target itself, none of which sees another. Pure."""

from __future__ import annotations

import random

from kernel_lsp.records import Archive, Context, Move


class BestOf:
    """A `Strategy` for models alone; the budget is n."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def choose(self, archive: Archive, number: int, *, slow: bool) -> Context | None:
        """A fresh start with a seed of its own, each time; None for a quick move."""
        if not slow:
            return None
        seed = random.Random(f"{self._seed}:{number}").getrandbits(32)
        return Context(number=number, seed=seed, move=Move.RESTART, rollout=number, turn=1)
