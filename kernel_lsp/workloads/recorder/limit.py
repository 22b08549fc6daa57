"""Ends a recorded program after so many steps: those of its first optimizer, or calls of its
outermost module where nothing is trained. What it does after its steps (saving, evaluating) does
not happen then."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

CALLS_PER_STEP = 2
"""A step of inference is one call; a few more cost little, and the first are slow."""


class Limit:
    """Counts the steps of one process."""

    def __init__(self, count: int, write: Callable[[], None]) -> None:
        """``write``: keeps what was seen."""
        self._count, self._write = count, write
        self._optimizer: Any = None
        self._steps = 0

    def saw_optimizers(self, module: Any) -> None:
        module.register_optimizer_step_post_hook(self._stepped)

    def called(self, calls: int, torch: Any) -> None:
        """The outermost module was called so often."""
        if (
            not self._steps
            and not torch.is_grad_enabled()
            and calls >= CALLS_PER_STEP * self._count
        ):
            self._end()

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        if self._optimizer is None:
            self._optimizer = optimizer
        if optimizer is self._optimizer:
            self._steps += 1
            if self._steps >= self._count:
                self._end()

    def _end(self) -> None:
        self._write()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
