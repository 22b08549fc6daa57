"""What the journal keeps: record."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from kernel_lsp.records.common import Json


class EventKind(StrEnum):
    EVALUATED = "evaluated"
    OFFERED = "offered"
    CHOSEN = "chosen"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    KEPT = "kept"
    KEPT_COMMITTED = "kept_committed"
    MODIFIED = "modified"
    REVERTED = "reverted"
    DELETED = "deleted"
    DISMISSED = "dismissed"
    EXPIRED = "expired"
    ASKED = "asked"
    """What a job could choose from (`Offered`), for whoever learns from what became of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One line of the journal."""

    kind: EventKind
    proposal: str
    time: str
    """ISO 8601, UTC."""
    folder: str | None = None
    """Workspace root."""
    path: str | None = None
    """Relative to ``folder``."""
    qualname: str | None = None
    client: str | None = None
    """Editor name and version."""
    data: Json = field(default_factory=dict)
    """What the client said beside what was seen, the reason of a dismissal, hashes …"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionSummary:
    """One editor (or command line) at work in one folder, as the journal remembers it."""

    id: str
    client: str | None
    folder: str | None
    """Name of the workspace root and a hash of its path; the path itself is not kept."""
    version: str
    """Of kernel-lsp."""
    started: str
    """ISO 8601, UTC."""
    ended: str | None
    """None: still running, or it never said goodbye."""
    counts: dict[str, int] = field(default_factory=dict)
    """Event kind -> number of events."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WeekGain:
    """A rewrite that was accepted and is still there."""

    qualname: str
    path: str
    speedup: float | None
    """As it was measured; None: its verdict is not in the journal any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WeekSummary:
    """What became of rewrites of one folder in the last seven days; each counts once."""

    offered: int = 0
    accepted: int = 0
    taken_back: int = 0
    dismissed: int = 0
    gains: tuple[WeekGain, ...] = ()
    """The largest first."""
