"""What the engine offers behind some steps. Each chain is asked for once: looking costs a replay
of it."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp import wire
from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Site, Step, Workshop


class Offers:
    """Of one target."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._sites: dict[str, tuple[Site, ...]] = {}

    async def after(self, steps: Sequence[Step]) -> tuple[Site, ...]:
        """Nothing where the engine refuses the steps."""
        key = wire.dumps(list(steps))
        if key not in self._sites:
            try:
                self._sites[key] = await self._workshop.sites(steps)
            except RewriteError:
                self._sites[key] = ()
        return self._sites[key]
