"""A child that is the only one of ours to run whenever a clock looks at it. No torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from kernel_lsp.evaluator.processes.sandbox import Party

Alone = Callable[[Party], AbstractAsyncContextManager[None]]
TIMED = ("baseline", "time", "burst", "replay", "profile")
"""What a party is asked that takes times."""


class Undisturbed(Party):
    """A party that is the only one to run whenever it times something."""

    def __init__(self, party: Party, alone: Alone) -> None:
        super().__init__(party.child, party.name)
        self.party, self._alone = party, alone
        self.notes = party.notes

    def alone(self) -> AbstractAsyncContextManager[None]:
        """A context in which no other child of ours runs."""
        return self._alone(self.party)

    async def ask(
        self, do: str, timeout_s: float, blobs: list[bytes] | None = None, **fields: Any
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Asks the party; alone, where the request looks at a clock."""
        async with self.alone() if do in TIMED else contextlib.nullcontext():
            return await self.party.ask(do, timeout_s, blobs, **fields)
