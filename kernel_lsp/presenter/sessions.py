"""The journal for a terminal and for scripts: sessions and events in, strings and rows out. Pure.

Times are shown as the journal has them: UTC. Strings end without a line break; the command that
prints them adds one."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.plain import on_one_line
from kernel_lsp.presenter.objects import to_versioned_json
from kernel_lsp.presenter.plurals import count
from kernel_lsp.records import Event, EventKind, SessionSummary

COLUMNS = (
    "session",
    "started (UTC)",
    "editor",
    "folder",
    "offered",
    "accepted",
    "kept",
    "reverted",
    "dismissed",
)
COUNTED = (
    EventKind.OFFERED,
    EventKind.ACCEPTED,
    EventKind.KEPT,
    EventKind.REVERTED,
    EventKind.DISMISSED,
)
EVENT_COLUMNS = ("time (UTC)", "event", "proposal", "target", "note")
MAX_CELL_CHARS = 120
"""A row with longer ones would make a table that nobody can read."""


def session_row(session: SessionSummary) -> tuple[str, ...]:
    """One line of the list, in the order of COLUMNS."""
    counts = (str(session.counts.get(kind.value, 0)) for kind in COUNTED)
    return (
        session.id,
        _moment(session.started),
        session.client or "?",
        session.folder or "-",
        *counts,
    )


def event_row(event: Event) -> tuple[str, ...]:
    """One line of a session, in the order of EVENT_COLUMNS."""
    target = (
        f"{event.path}::{event.qualname}" if event.path and event.qualname else event.path or "-"
    )
    return (_moment(event.time), event.kind.value, event.proposal[:12], target, _note(event))


def sessions_text(sessions: Sequence[SessionSummary]) -> str:
    """A table with a row per session."""
    if not sessions:
        return "the journal is empty"
    return _table([COLUMNS, *(session_row(session) for session in sessions)])


def sessions_json(sessions: Sequence[SessionSummary]) -> str:
    """The sessions as versioned JSON."""
    return to_versioned_json(sessions=list(sessions))


def session_text(session: SessionSummary, events: Sequence[Event]) -> str:
    """One session: who and when, then its events."""
    end = f"until {_moment(session.ended)}" if session.ended else "not ended"
    head = (
        f"{session.id}: {session.client or '?'} in {session.folder or '-'}, kernel-lsp "
        f"{session.version}\n"
    )
    when = f"from {_moment(session.started)} {end} (UTC)\n\n"
    table = _table([EVENT_COLUMNS, *map(event_row, events)]) if events else "no events"
    return head + when + table + _passed_over(session, events)


def _passed_over(session: SessionSummary, events: Sequence[Event]) -> str:
    """A team's newer clients write kinds of events that this one does not know."""
    unknown = sum(session.counts.values()) - len(events)
    return (
        f"\n\nnot shown: {count(unknown, 'event')} that this version cannot read"
        if unknown > 0
        else ""
    )


def session_json(session: SessionSummary, events: Sequence[Event]) -> str:
    """One session and all its events as versioned JSON."""
    return to_versioned_json(session=session, events=list(events))


def forgotten_text(
    *, sessions: int, events: int, proposals: int, files: int, recordings: int
) -> str:
    """One line that counts what was removed."""
    removed = f"removed: {events} events, {proposals} proposals, {sessions} sessions"
    removed += f", {files} files of evidence and searches" if files else ""
    return removed + (f", {count(recordings, 'recording')}" if recordings else "")


def forgotten_json(**counts: int) -> str:
    """What forgetting has removed, as versioned JSON: how many of each kind."""
    return to_versioned_json(forgotten=counts)


def _note(event: Event) -> str:
    """What makes this event worth a second look."""
    data = event.data
    if event.kind is EventKind.DISMISSED:
        return f"{data.get('reason', '?')} (scope {data.get('scope', '?')})"
    if event.kind is EventKind.REFUSED and data.get("client_said"):
        said = data["client_said"]
        applied = said.get("applied") if isinstance(said, dict) else None
        return f"the editor said applied={applied}, the code was not seen"
    if event.kind is EventKind.MODIFIED and data.get("by"):
        return f"by proposal {str(data['by'])[:12]}"
    if event.kind is EventKind.REVERTED and data.get("was_kept"):
        return "after it had been saved"
    return str(data.get("because") or data.get("verdict") or "")


def _moment(iso: str) -> str:
    return iso[:19].replace("T", " ")


def _table(rows: Sequence[Sequence[str]]) -> str:
    cells = [[_cell(text) for text in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells
    )
    return "\n".join(lines)


def _cell(text: str) -> str:
    shown = on_one_line(text)
    return shown if len(shown) <= MAX_CELL_CHARS else f"{shown[: MAX_CELL_CHARS - 1]}…"
