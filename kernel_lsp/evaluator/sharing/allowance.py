"""How many seconds a device was used in the last hour, shared by all processes of a user.

A small JSON file per device: [[start, seconds], …] in seconds since 1970. It is written only by
whoever holds the device's lock, in one step, so it needs no lock of its own. A damaged file counts
as empty; what cannot be written (full or read-only disk) still counts in this process. Not
covered: a turn that was ended by kill -9 is not written down."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from kernel_lsp.files import replace_file

HOUR_S = 3600.0
GRAIN_S = 60.0
"""Uses that start within a minute share an entry, so that the file stays below 61 short ones."""

Uses: TypeAlias = Sequence[tuple[float, float]]
"""(start, seconds), oldest first."""


def used_s(uses: Uses, now: float) -> float:
    """Seconds of use within the hour before ``now``."""
    return sum(_within(start, seconds, now) for start, seconds in uses)


def continues_at(uses: Uses, allowed_s: float, now: float) -> float:
    """When the use within the last hour falls to ``allowed_s``, if nothing is used until then."""
    excess = used_s(uses, now) - allowed_s
    if excess < 0:
        return now
    for start, seconds in uses:
        share = _within(start, seconds, now)
        if share > excess:
            return max(now, start + seconds - share + excess + HOUR_S)
        excess -= share
    return now + HOUR_S  # nothing is allowed at all


def _within(start: float, seconds: float, now: float) -> float:
    """A use in the future is a clock that was set back since: it does not count."""
    return max(0.0, min(start + seconds, now) - max(start, now - HOUR_S))


class DeviceLedger:
    """The uses of one device."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unsaved: list[tuple[float, float]] = []

    def uses(self) -> list[tuple[float, float]]:
        """All uses (begin, end), oldest first, unsaved ones included. Never raises."""
        try:
            rows = json.loads(self._path.read_text(encoding="utf-8"))
            known = [(float(start), float(seconds)) for start, seconds in rows]
        except (OSError, ValueError, TypeError, ArithmeticError, RecursionError):
            known = []
        sane = [use for use in known if all(map(math.isfinite, use)) and 0 <= use[1] <= HOUR_S]
        return sorted(sane + self._unsaved)

    def last_end(self) -> float:
        """When a use was last written down, in seconds since 1970; 0 when that is not known."""
        try:
            return self._path.stat().st_mtime
        except OSError:
            return 0.0

    def add(self, start: float, seconds: float) -> None:
        """Write a use down. Call with the device's lock held."""
        end = start + seconds
        kept = [use for use in self.uses() if start - HOUR_S < use[0] + use[1] and use[0] <= end]
        if kept and start - kept[-1][0] < GRAIN_S:
            kept[-1] = (kept[-1][0], kept[-1][1] + seconds)
        else:
            kept.append((start, seconds))
        try:
            replace_file(self._path, json.dumps(kept).encode())
        except OSError:
            self._unsaved.append((start, seconds))
        else:
            self._unsaved.clear()
