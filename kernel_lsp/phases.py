"""Where a job's time goes: named stretches of the monotonic clock, collected for whoever asked for
them.

    with phases.collected() as found:
        await pipeline.optimize(job)
    found.seconds()                      # {"capture": 1.2, "judge.trial": 3.4, ...}

`phase` costs two readings of a clock, and nothing where nobody collects. What is collected travels
with the context, so tasks that a job starts count for it and those of other jobs do not. Not
covered: CPU time, and work in children between two questions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

_collecting: ContextVar[Phases | None] = ContextVar("_collecting", default=None)


@dataclass
class Phases:
    """Stretches by name; those of one name may overlap."""

    spans: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """(begin, end) in seconds of the monotonic clock."""

    def seconds(self) -> dict[str, float]:
        """Wall time per name in the order in which they began: an instant in which two stretches
        of one name were under way counts once. Different names overlap, so the sum means
        nothing."""
        began = sorted(self.spans, key=lambda name: min(self.spans[name]))
        return {name: round(_union(self.spans[name]), 2) for name in began}


@contextlib.contextmanager
def collect_phases() -> Iterator[Phases]:
    """What is measured inside the block, also by tasks that it starts."""
    found = Phases()
    before = _collecting.set(found)
    try:
        yield found
    finally:
        _collecting.reset(before)


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """The time that the block takes, under a name."""
    begin = time.monotonic()
    try:
        yield
    finally:
        note(name, begin)


def note(name: str, begin: float) -> None:
    """A stretch that began then and ends now."""
    found = _collecting.get()
    if found is not None:
        found.spans.setdefault(name, []).append((begin, time.monotonic()))


def _union(spans: list[tuple[float, float]]) -> float:
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
