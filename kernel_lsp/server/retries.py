"""Another try for background measurements that a busy machine has cut short: later, and a few
times.

Pauses grow, so that a target that is slow by itself costs some measurements and no more. Not
covered: what the user asked for, which says at once why it failed; a GPU that others use, which
the gate waits for itself."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

PAUSES_S = (60.0, 300.0, 1500.0)
"""Before the second, third and last try."""
LOOK_S = 30.0


def quiet() -> bool:
    """Fewer processes want to run than there are cores; taken for true where the system does not
    say."""
    return not hasattr(os, "getloadavg") or os.getloadavg()[0] < (os.cpu_count() or 1)


class Retries:
    """Of one server. ``again`` is called with the fingerprint whose time has come."""

    def __init__(
        self, spawn: Callable[[Coroutine[Any, Any, None]], object], again: Callable[[str], None]
    ) -> None:
        self._spawn, self._again = spawn, again
        self._used: Counter[str] = Counter()

    def later(self, fingerprint: str) -> float | None:
        """Seconds until it is tried again at the earliest; None: it was tried often enough."""
        number = self._used[fingerprint]
        if number == len(PAUSES_S):
            return None
        self._used[fingerprint] += 1
        self._spawn(self._wait(PAUSES_S[number], fingerprint))
        return PAUSES_S[number]

    async def _wait(self, pause_s: float, fingerprint: str) -> None:
        await asyncio.sleep(pause_s)
        while not quiet():  # noqa: ASYNC110 - nobody tells when the load of a machine falls
            await asyncio.sleep(LOOK_S)
        self._again(fingerprint)
