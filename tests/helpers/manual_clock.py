"""An event loop whose clock jumps to the next timer instead of waiting: hours pass in milliseconds.

Only for code that waits for nothing but timers and other tasks.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class _Selector(selectors.SelectSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("everybody waits for something that no timer brings")
        self.now += max(0.0, timeout)
        return super().select(0)


class ManualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def run(main: Any) -> Any:
    with asyncio.Runner(loop_factory=ManualLoop) as runner:
        return runner.run(main)
