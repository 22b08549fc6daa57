"""Deletions from the journal: what fits all given conditions, and of a team's only its user's own
rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from kernel_lsp.journal.models import EventRow, ProposalRow, SessionRow, TrackerRow
from kernel_lsp.journal.rows import drop_sources


@dataclass(frozen=True, kw_only=True, slots=True)
class Forgotten:
    """How much `Journal.forget` removed."""

    sessions: int
    events: int
    proposals: int


def forget(
    session: Session,
    older_than: float | None,
    chosen: str | None,
    folder: str | None,
    owner: str | None,
) -> Forgotten:
    """Delete what fits all given conditions; without any, everything (of this owner)."""
    events, proposals, trackers = (
        [] if owner is None else [table.folder.startswith(f"{owner}:")]
        for table in (EventRow, ProposalRow, TrackerRow)
    )
    if older_than is not None:
        events.append(EventRow.time < older_than)
        proposals.append(ProposalRow.saved < older_than)
        trackers.append(TrackerRow.since < older_than)
    if chosen is not None:
        events.append(EventRow.session == chosen)
        proposals.append(ProposalRow.session == chosen)
    if folder is not None:
        events.append(EventRow.folder == folder)
        proposals.append(ProposalRow.folder == folder)
        trackers.append(TrackerRow.folder == folder)
    removed_events = session.execute(delete(EventRow).where(*events)).rowcount  # type: ignore[attr-defined]
    removed = session.execute(delete(ProposalRow).where(*proposals)).rowcount  # type: ignore[attr-defined]
    drop_sources(session)
    if chosen is None:
        session.execute(delete(TrackerRow).where(*trackers))
    ended = _empty_sessions(older_than, chosen, folder, owner)
    removed_sessions = session.execute(delete(SessionRow).where(*ended)).rowcount  # type: ignore[attr-defined]
    return Forgotten(sessions=removed_sessions, events=removed_events, proposals=removed)


def _empty_sessions(
    older_than: float | None, chosen: str | None, folder: str | None, owner: str | None
) -> list[Any]:
    """Sessions that fit and of which nothing is left."""
    conditions: list[Any] = [
        ~select(EventRow.id).where(EventRow.session == SessionRow.id).exists(),
        ~select(ProposalRow.id).where(ProposalRow.session == SessionRow.id).exists(),
    ]
    if owner is not None:
        conditions.append(SessionRow.folder.startswith(f"{owner}:"))
    if older_than is not None:
        conditions.append(SessionRow.started < older_than)
    if chosen is not None:
        conditions.append(SessionRow.id == chosen)
    if folder is not None:
        conditions.append(SessionRow.folder == folder)
    return conditions
