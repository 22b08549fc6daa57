"""What the journal stores as rows, and what its readers get back: events, proposals, trackers,
sessions."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from kernel_lsp import __version__, wire
from kernel_lsp.journal import privacy
from kernel_lsp.journal.models import EventRow, ProposalRow, SessionRow, SourceRow, TrackerRow
from kernel_lsp.journal.tracker import CHANGED, Dismissal
from kernel_lsp.records import Event, EventKind, Json, Proposal, SessionSummary

R = TypeVar("R")
T = TypeVar("T")
REFERENCE = "reference"
"""`SourceRow.field` of the program that a proposal rewrites."""


def take_change(event: Event) -> tuple[Event, str | None]:
    """An event without the text of a change, and that text: it is kept apart, as source is."""
    text = event.data.get(CHANGED)
    if not isinstance(text, str):
        return event, None
    data = {key: value for key, value in event.data.items() if key != CHANGED}
    return replace(event, data=data), text


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredProposal:
    """A proposal as the journal has it."""

    proposal: Proposal
    """Without kept source its candidate's program is empty and its edit None."""
    folder: str
    """Key of the workspace root, see `privacy.folder_key`."""
    path: str
    keep_source: bool
    hashes: dict[str, str]
    """Source field -> SHA-256, also when the text was not kept."""
    training: bool | None = None
    """Whether its user allowed to learn from it; None: nobody asked."""
    reference: str | None = None
    """The program before; None: not kept."""


def event_row(event: Event, session: str, folder: str | None) -> Json:
    """The event as a row: secrets are taken out of its data, its path is relative to the folder."""
    return {
        "digest": hashlib.sha256(wire.dumps(event).encode()).hexdigest(),
        "session": session,
        "kind": event.kind.value,
        "proposal": event.proposal,
        "time": _seconds(event.time),
        "folder": folder,
        "path": privacy.relative_path(event.path, event.folder),
        "qualname": event.qualname,
        "client": event.client,
        "data": privacy.redact(wire.to_json(event.data)),
    }


UNREADABLE = (
    TypeError,
    ValueError,
    KeyError,
    AttributeError,
    ArithmeticError,
    OSError,
    RecursionError,
)
"""What comes of a row that another version, or anybody who may write to a team's journal, has
written."""


def readable(rows: Iterable[R], convert: Callable[[R], T]) -> list[T]:
    """Rows as records. One of a kind or shape that is unknown here stays where it is and is passed
    over."""
    found = []
    for row in rows:
        with contextlib.suppress(*UNREADABLE):
            found.append(convert(row))
    return found


def event(row: EventRow) -> Event:
    """The event that a row holds; its data is {} where the row's is no object. Raises ValueError
    where the row's cannot be read."""
    if row.data is None:
        raise ValueError("data that cannot be read")
    return Event(
        kind=EventKind(row.kind),
        proposal=row.proposal,
        time=_iso(row.time),
        folder=row.folder,
        path=row.path,
        qualname=row.qualname,
        client=row.client,
        data=row.data if isinstance(row.data, dict) else {},
    )


def proposal_row(
    proposal: Proposal, folder: str, path: str, keep_source: bool, session: str
) -> Json:
    """The proposal as a row, with its searchable numbers in columns of their own, and its program
    texts apart under "texts"; ``keep_source``: whether the rest may hold text of programs."""
    body = wire.to_json(proposal)
    candidate, texts = privacy.take_source(body["candidate"])
    body = privacy.redact({**body, "candidate": candidate}, keep_source=keep_source)
    evaluation, speedup = proposal.evaluation, proposal.evaluation.speedup
    return {
        "id": proposal.id,
        "path": privacy.relative_path(path, folder),
        "session": session,
        "saved": time.time(),
        "qualname": proposal.qualname,
        "verdict": proposal.verdict.value,
        "status": evaluation.status.value,
        "device": evaluation.device,
        "device_name": evaluation.device_name,
        "speedup_low": speedup.low if speedup else None,
        "speedup_mid": speedup.mid if speedup else None,
        "speedup_high": speedup.high if speedup else None,
        "skills": list(dict.fromkeys(step.skill for step in proposal.candidate.steps)),
        "version": __version__,
        "keep_source": keep_source,
        "body": body,
        "texts": texts,
    }


def key_of(row: Json) -> list[ColumnElement[bool]]:
    """The condition that finds a proposal's row: its id, folder and path."""
    columns = ((ProposalRow.id, "id"), (ProposalRow.folder, "folder"), (ProposalRow.path, "path"))
    return [column == row[name] for column, name in columns]


def sources_of(row: Json) -> list[ColumnElement[bool]]:
    """The condition that finds all texts of a proposal."""
    columns = ((SourceRow.proposal, "id"), (SourceRow.folder, "folder"), (SourceRow.path, "path"))
    return [column == row[name] for column, name in columns]


def change_of(change: Json) -> list[ColumnElement[bool]]:
    """The condition that finds one field's text of a proposal."""
    columns = (
        (SourceRow.proposal, "proposal"),
        (SourceRow.folder, "folder"),
        (SourceRow.path, "path"),
        (SourceRow.field, "field"),
    )
    return [column == change[name] for column, name in columns]


def texts(session: Session, row: ProposalRow) -> dict[str, str]:
    """Field -> text, of the program text that is stored for a proposal; {} where none was kept."""
    key = sources_of({"id": row.id, "folder": row.folder, "path": row.path})
    found = session.execute(select(SourceRow.field, SourceRow.text).where(*key))
    return {row.field: row.text for row in found}


def to_stored(row: ProposalRow, texts: dict[str, str]) -> StoredProposal:
    """The proposal of a row with its texts put back; hashes stand where a text was not kept."""
    candidate = row.body["candidate"]
    hashes = {"program": candidate["program"]}
    if candidate.get("edit"):
        hashes |= {f"edit.{name}": candidate["edit"][name] for name in ("definitions", "target")}
    body = {**row.body, "candidate": privacy.put_source(candidate, texts)}
    return StoredProposal(
        proposal=wire.from_json(Proposal, body),
        folder=row.folder,
        path=row.path,
        keep_source=row.keep_source,
        hashes=hashes,
        training=row.training,
        reference=texts.get(REFERENCE),
    )


def tracker_row(item: Json, key: str) -> Json:
    """One offer that is still watched as a row, so that another process can go on with it."""
    identity = item["offer"]["identity"]
    return {
        "folder": key,
        "proposal": item["offer"]["proposal"],
        "target": f"{identity['path']}::{identity['qualname']}",
        "since": item["since"],
        "state": with_folder(item, key),
    }


def known_since(session: Session, folders: set[str]) -> dict[tuple[str, str, str], float]:
    """(folder, proposal, target) -> when the journal says it was offered, of all offers that are
    watched in these folders."""
    columns = (TrackerRow.folder, TrackerRow.proposal, TrackerRow.target, TrackerRow.since)
    rows = session.execute(select(*columns).where(TrackerRow.folder.in_(folders)))
    return {(folder, proposal, target): since for folder, proposal, target, since in rows}


def with_folder(item: Json, folder: str) -> Json:
    """The offer with ``folder`` as the folder of its identity."""
    offer = item["offer"]
    return {**item, "offer": {**offer, "identity": {**offer["identity"], "folder": folder}}}


def dismissal(row: EventRow) -> Dismissal:
    """The dismissal that an event's row holds."""
    data = row.data
    return Dismissal(
        scope=data.get("scope", "proposal"),
        reason=data.get("reason", ""),
        time=row.time,
        path=row.path,
        fingerprint=data.get("fingerprint"),
        skills=tuple(data.get("skills") or ()),
        speedup=data.get("speedup"),
    )


def summary(row: SessionRow, counts: dict[str, int]) -> SessionSummary:
    """One session's row and how many events of each kind it has."""
    return SessionSummary(
        id=row.id,
        client=row.client,
        folder=row.folder,
        version=row.version,
        started=_moment(row.started),
        ended=None if row.ended is None else _moment(row.ended),
        counts=dict(sorted(counts.items())),
    )


def _seconds(iso: str) -> float:
    moment = datetime.fromisoformat(iso)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _moment(seconds: float) -> str:
    """A session stays in the list whatever its row says of time: its events may be good."""
    try:
        return _iso(seconds)
    except UNREADABLE:
        return _iso(0.0)


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
