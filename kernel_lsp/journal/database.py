"""One SQLite file that several processes write, and what happens when it cannot be written.

Covered: two editors at once (WAL, a busy timeout, retries); kill -9 (a batch is there whole or not
at all); a damaged file (set aside as journal.corrupt-<time>.db, never deleted, and started
afresh); a file moved or deleted under us (opened again); a full disk or read-only folder (the file
is read into memory; writes wait there, in order, and are tried again, so nothing is lost while the
process lives). Each such event is one message in `problems`. Not covered: loss of power may lose
the last batches (synchronous=NORMAL), never the file."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from filelock import FileLock, Timeout
from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DatabaseError
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from kernel_lsp.errors import JournalError, boundary
from kernel_lsp.journal.migrations import migrate

T = TypeVar("T")
Work: TypeAlias = Callable[[Session], Any]
"""Writes something. Must be repeatable: it may run again after a failure in the middle."""

BUSY_TIMEOUT_S = 10.0
BUSY_ATTEMPTS = 4
RETRY_S = 30.0
"""How long to leave a disk alone that could not be written."""
CHECK_BYTES = 64 * 2**20
"""Larger journals are not checked page by page when they are opened; using them finds damage,
too."""

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_UNUSABLE = {
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
}


class Unusable(Exception):
    """The file cannot be used now; later it may."""


class _BeingWritten(Unusable):
    """Another program is writing: what would be read now may be half of something."""


class Database:
    """See the top of the file. For one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Raises JournalError only for a schema that is newer than ours."""
        self.path = path
        self.owner: str | None = None
        """A file belongs to whoever can read it."""
        self.problems: list[JournalError] = []
        self.unread: JournalError | None = None
        """Why reads know nothing of what the file holds; None: they do."""
        self._waiting: list[Work] = []
        self._not_before = 0.0
        self._inode: int | None = None
        self._engine = self._open_or_memory()

    def write(self, work: Work) -> None:
        """Run it in a transaction of its own, now or as soon as the disk can be written."""
        self._waiting.append(work)
        due = len(self._waiting) == 1 or time.monotonic() >= self._not_before
        if not (due and self.flush()) and self._in_memory:
            self._attempt(work)  # so that reads see it; the file gets it later

    def flush(self) -> bool:
        """Try to write what waits; False when the disk still refuses."""
        try:
            if self._in_memory:
                self._leave_memory()
            while self._waiting:
                self._write_first()
            return True
        except Unusable as error:
            self._not_before = time.monotonic() + RETRY_S
            self._report_once(error)
            return False

    def read(self, query: Callable[[Session], T]) -> T:
        """Run a query. A file that cannot be read now gives JournalError."""
        if self._waiting and time.monotonic() >= self._not_before:
            self.flush()
        try:
            return self._attempt(query, writing=False)
        except Unusable as error:
            raise JournalError(str(error), _REMEDY) from error

    @property
    def _in_memory(self) -> bool:
        return self._inode is None

    def erase_traces(self) -> None:
        """Makes the file forget what was deleted: no page of it or its log may hold that."""
        if self._in_memory:
            return
        with (
            boundary(JournalError, f"cannot compact {self.path}"),
            self._engine.connect() as connection,
        ):
            raw: Any = connection.connection.dbapi_connection
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            raw.execute("VACUUM")
            busy, _, _ = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            cause = (
                f"another program still reads {self.path}; deleted rows may stand in its -wal file"
            )
            self.problems.append(
                JournalError(cause, "close other editors and run `sessions forget` again")
            )

    def close(self) -> None:
        """Write what waits, if that is possible now, and let go of the file."""
        if self._waiting and not self.flush():
            cause = f"{len(self._waiting)} batches of events could not be saved to {self.path}"
            self.problems.append(JournalError(cause, _REMEDY))
        self._engine.dispose()

    # --- attempts ------------------------------------------------------------------------

    def _write_first(self) -> None:
        try:
            self._attempt(self._waiting[0])
        except JournalError:
            self._waiting.pop(0)  # a batch that can never be written must not hold up the others
            raise
        self._waiting.pop(0)

    def _attempt(self, work: Callable[[Session], T], *, writing: bool = True) -> T:
        """Run it, mending what can be mended. Raises Unusable or JournalError."""
        repaired = False
        for number in range(BUSY_ATTEMPTS):
            self._reopen_if_moved()
            try:
                return self._run(work, writing=writing)
            except DatabaseError as error:
                code = _code(error)
                if code in _DAMAGED and not repaired:
                    repaired = True
                    self._engine.dispose()
                    self._set_aside(error)
                    self._engine = self._open()
                elif code in _BUSY:
                    time.sleep(0.05 * 2**number)
                elif code in _UNUSABLE:
                    raise Unusable(f"{self.path} cannot be used: {error.orig}") from error
                else:
                    remedy = _FOREIGN if "no such column" in str(error.orig) else _DEFECT
                    raise JournalError(f"the journal failed: {error.orig}", remedy) from error
        raise Unusable(f"{self.path} is kept busy by another program")

    def _run(self, work: Callable[[Session], T], *, writing: bool) -> T:
        engine = self._engine.execution_options(writing=writing)
        with Session(engine, expire_on_commit=False) as session, session.begin():
            return work(session)

    def _reopen_if_moved(self) -> None:
        """SQLite goes on writing into a file that no folder lists any more; we would lose that."""
        if self._in_memory or _inode(self.path) == self._inode:
            return
        self._engine.dispose()
        self._engine = self._open()

    # --- opening -------------------------------------------------------------------------

    def _open_or_memory(self) -> Engine:
        try:
            return self._open()
        except Unusable as error:
            self._not_before = time.monotonic() + RETRY_S
            self._report_once(error)
            self._inode = None
            engine = create_engine("sqlite://", poolclass=StaticPool)
            _listen(engine)
            if isinstance(error, _BeingWritten) or not _copy(self.path, engine):
                self.unread = self.problems[-1]
            _migrate(engine)
            return engine

    def _leave_memory(self) -> None:
        """Raises Unusable when the file still cannot be opened. What waits is then written by the
        caller."""
        engine, self._engine = self._engine, self._open()
        self.unread = None
        engine.dispose()

    def _open(self) -> Engine:
        """The file, checked and at the newest schema. Raises Unusable or JournalError."""
        for _ in range(2):
            try:
                engine = self._connect()
            except OSError as error:
                raise Unusable(f"{self.path} cannot be opened: {error.strerror}") from error
            try:
                _check(engine, self.path)
                _migrate(engine)
                self._inode = _inode(self.path)
                return engine
            except DatabaseError as error:
                engine.dispose()
                if _code(error) not in _DAMAGED:
                    kind = _BeingWritten if _code(error) in _BUSY else Unusable
                    raise kind(f"{self.path} cannot be opened: {error.orig}") from error
                self._set_aside(error)
        raise Unusable(f"{self.path} cannot be replaced")

    def _connect(self) -> Engine:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))  # SQLite would use the umask
        url = URL.create("sqlite", database=str(self.path))
        engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})
        _listen(engine)
        return engine

    def _set_aside(self, error: DatabaseError) -> None:
        """Rename the damaged file and its log. Raises Unusable when even that fails."""
        try:
            with FileLock(f"{self.path}.lock", timeout=BUSY_TIMEOUT_S):
                if not _is_damaged(self.path):
                    return  # another process was faster
                kept = _free_name(self.path)
                for suffix in ("-wal", "-shm", ""):
                    part = Path(f"{self.path}{suffix}")
                    if part.exists():
                        part.rename(f"{kept}{suffix}")
        except (OSError, Timeout) as failure:
            raise Unusable(
                f"{self.path} is damaged and cannot be set aside: {failure}"
            ) from failure
        cause = (
            f"the journal was damaged ({error.orig}); it was set aside as {kept} and a new one "
            f"was started"
        )
        remedy = (
            "nothing has to be done; `sqlite3 FILE .recover` may read what is left of the old one"
        )
        self.problems.append(JournalError(cause, remedy))

    def _report_once(self, error: Unusable) -> None:
        problem = JournalError(
            f"{error}; events are kept in memory until it can be written", _REMEDY
        )
        if not any(known.cause == problem.cause for known in self.problems):
            self.problems.append(problem)


_REMEDY = "free some space, make the folder writable, or set data_dir to another folder"
_DEFECT = "this is a defect of kernel-lsp; please report it"
_FOREIGN = "its tables are not kernel-lsp's: move the file away, and a new one is started"


def _listen(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def configure(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves, below
        connection.text_factory = _decode
        for pragma in (
            "journal_mode=WAL",
            "synchronous=NORMAL",
            "foreign_keys=ON",
            "secure_delete=ON",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A transaction that reads first and writes later cannot wait for its turn: SQLite fails it
        # at once.
        writing = connection.get_execution_options().get("writing", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _decode(text: bytes) -> str:
    """What is no UTF-8 costs its own characters, and not the whole query."""
    return text.decode(errors="replace")


def _migrate(engine: Engine) -> None:
    with engine.execution_options(writing=True).begin() as connection:
        migrate(connection)


def _copy(path: Path, engine: Engine) -> bool:
    """Whether the rows of a file that can be read, if not written, are in the engine's memory."""
    if not path.is_file() or path.stat().st_size > CHECK_BYTES:
        return False
    uri = f"{path.absolute().as_uri()}?immutable=1"  # needs no log beside it
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as file:
            memory: Any = engine.raw_connection()
            file.backup(memory.dbapi_connection)
            memory.close()
    except sqlite3.Error:
        return False
    return True


def _check(engine: Engine, path: Path) -> None:
    """Raises DatabaseError when pages are damaged."""
    if path.stat().st_size > CHECK_BYTES:
        return
    with engine.connect() as connection:
        found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
    if found != "ok":
        damage = sqlite3.DatabaseError(str(found))
        damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise DatabaseError("PRAGMA quick_check", None, damage)


def _is_damaged(path: Path) -> bool:
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S)
    try:
        return bool(connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",))
    except sqlite3.OperationalError:
        return False
    except sqlite3.DatabaseError:
        return True
    finally:
        connection.close()


def _code(error: DatabaseError) -> int:
    """SQLite's primary result code (the extended ones say more in their upper bytes)."""
    return int(getattr(error.orig, "sqlite_errorcode", None) or sqlite3.SQLITE_ERROR) & 0xFF


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return -1


def _free_name(path: Path) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    names = (
        path.with_name(f"{path.stem}.corrupt-{stamp}{n}{path.suffix}")
        for n in ("", "-2", "-3", "-4", "-5")
    )
    return next(name for name in names if not name.exists())
