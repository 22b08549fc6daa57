"""Random draws of a program's step: whether there are any, other ones, and none (dropout alone).

Standard library alone; torch is the program's."""

from __future__ import annotations

import functools
from typing import Any

DROPOUTS = (
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_alpha_dropout",
)
"""Of torch.nn.functional; all take ``training``."""


class DrawWatch:
    """Whether calls of a module draw from torch's generators."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._before: Any = None
        self.found = False

    def watch(self, root: Any) -> None:
        """Look at the first calls of this module."""
        hooks: list[Any] = [
            root.register_forward_pre_hook(lambda *_: self._begin()),
            root.register_forward_hook(lambda *_: self._end(hooks)),
        ]

    def _begin(self) -> None:
        self._before = self._states()

    def _end(self, hooks: list[Any]) -> None:
        before, now = self._before or [], self._states()
        changed = any(not self._torch.equal(a, b) for a, b in zip(before, now, strict=False))
        self.found = self.found or changed
        for hook in hooks:
            hook.remove()

    def _states(self) -> list[Any]:
        torch = self._torch
        cuda = torch.cuda.is_initialized()
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if cuda else [])]


def redraw(torch: Any, seed: int) -> None:
    """Draw other numbers from now on."""
    torch.manual_seed(seed)


def leave_out(torch: Any) -> None:
    """Have dropout drop nothing, whatever a module says."""
    functional = torch.nn.functional
    for name in DROPOUTS:
        setattr(functional, name, _undrawn(getattr(functional, name)))
    attend = functional.scaled_dot_product_attention

    @functools.wraps(attend)
    def attending(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, **more: Any
    ) -> Any:
        return attend(query, key, value, attn_mask=attn_mask, **more)

    functional.scaled_dot_product_attention = attending


def _undrawn(dropout: Any) -> Any:
    def keeping(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return dropout(input, p=p, training=False, inplace=inplace)

    return keeping
