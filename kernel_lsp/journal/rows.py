"""Rows of the journal from one database into another: from the spool to a server that is back.

Every row has a name that is the same wherever it lies, so a delivery may be repeated: events by
their digest, the others by their keys; of two versions of one row the later one stays."""

from __future__ import annotations

from typing import Any, TypeAlias

from sqlalchemy import delete, inspect, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from kernel_lsp.journal.models import EventRow, ProposalRow, SessionRow, SourceRow, TrackerRow
from kernel_lsp.records import Json

TABLES = (SessionRow, EventRow, ProposalRow, SourceRow, TrackerRow)
"""In an order in which nothing refers to what comes later."""
RowsByTable: TypeAlias = dict[type, list[Json]]


def insert(session: Session, table: Any, rows: list[Json], unique: list[str] | None = None) -> None:
    """Insert; a row that is there already is left alone (work may be repeated after a failure)."""
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    if rows:
        session.execute(dialect.insert(table).on_conflict_do_nothing(index_elements=unique), rows)


def everything(session: Session) -> RowsByTable:
    """All rows of a database, as values."""
    return {table: [_values(row) for row in session.scalars(select(table))] for table in TABLES}


def put(session: Session, rows: RowsByTable) -> None:
    """Write them. A session that has ended since stays ended."""
    insert(session, SessionRow, rows[SessionRow])
    for row in rows[SessionRow]:
        if row["ended"] is not None:
            session.execute(
                update(SessionRow).where(SessionRow.id == row["id"]).values(ended=row["ended"])
            )
    # Sorted, so that two writers who deliver the same events ask for the rows' locks in one order.
    events = [{k: v for k, v in row.items() if k != "id"} for row in rows[EventRow]]
    insert(session, EventRow, sorted(events, key=lambda row: str(row["digest"])), unique=["digest"])
    for row in rows[ProposalRow]:
        _put_proposal(session, row, rows[SourceRow])
    for row in rows[TrackerRow]:
        _put_tracker(session, row)


def take_out(session: Session, rows: RowsByTable) -> None:
    """Remove exactly these; what was written since stays. A session stays while something refers
    to it."""
    for table in (EventRow, ProposalRow, TrackerRow):
        for row in rows[table]:
            session.execute(delete(table).where(*_same(table, row)))
    drop_sources(session)
    left = select(EventRow.id).where(EventRow.session == SessionRow.id)
    gone = [row["id"] for row in rows[SessionRow]]
    session.execute(delete(SessionRow).where(SessionRow.id.in_(gone), ~left.exists()))


def drop_sources(session: Session) -> None:
    """Delete texts whose proposal is gone."""
    left = select(ProposalRow.id).where(
        ProposalRow.id == SourceRow.proposal,
        ProposalRow.folder == SourceRow.folder,
        ProposalRow.path == SourceRow.path,
    )
    session.execute(delete(SourceRow).where(~left.exists()))


def _put_proposal(session: Session, row: Json, sources: list[Json]) -> None:
    key = {"proposal": row["id"], "folder": row["folder"], "path": row["path"]}
    known = session.get(ProposalRow, (row["id"], row["folder"], row["path"]))
    if known is not None and known.saved > row["saved"]:
        return
    session.merge(ProposalRow(**row))
    session.flush()
    session.execute(
        delete(SourceRow).where(*(getattr(SourceRow, name) == value for name, value in key.items()))
    )
    insert(session, SourceRow, [one for one in sources if key.items() <= one.items()])


def _put_tracker(session: Session, row: Json) -> None:
    known = session.get(TrackerRow, (row["folder"], row["proposal"], row["target"]))
    if known is None or row["since"] > known.since:
        session.merge(TrackerRow(**row))


def _values(row: Any) -> Json:
    return {column.key: getattr(row, column.key) for column in inspect(type(row)).column_attrs}


def _same(table: Any, row: Json) -> list[Any]:
    """The row itself, in the version that was read."""
    names = [column.key for column in inspect(table).primary_key]
    names += {ProposalRow: ["saved"], TrackerRow: ["since"]}.get(table, [])
    return [getattr(table, name) == row[name] for name in names]
