"""Tables of the journal, for SQLite on a user's machine and for a team's PostgreSQL.

Times are POSIX seconds in UTC: they sort and subtract alike in every database. What is derived is
not stored: dismissals are events, counts are counted. `privacy.py` says what the columns may hold.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Double, ForeignKey, Index
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from kernel_lsp.journal.columns import MAX_CHARS, MAX_NAME_CHARS, ReadableJson, ReadableText


class Base(DeclarativeBase):
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy's own convention
        dict[str, Any]: ReadableJson,
        list[Any]: ReadableJson,
        str: ReadableText(MAX_NAME_CHARS),
        float: Double,  # SQLAlchemy 2.0 and 2.1 differ in what they make of float
    }


class SchemaRow(Base):
    """One row: which migration this database is at."""

    __tablename__ = "schema_version"

    version: Mapped[int] = mapped_column(primary_key=True)


class SessionRow(Base):
    """One editor at work in one folder."""

    __tablename__ = "sessions"

    id: Mapped[str] = mapped_column(primary_key=True)
    client: Mapped[str | None]
    folder: Mapped[str | None] = mapped_column(index=True)
    version: Mapped[str]
    started: Mapped[float]
    ended: Mapped[float | None]


class EventRow(Base):
    """One `records.Event`."""

    __tablename__ = "events"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    digest: Mapped[str] = mapped_column(unique=True)
    """Of the event: a server that never saw our acknowledgment sends it twice, and it counts
    once."""
    session: Mapped[str] = mapped_column(ForeignKey("sessions.id", ondelete="CASCADE"), index=True)
    kind: Mapped[str]
    proposal: Mapped[str] = mapped_column(index=True)
    time: Mapped[float] = mapped_column(index=True)
    folder: Mapped[str | None]
    path: Mapped[str | None]
    qualname: Mapped[str | None]
    client: Mapped[str | None]
    data: Mapped[dict[str, Any]]

    __table_args__ = (Index("events_of_folder", "folder", "kind"),)


class ProposalRow(Base):
    """One `records.Proposal` in one file; source text lives in `SourceRow`, here are its hashes."""

    __tablename__ = "proposals"

    id: Mapped[str] = mapped_column(primary_key=True)
    folder: Mapped[str] = mapped_column(primary_key=True)
    path: Mapped[str] = mapped_column(primary_key=True)
    session: Mapped[str | None] = mapped_column(index=True)
    saved: Mapped[float] = mapped_column(index=True)
    qualname: Mapped[str]
    verdict: Mapped[str]
    status: Mapped[str]
    device: Mapped[str]
    device_name: Mapped[str | None]
    speedup_low: Mapped[float | None]
    speedup_mid: Mapped[float | None]
    speedup_high: Mapped[float | None]
    skills: Mapped[list[Any]]
    version: Mapped[str]
    """Of kernel-lsp; those of torch, triton and the driver are in the evaluation's environment."""
    keep_source: Mapped[bool]
    """Whether the user's setting allowed to keep source text when this was saved."""
    body: Mapped[dict[str, Any]]
    """The whole record as JSON, redacted."""
    training: Mapped[bool | None]
    """Whether the user's setting allowed to learn from it when this was saved; None: a kernel-lsp
    that did not ask wrote it. Text is only there to be learned from where ``keep_source`` says so
    too."""


class SourceRow(Base):
    """One piece of source text of a proposal; exists only when the setting allowed it."""

    __tablename__ = "sources"

    proposal: Mapped[str] = mapped_column(primary_key=True)
    folder: Mapped[str] = mapped_column(primary_key=True)
    path: Mapped[str] = mapped_column(primary_key=True)
    field: Mapped[str] = mapped_column(primary_key=True)
    """``reference``: the program before; ``program``, ``edit.definitions``, ``edit.target``: the
    rewrite."""
    text: Mapped[str] = mapped_column(ReadableText(MAX_CHARS))


class TrackerRow(Base):
    """Where one proposal stands in the acceptance state machine, so that a restart goes on."""

    __tablename__ = "tracker"

    folder: Mapped[str] = mapped_column(primary_key=True)
    proposal: Mapped[str] = mapped_column(primary_key=True)
    target: Mapped[str] = mapped_column(primary_key=True)
    """``path::qualname``."""
    since: Mapped[float]
    state: Mapped[dict[str, Any]]
