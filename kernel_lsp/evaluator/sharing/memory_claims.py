"""Memory of a device that the jobs of all kernel-lsp processes of a user have claimed.

    async with claims.claimed(need, report):
        ...                                  # judge; the claim is given back, also by a kill -9

Jobs that together need more than the device has come one after another, the earliest first, and who
waits says for whom and how much. A claim is a file that says whose it is, and a lock beside it that
the kernel releases when its owner dies. No torch. Not covered: what others use (a job that finds
too little free says so itself, gate.py), and what a job needs beyond its judge's estimate."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from kernel_lsp.evaluator.sharing.locks import is_held, try_lock

SMALL_SHARE = 1 / 64
"""Of a device: who needs less waits for nobody and claims nothing."""
MEMORY_SHARE = 0.8
"""Of a device, that all claims together may have."""
POLL_S = 0.1
GIB = 2**30


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryNeed:
    """What one job needs of a device."""

    needed_bytes: int
    total_bytes: int
    """Of the device."""
    purpose: str
    """For those who wait: what is judged."""


class Claim(NamedTuple):
    """What a job has."""

    pid: int
    bytes: int
    purpose: str

    def __str__(self) -> str:
        return f"kernel-lsp (pid {self.pid}) has {self.bytes / GIB:.1f} GiB for {self.purpose}"


class MemoryClaims:
    """The claims on one device. A folder that cannot hold files is no reason not to judge."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.asynccontextmanager
    async def claimed(self, need: MemoryNeed, say: Callable[[str], None]) -> AsyncIterator[None]:
        """Wait until there is room for it beside all others, and keep it for the block."""
        if need.needed_bytes < SMALL_SHARE * need.total_bytes:
            yield
            return
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
        mine = self._folder / f"{os.getpid()}-{secrets.token_hex(4)}.json"
        lock = FileLock(_lock_of(mine))
        try:
            await self._admit(need, say, mine, lock)
            yield
        finally:
            lock.release()
            _remove(mine)

    async def _admit(
        self, need: MemoryNeed, say: Callable[[str], None], mine: Path, lock: FileLock
    ) -> None:
        """Who waits for room keeps later ones behind it: they would take what is given back."""
        admission = FileLock(self._folder / "admission.lock")
        try:
            while not try_lock(admission):
                say(_waiting(need, self.claims()))
                await asyncio.sleep(POLL_S)
            while (others := self.claims()) and not _fits(need, others):
                say(_waiting(need, others))
                await asyncio.sleep(POLL_S)
            try_lock(lock)
            _write(mine, Claim(os.getpid(), need.needed_bytes, need.purpose))
        finally:
            admission.release()

    def claims(self) -> list[Claim]:
        """Claims whose owner lives; what the dead have left is removed."""
        found = []
        for path in self._folder.glob("*.json"):
            if not is_held(_lock_of(path)):
                _remove(path)
                continue
            with contextlib.suppress(OSError, ValueError, TypeError):
                found.append(Claim(*json.loads(path.read_text())))
        return found


def _fits(need: MemoryNeed, others: list[Claim]) -> bool:
    claimed = sum(claim.bytes for claim in others)
    return need.needed_bytes + claimed <= MEMORY_SHARE * need.total_bytes


def _waiting(need: MemoryNeed, others: list[Claim]) -> str:
    has = "; ".join(map(str, others)) or "others wait before it"
    return (
        f"waiting for memory: {need.purpose} needs about {need.needed_bytes / GIB:.1f} GiB; {has}"
    )


def _lock_of(claim: Path) -> str:
    return str(claim.with_suffix(".lock"))


def _write(path: Path, claim: Claim) -> None:
    with contextlib.suppress(OSError):  # a full disk: nobody waits for this one
        path.write_text(json.dumps(claim))


def _remove(claim: Path) -> None:
    """Its owner is dead, or done with it; another may remove it at the same time."""
    for path in (claim, Path(_lock_of(claim))):
        with contextlib.suppress(OSError):
            path.unlink()
