"""Many tasks in one process on a device that is lent for a time: while one is compiled, another is
timed.

`share` takes them side by side as long as the time lasts. A `TableRecording` is the file in which
their measurements are kept, written after each. Not covered: what is measured, several processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from kernel_lsp.files import replace_file
from kernel_lsp.records import Json

T = TypeVar("T")


async def share(
    following: Callable[[], T | None],
    work: Callable[[T], Awaitable[None]],
    at_once: int,
    end: float | None = None,
) -> bool:
    """Does the work on one item after the other, ``at_once`` of them side by side, until
    ``following`` has none. What runs at ``end`` (on the monotonic clock; None: never) is given up.
    Returns whether everything ended before."""

    async def worker() -> None:
        while (item := following()) is not None:
            await work(item)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(None if end is None else end - time.monotonic()):
            await asyncio.gather(*(worker() for _ in range(at_once)))
            return True
    return False


def until(end: float, items: Iterable[T]) -> Callable[[], T | None]:
    """One item after the other, and none after ``end``."""
    waiting = iter(items)
    return lambda: next(waiting, None) if time.monotonic() < end else None


@dataclass(kw_only=True)
class TableRecording:
    """One file in the making."""

    out: Path
    about: Json
    limit: float
    """On the monotonic clock."""
    expected_s: float
    """What a task is guessed to take when the end is near."""
    breaks: str
    """Where a line of the file ends: with the part before its first space."""
    tasks: dict[str, Json] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def late(self) -> bool:
        """Whether another task would probably not end in time."""
        return time.monotonic() + self.expected_s > self.limit

    async def enter(
        self, name: str, made: Awaitable[Json], describe: Callable[[Json], str]
    ) -> float:
        """What is made of one task, or why nothing is, in the file and in one line. Returns
        seconds."""
        start = time.monotonic()
        try:
            self.tasks[name] = await made
        except Exception as error:  # one broken task must not cost the others: device time is lent
            self.skipped[name] = f"{type(error).__name__}: {error}"[:300]
        took = time.monotonic() - start
        self.write()
        line = (
            describe(self.tasks[name]) if name in self.tasks else f"skipped, {self.skipped[name]}"
        )
        print(f"{took:5.1f} s  {name}: {line}", flush=True)
        return took

    def write(self) -> None:
        """Writes what was recorded so far, in one step."""
        text = json.dumps({**self.about, "tasks": self.tasks, "skipped": self.skipped})
        self.out.parent.mkdir(parents=True, exist_ok=True)
        replace_file(
            self.out, (text.replace(self.breaks, self.breaks.replace(" ", "\n", 1)) + "\n").encode()
        )
