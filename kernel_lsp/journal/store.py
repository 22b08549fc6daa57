"""The journal: what was offered, measured and done, on this machine, or where its user's team
keeps it.

    journal = Journal.open()            the user's data folder; database.py says what may go wrong
    journal = Journal.open("postgresql+psycopg://host/name")            a team's; see remote.py
    journal.record(events); journal.save(proposal, folder=…, path=…, keep_source=…)
    journal.sessions(); journal.session(id); journal.proposals(…); journal.dismissals(folder)
    journal.save_tracker(tracker.export()); Tracker.restore(journal.tracker_state(folder))
    journal.forget(…); journal.problems; journal.close()

Writes never raise for a disk that refuses; `problems` says so and the rows wait in memory. The
same event, recorded twice, is stored once. Not covered: sending anything to a place that the user
did not name."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from kernel_lsp import __version__, wire
from kernel_lsp.config import default_data_dir
from kernel_lsp.errors import JournalError, TeamError
from kernel_lsp.journal import converting, forgetting, privacy
from kernel_lsp.journal.converting import REFERENCE, StoredProposal
from kernel_lsp.journal.database import Database
from kernel_lsp.journal.forgetting import Forgotten
from kernel_lsp.journal.models import EventRow, ProposalRow, SessionRow, SourceRow, TrackerRow
from kernel_lsp.journal.remote import RemoteDatabase, is_address
from kernel_lsp.journal.rows import insert as _insert
from kernel_lsp.journal.tracker import CHANGED, FORGETTABLE, MAX_TRACKED, STATE_VERSION, Dismissal
from kernel_lsp.membership import read_membership
from kernel_lsp.records import SCHEMA_VERSION, Event, EventKind, Json, Proposal, SessionSummary

FILE_NAME = "journal.db"
ADDRESS = "KERNEL_LSP_JOURNAL"
"""Environment variable that names a team's PostgreSQL: ``postgresql+psycopg://host/name``;
passwords belong into ~/.pgpass. No setting, because a cloned repository must not be able to choose
where a journal goes."""


class Journal:
    """See the top of the file. For one thread at a time; any number of processes."""

    def __init__(self, database: Database | RemoteDatabase) -> None:
        self._database = database
        self._sessions: dict[tuple[str | None, str | None], Json] = {}

    @classmethod
    def open(cls, place: Path | str | None = None, *, data_dir: Path | None = None) -> Journal:
        """The journal at ``place``: a file, or the address of a PostgreSQL database. By default
        what the environment variable KERNEL_LSP_JOURNAL names, else the database of the team that
        the user has joined, else the file in ``data_dir``, which is KERNEL_LSP_DATA_DIR or the
        user's data folder.

        Raises JournalError for a journal of a newer kernel-lsp, an address that cannot be read,
        and a missing driver; a disk or server that is away only delays what is written
        (`problems`)."""
        folder = data_dir or default_path().parent
        place = place or os.environ.get(ADDRESS) or _of_team(folder) or folder / FILE_NAME
        if is_address(str(place)):
            return cls(RemoteDatabase(str(place), folder))
        return cls(Database(Path(place)))

    @property
    def problems(self) -> tuple[JournalError, ...]:
        """What went wrong since it was opened, each said once."""
        return tuple(self._database.problems)

    @property
    def unread(self) -> JournalError | None:
        """Why reads know nothing of what was stored before; None: they do."""
        return self._database.unread

    @property
    def path(self) -> Path:
        """The journal's file; of a team's the one in which batches wait."""
        return self._database.path

    def _key(self, folder: str | None) -> str | None:
        """Of a workspace root; in a team's journal also whose it is."""
        owner, key = self._database.owner, privacy.folder_key(folder)
        return key if owner is None else f"{owner}:{key or ''}"

    def close(self) -> None:
        """End the sessions that were begun here and write what still waits."""
        if self._sessions:
            mine, now = list(self._sessions.values()), time.time()
            self._database.write(lambda session: _end(session, mine, now))
        self._database.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- writing -------------------------------------------------------------------------

    def begin(self, client: str | None, folder: str | None) -> str:
        """The id of this process's session with that editor in that folder; begun when it is
        new."""
        key = (client, self._key(folder))
        if key not in self._sessions:
            row = {
                "id": uuid.uuid4().hex[:12],
                "client": client,
                "folder": key[1],
                "version": __version__,
            }
            begun = self._sessions[key] = row | {"started": time.time(), "ended": None}
            self._database.write(lambda s: _insert(s, SessionRow, [begun]))
        return str(self._sessions[key]["id"])

    def record(self, events: Iterable[Event]) -> None:
        """Write a batch: all of it or, after a crash, none of it."""
        parts = [converting.take_change(event) for event in events]
        rows = [
            converting.event_row(
                event, self.begin(event.client, event.folder), self._key(event.folder)
            )
            for event, _ in parts
        ]
        changes = [
            {**{key: row[key] for key in ("proposal", "folder", "path")}, "field": CHANGED}
            | {"text": text}
            for row, (_, text) in zip(rows, parts, strict=True)
            if text is not None
        ]
        used = {row["session"] for row in rows}
        sessions = [row for row in self._sessions.values() if row["id"] in used]

        def write(session: Session) -> None:
            # The file may have been replaced since they began.
            _insert(session, SessionRow, sessions)
            _insert(session, EventRow, rows, unique=["digest"])
            for change in changes:  # the newest counts
                session.execute(delete(SourceRow).where(*converting.change_of(change)))
                _insert(session, SourceRow, [change])

        if rows:
            self._database.write(write)

    def save(
        self,
        proposal: Proposal,
        *,
        folder: str,
        path: str,
        keep_source: bool,
        client: str | None = None,
        training: bool = False,
        reference: str | None = None,
    ) -> None:
        """Store a judged proposal; saving it again replaces it. Source text only if
        ``keep_source``, also of the program before (``reference``). ``training``: its user allows
        to learn from it."""
        row = converting.proposal_row(
            proposal, folder, path, keep_source, self.begin(client, folder)
        )
        row |= {"training": training, "folder": self._key(folder)}
        texts, key = row.pop("texts"), converting.key_of(row)
        if reference is not None:
            texts[REFERENCE] = reference  # written below with the others, or not
        sources = [
            {
                "proposal": row["id"],
                "folder": row["folder"],
                "path": row["path"],
                "field": f,
                "text": t,
            }
            for f, t in texts.items()
        ]

        def write(session: Session) -> None:
            session.execute(delete(ProposalRow).where(*key))
            mine = converting.sources_of(row)  # measured again, what a person changed stays
            session.execute(delete(SourceRow).where(*mine, SourceRow.field != CHANGED))
            _insert(session, ProposalRow, [row])
            if keep_source:
                _insert(session, SourceRow, sources)

        self._database.write(write)

    def save_tracker(self, state: Json) -> None:
        """Keep a tracker's export; of two editors' states of one proposal the later one stays."""
        kept = [item for item in state["proposals"] if item["phase"] not in FORGETTABLE]
        rows = [
            converting.tracker_row(i, str(self._key(i["offer"]["identity"]["folder"])))
            for i in kept
        ]

        def write(session: Session) -> None:
            known = converting.known_since(session, {row["folder"] for row in rows})
            for row in rows:
                since = known.get((row["folder"], row["proposal"], row["target"]))
                if since is None or row["since"] > since:  # every transition has a time of its own
                    session.merge(TrackerRow(**row))

        self._database.write(write)

    # --- reading -------------------------------------------------------------------------

    def tracker_state(self, folder: str) -> Json:
        """What `Tracker.restore` takes, for one workspace root."""
        query = select(TrackerRow.state).where(TrackerRow.folder == self._key(folder))
        latest = query.order_by(TrackerRow.since.desc()).limit(MAX_TRACKED)
        states = reversed(self._database.read(lambda s: list(s.scalars(latest))))
        return {
            "version": STATE_VERSION,
            "proposals": converting.readable(states, lambda s: converting.with_folder(s, folder)),
        }

    def dismissals(self, folder: str) -> tuple[Dismissal, ...]:
        """Every "no" of the user in this folder, for `tracker.silenced`."""
        query = select(EventRow).where(
            EventRow.kind == EventKind.DISMISSED,
            EventRow.folder == self._key(folder),
        )
        rows = self._database.read(lambda s: list(s.scalars(query.order_by(EventRow.time))))
        return tuple(converting.readable(rows, converting.dismissal))

    def proposals(
        self, *, folder: str | None = None, session: str | None = None, proposal: str | None = None
    ) -> tuple[StoredProposal, ...]:
        """Stored proposals, oldest first; all of them or those that fit."""
        query = select(ProposalRow).order_by(ProposalRow.saved)
        if folder is not None:
            query = query.where(ProposalRow.folder == self._key(folder))
        if session is not None:
            query = query.where(ProposalRow.session == session)
        if proposal is not None:
            query = query.where(ProposalRow.id == proposal)

        def read(database: Session) -> list[StoredProposal]:
            rows = database.scalars(query)
            return converting.readable(
                rows, lambda row: converting.to_stored(row, converting.texts(database, row))
            )

        return tuple(self._database.read(read))

    def sessions(self, *, folder: str | None = None) -> tuple[SessionSummary, ...]:
        """All sessions, newest first, with their numbers of events."""
        query = select(SessionRow).order_by(SessionRow.started.desc(), SessionRow.id)
        if folder is not None:
            query = query.where(SessionRow.folder == self._key(folder))
        counts = select(EventRow.session, EventRow.kind, func.count()).group_by(
            EventRow.session, EventRow.kind
        )

        def read(database: Session) -> list[SessionSummary]:
            numbers: dict[str, dict[str, int]] = {}
            for session, kind, number in database.execute(counts):
                numbers.setdefault(session, {})[kind] = number
            return [
                converting.summary(row, numbers.get(row.id, {})) for row in database.scalars(query)
            ]

        return tuple(self._database.read(read))

    def session(self, identifier: str) -> tuple[SessionSummary, tuple[Event, ...]]:
        """One session (a unique beginning of its id is enough) and its events, oldest first."""
        known = self.sessions()
        found = [summary for summary in known if summary.id == identifier] or [
            summary for summary in known if summary.id.startswith(identifier)
        ]
        if len(found) != 1:
            count = "no session" if not found else f"{len(found)} sessions"
            raise JournalError(
                f"{count} with id {identifier!r}", "`kernel-lsp sessions list` shows them"
            )
        return found[0], self._events_of(found[0].id)

    def _events_of(self, session: str) -> tuple[Event, ...]:
        query = select(EventRow).where(EventRow.session == session)
        rows = self._database.read(
            lambda s: list(s.scalars(query.order_by(EventRow.time, EventRow.id)))
        )
        return tuple(converting.readable(rows, converting.event))

    def events(self, *kinds: EventKind) -> tuple[Event, ...]:
        """The events of all sessions, oldest first; all of them, or those of these kinds."""
        query = select(EventRow).order_by(EventRow.time, EventRow.id)
        if kinds:
            query = query.where(EventRow.kind.in_([kind.value for kind in kinds]))
        return tuple(
            self._database.read(lambda s: converting.readable(s.scalars(query), converting.event))
        )

    def export(self) -> Json:
        """Everything, as JSON values."""
        sessions = self.sessions()
        return {
            "schema_version": SCHEMA_VERSION,
            "sessions": [
                {**wire.to_json(s), "events": wire.to_json(self._events_of(s.id))} for s in sessions
            ],
            "proposals": wire.to_json(self.proposals()),
        }

    # --- forgetting ----------------------------------------------------------------------

    def forget(
        self,
        *,
        older_than: float | None = None,
        session: str | None = None,
        folder: str | None = None,
        everything: bool = False,
    ) -> Forgotten:
        """Remove rows and their traces in the file. ``older_than`` is POSIX seconds; conditions
        add up.

        ``everything`` also removes damaged journals that were set aside. Of a team's journal only
        this user's own rows are removed. Raises JournalError when nothing is named, when the
        session does not exist, or when the file cannot be written."""
        if not everything and older_than is None and session is None and folder is None:
            raise JournalError(
                "nothing was named to be forgotten", "name a session, folder or age, or say --all"
            )
        chosen = self.session(session)[0].id if session is not None else None
        if not self._database.flush():
            raise JournalError(
                f"{self.path} cannot be written", "make it writable, then forget again"
            )
        key, owner = None if folder is None else self._key(folder), self._database.owner
        removed: list[Forgotten] = []
        self._database.write(
            lambda s: removed.append(forgetting.forget(s, older_than, chosen, key, owner))
        )
        if not removed:
            raise JournalError(
                f"{self.path} cannot be written", "make it writable, then forget again"
            )
        if everything:
            for path in self.path.parent.glob(f"{self.path.stem}.corrupt-*"):
                path.unlink(missing_ok=True)
        known = {summary.id for summary in self.sessions()}
        self._sessions = {key: row for key, row in self._sessions.items() if row["id"] in known}
        self._database.erase_traces()
        return removed[0]


def _of_team(data_dir: Path) -> str | None:
    """Address of the team's database; None: in no team. Raises JournalError."""
    try:
        joined = read_membership(data_dir)
    except TeamError as error:
        raise JournalError(error.cause, error.remedy) from error
    return joined.address if joined else None


def default_path() -> Path:
    """Where this user's journal lies when no setting says it."""
    return Path(os.environ.get("KERNEL_LSP_DATA_DIR") or default_data_dir()) / FILE_NAME


def _end(session: Session, sessions: list[Json], now: float) -> None:
    """Also where the beginning was written to another place: the spool, or a file that was
    replaced."""
    _insert(session, SessionRow, sessions)
    mine = [row["id"] for row in sessions]
    session.execute(update(SessionRow).where(SessionRow.id.in_(mine)).values(ended=now))
