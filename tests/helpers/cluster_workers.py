"""Workers for a test's cluster: what they do is written down, so that a test can count it."""

import asyncio
import os
from functools import partial
from pathlib import Path

from kernel_lsp.errors import ConfigError


class Noting:
    def __init__(self, folder: Path, device: str) -> None:
        self.folder, self.device = folder, device

    def note(self, what: str) -> None:
        with (self.folder / "notes").open("a") as stream:
            stream.write(f"{what} {os.getpid()}\n")

    async def do(self, work: str) -> str:
        self.note(f"begun {work}")
        try:
            await self._do(work)
        except asyncio.CancelledError:
            self.note(f"cancelled {work}")
            raise
        self.note(f"done {work}")
        return f"{work} on {self.device}"

    async def _do(self, work: str) -> None:
        if work == "a bug":
            raise ZeroDivisionError("division by zero")
        if work == "an error":
            raise ConfigError("this cannot be", "change it")
        if work == "deadly once" and (self.folder / "notes").read_text().count("begun deadly") == 1:
            os._exit(1)
        await asyncio.sleep(600 if work == "endless" else 0.05)

    async def close(self) -> None:
        self.note("closed")


def noting(folder: Path) -> partial[Noting]:
    return partial(Noting, folder)
