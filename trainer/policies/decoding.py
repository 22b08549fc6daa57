"""Texts that one model writes side by side: what is new of each is read in one pass, with a cache.

Not covered: which token comes next. Whoever writes chooses by the logits (rollouts/generation.py,
lines.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor


class Fed(Protocol):
    """A text that is being written."""

    feed: list[int]
    """Tokens that the model has not read yet."""

    @property
    def done(self) -> bool:
        """Whether it has ended."""


def decode(model: Any, pad: int, rows: Sequence[Fed], choose: Callable[[Tensor], None]) -> None:
    """Read what is new of every row, let ``choose`` go on by the logits (R, V), until all rows are
    done."""
    from transformers import DynamicCache

    device = next(model.parameters()).device
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    cache = DynamicCache(config=causal.config)
    seen = torch.zeros(len(rows), 0, dtype=torch.long, device=device)
    while not all(row.done for row in rows):
        ids, real = (part.to(device) for part in _pad_new_tokens(rows, pad))
        seen = torch.cat([seen, real], dim=1)
        positions = (seen.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        states = causal.model(
            input_ids=ids,
            attention_mask=seen,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        choose(causal.lm_head(states[:, -1]).float().cpu())


def _pad_new_tokens(rows: Sequence[Fed], pad: int) -> tuple[Tensor, Tensor]:
    """Tokens that are new to the model, padded on the left, and which of them are real."""
    width = max(len(row.feed) for row in rows if not row.done)
    ids = torch.full((len(rows), width), pad, dtype=torch.long)
    real = torch.zeros(len(rows), width, dtype=torch.long)
    for place, row in enumerate(rows):
        if not row.done:
            ids[place, width - len(row.feed) :] = torch.tensor(row.feed)
            real[place, width - len(row.feed) :] = 1
            row.feed = []
    return ids, real
