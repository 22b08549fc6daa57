"""One PostgreSQL that a whole team's journals are written to, and what happens while it is away.

Covered: many writers at once (a batch is a transaction; a deadlock or a race for one row is tried
again); a server that is away, restarts, is full or refuses: batches then go to the *spool*, a
SQLite file on this machine that survives our own end too, and are delivered with the next write
that gets through. Rows have names of their own, so that delivering one twice changes nothing. Each
event is one message in `problems`. Everybody's rows stand apart by their `owner`, a random id that
lies beside the spool: what one person dismisses, forgets or goes on with is never another's; the
server lets no other role write under it (row_security.py). Not covered: erasing traces from the
server's own files (PostgreSQL's VACUUM and backups are its administrator's), and who answers at an
address (say ``?sslmode=verify-full``)."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, InterfaceError, NoSuchModuleError
from sqlalchemy.orm import Session

from kernel_lsp import origins
from kernel_lsp.errors import JournalError
from kernel_lsp.journal import row_security, rows
from kernel_lsp.journal.database import Database, Unusable, Work
from kernel_lsp.journal.migrations import migrate

T = TypeVar("T")

SPOOL, OWNER = "journal-spool.db", "journal-owner"
CONNECT_S = 5
RETRY_S = 30.0
"""How long to leave a server alone that did not answer: a write must not wait for it every time."""
ATTEMPTS = 6
LOCK = 0x6B6C7370
"""Of PostgreSQL's advisory locks, the one for changing our schema."""
DRIVER = "postgresql+psycopg"

_AGAIN = {"40001", "40P01", "55P03", "23505"}
"""Serialization failure, deadlock, lock not available, somebody else was first: another try may
do."""
_DEFECTS = ("22", "42P", "42601", "42703", "42804")
"""Values or statements that this server will never take: waiting does not help."""


class RemoteDatabase:
    """See the top of the file. The same methods as `Database`; for one thread at a time."""

    def __init__(self, url: str, folder: Path) -> None:
        """``folder`` is the user's data folder. Raises JournalError for an address that cannot be
        one, a missing driver, and a schema that is newer than ours."""
        self._engine = open_engine(url)
        self.name = make_url(url).render_as_string(hide_password=True)
        self.path = folder / SPOOL
        self.owner = owner_of(folder)
        self.problems: list[JournalError] = []
        self.unread: JournalError | None = None
        """Nothing: reading raises while the server is away."""
        self._spool: Database | None = None
        self._not_before = 0.0
        self._ready = False
        self._stuck = False
        """Something in the spool is refused for good; it must not hold up what comes later."""
        try:
            self.flush()
        except JournalError:
            self._engine.dispose()
            raise

    def write(self, work: Work) -> None:
        """Run it in a transaction of its own on the server, or in the spool until the server is
        back."""
        if self.flush():
            try:
                self._attempt(work)
                return
            except Unusable as error:
                self._away(error)
        self._spooled().write(work)

    def flush(self) -> bool:
        """Deliver what waits; False while the server is away."""
        if time.monotonic() < self._not_before:
            return False
        try:
            self._prepare()
            self._deliver()
            return True
        except Unusable as error:
            self._away(error)
            return False

    def read(self, query: Callable[[Session], T]) -> T:
        """Run a query. JournalError while the server is away: what waits here is only a part."""
        if not self.flush():
            raise JournalError(f"{self.name} does not answer", _REMEDY)
        try:
            return self._attempt(query)
        except Unusable as error:
            self._away(error)
            raise JournalError(str(error), _REMEDY) from error

    def erase_traces(self) -> None:
        """Nothing: see the top of the file."""

    def close(self) -> None:
        """Deliver what waits, if that is possible now; otherwise it stays in the spool."""
        self._not_before = 0.0
        left = 0 if self.flush() else self._waiting()
        if left:
            cause = f"{left} rows wait in {self.path}, because {self.name} does not answer"
            self.problems.append(
                JournalError(cause, "nothing is lost: the next start delivers them")
            )
        if self._spool is not None:
            self.problems += self._spool.problems
            self._spool.close()
        self._engine.dispose()

    # --- the server ------------------------------------------------------------------------

    def _prepare(self) -> None:
        if not self._ready:
            self._attempt(lambda session: _migrate(session.connection(), self.owner))
            self._ready = True

    def _attempt(self, work: Callable[[Session], T]) -> T:
        """Run it on the server. Raises Unusable or JournalError."""
        for number in range(ATTEMPTS):
            try:
                with Session(self._engine, expire_on_commit=False) as session, session.begin():
                    return work(session)
            except (DBAPIError, InterfaceError) as error:
                state = getattr(error.orig, "sqlstate", None) or ""
                if state.startswith(_DEFECTS) or isinstance(error, DataError):
                    raise JournalError(f"the journal failed: {_line(error)}", _DEFECT) from error
                if state not in _AGAIN:
                    raise Unusable(f"{self.name} cannot be used: {_line(error)}") from error
                # Apart from each other.
                time.sleep(0.02 * 2**number * (1 + secrets.randbelow(100) / 100))
        raise Unusable(f"{self.name} is kept busy by other writers")

    def _away(self, error: Unusable) -> None:
        self._not_before = time.monotonic() + RETRY_S
        cause = f"{error}; events wait in {self.path} until it answers"
        if not any(known.cause == cause for known in self.problems):
            self.problems.append(JournalError(cause, _REMEDY))

    # --- the spool -------------------------------------------------------------------------

    def _spooled(self) -> Database:
        if self._spool is None:
            self._spool = Database(self.path)
        return self._spool

    def _deliver(self) -> None:
        """What waits, in one transaction; then it leaves the spool. Raises Unusable or
        JournalError."""
        if self._spool is None and not self.path.exists():
            return
        waiting = self._spooled().read(rows.everything)
        if self._stuck or not any(waiting.values()):
            return
        try:
            self._attempt(lambda session: rows.put(session, waiting))
        except JournalError as error:
            self._stuck = True
            cause = f"what waits in {self.path} cannot be delivered: {error.cause}"
            self.problems.append(
                JournalError(cause, "keep that file; later events are not held up")
            )
            return
        self._spooled().write(lambda session: rows.take_out(session, waiting))

    def _waiting(self) -> int:
        if self._spool is None and not self.path.exists():
            return 0
        return sum(map(len, self._spooled().read(rows.everything).values()))


_REMEDY = "see that the server runs and lets this user write; KERNEL_LSP_JOURNAL names it"
_DEFECT = "this is a defect of kernel-lsp; please report it"


def is_address(place: str) -> bool:
    """Whether the journal is a database's URL rather than a file's path."""
    return "://" in place


def open_engine(url: str) -> Engine:
    """An engine for the team's PostgreSQL, encrypted unless it is on this machine; connects when it
    is first used. Raises JournalError for another database."""
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() != "postgresql":
            raise JournalError(
                f"a journal cannot be kept in {parsed.drivername}", f"write {DRIVER}://HOST/NAME"
            )
        parsed = parsed.set(drivername=DRIVER)
        connect = {"connect_timeout": CONNECT_S, "application_name": "kernel-lsp"}
        return create_engine(
            parsed,
            pool_pre_ping=True,
            pool_size=1,
            max_overflow=1,
            connect_args={**connect, **encryption(parsed)},
        )
    except (ArgumentError, NoSuchModuleError) as error:
        raise JournalError(
            f"the journal's address cannot be read: {error}", f"write {DRIVER}://HOST/NAME"
        ) from error
    except ImportError as error:
        raise JournalError(
            "PostgreSQL's driver is not installed",
            f"{sys.executable} -m pip install 'psycopg[binary]'",
        ) from error


def encryption(url: URL) -> dict[str, str]:
    """What to connect with so that nothing goes to another machine in the clear, which libpq's
    default does where the server offers no TLS. Who wants that says ``?sslmode=disable``."""
    if "sslmode" in url.query or {"PGSSLMODE", "PGSERVICE"} & os.environ.keys():
        return {}
    named = url.query.get("host", url.host or os.environ.get("PGHOST", ""))
    hosts = named.split(",") if isinstance(named, str) else [*named]
    return {} if all(map(_is_here, hosts)) else {"sslmode": "require"}


def _is_here(host: str) -> bool:
    """This machine: no name (its own socket), a socket's path, or a loopback address."""
    if not host or host.startswith(("/", "@")):
        return True
    return not origins.is_remote(f"{DRIVER}://{f'[{host}]' if host.count(':') > 1 else host}")


def _migrate(connection: Connection, owner: str) -> None:
    """One writer at a time makes or changes the tables; the others wait for it here."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
    migrate(connection)
    row_security.claim(connection, owner)


def owner_of(folder: Path) -> str:
    """This user's id on this machine, made once."""
    path = folder / OWNER
    made = secrets.token_hex(6)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(made)
        return made
    except FileExistsError:
        known = path.read_text(encoding="ascii", errors="replace").strip()
        if known.isalnum():
            return known
        raise JournalError(f"{path} holds no id", "remove it, and a new one is made") from None
    except OSError as error:
        raise JournalError(
            f"{path} cannot be written: {error.strerror}", "set data_dir to another folder"
        ) from error


def _line(error: Any) -> str:
    """The first line of what the driver says; later ones may hold values."""
    return (str(error.orig).splitlines() or [type(error.orig).__name__])[0]
