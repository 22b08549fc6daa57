"""What was gained in a folder in the last seven days, from the journal of its sessions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from kernel_lsp.journal.store import Journal
from kernel_lsp.records import Event, EventKind, WeekGain, WeekSummary

DAYS = 7
TAKEN_BACK = frozenset({EventKind.REVERTED, EventKind.DELETED})


def summarize_week(journal: Journal, folder: str, now: datetime) -> WeekSummary:
    """What the folder's journal has of the last seven days. ``now``: in UTC."""
    since = (now - timedelta(days=DAYS)).isoformat()
    events = [
        event
        for session in journal.sessions(folder=folder)
        for event in journal.session(session.id)[1]
        if event.time >= since
    ]

    def count(*kinds: EventKind) -> int:
        return len({event.proposal for event in events if event.kind in kinds})

    return WeekSummary(
        offered=count(EventKind.OFFERED),
        accepted=count(EventKind.ACCEPTED),
        taken_back=count(*TAKEN_BACK),
        dismissed=count(EventKind.DISMISSED),
        gains=_gains(journal, folder, events),
    )


def _gains(journal: Journal, folder: str, events: Sequence[Event]) -> tuple[WeekGain, ...]:
    """Of what was accepted and not taken back after that."""
    last = {
        event.proposal: event
        for event in sorted(events, key=lambda event: event.time)
        if event.kind is EventKind.ACCEPTED or event.kind in TAKEN_BACK
    }
    speedups = {
        stored.proposal.id: stored.proposal.evaluation.speedup
        for stored in journal.proposals(folder=folder)
    }
    gains = [
        WeekGain(
            qualname=event.qualname or "",
            path=event.path or "",
            speedup=found.mid if (found := speedups.get(proposal)) else None,
        )
        for proposal, event in last.items()
        if event.kind is EventKind.ACCEPTED
    ]
    return tuple(sorted(gains, key=lambda gain: -(gain.speedup or 0.0)))
