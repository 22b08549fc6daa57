"""Every attempt of one search in one SQLite file: resumed after any kill, copied like any other
file.

An attempt is written twice: `begun` with how it was made before it is judged, `done` with its
verdict. Each is one synced transaction, so what a killed process had paid for is found again
(`unfinished`). A disk that refuses costs nothing of the running search: what could not be written
is kept in memory, tried again with the next write, and said once. Holds source text, like the
cache; may be deleted with its search. Not covered: what an unfinished attempt's judgement was
(search/loop.py asks for its evidence)."""

from __future__ import annotations

import contextlib
import json
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from kernel_lsp import wire
from kernel_lsp.errors import ArchiveError
from kernel_lsp.records import Attempt, Candidate, Exchange, Json, SkillDraft
from kernel_lsp.search.ledger import MemoryArchive

SCHEMA = 1
APPLICATION = 0x6B6C7370
"""What marks the file as ours."""
SUFFIX = ".db"
MAGIC = b"SQLite format 3\0"
TABLES = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE attempts"
    " (number INTEGER PRIMARY KEY, candidate TEXT, state TEXT NOT NULL, body TEXT NOT NULL)",
    "CREATE TABLE exchanges (number INTEGER NOT NULL, agent TEXT NOT NULL, body TEXT NOT NULL)",
    "CREATE TABLE drafts (number INTEGER NOT NULL, body TEXT NOT NULL)",
)
INSERT_META = "INSERT OR REPLACE INTO meta VALUES (?, ?)"
INSERT_ATTEMPT = "INSERT OR REPLACE INTO attempts VALUES (?, ?, ?, ?)"
INSERT_EXCHANGE = "INSERT INTO exchanges VALUES (?, ?, ?)"
INSERT_DRAFT = "INSERT INTO drafts VALUES (?, ?)"
BEGUN, DONE = "begun", "done"
REMEDY = "check the folder's permissions and free space; --archive names another file"
ArchiveRow = tuple[str, tuple[Any, ...]]
"""A statement and its values."""


class SqliteArchive(MemoryArchive):
    """Open it with :meth:`open`; one process at a time has it."""

    def __init__(
        self, database: sqlite3.Connection, lock: FileLock, notes: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self._database, self._lock = database, lock
        self._unwritten: list[ArchiveRow] = []
        self._problems = list(notes)
        try:
            self._load()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            database.close()
            raise _UnusableArchive("damaged", f"is damaged ({type(error).__name__})") from error

    @staticmethod
    def open(path: Path, identity: Json, *, fresh: bool = False) -> SqliteArchive:
        """The archive in this file, begun if there is none.

        ``identity`` says what is searched (program, workload, device …). An archive that is
        damaged or of another schema is moved aside and named in `problems`; so is any when
        ``fresh``. Raises ArchiveError: another process has it, it cannot be written, it is no
        archive, or it belongs to another search."""
        lock = _lock(path)
        try:
            notes = []
            if fresh and path.exists():
                _refuse_foreign(path)
                notes = [f"the archive before this one is kept as {_aside(path, 'old')}"]
            try:
                return SqliteArchive(_open_database(path, identity), lock, notes)
            except _UnusableArchive as unusable:
                aside = _aside(path, unusable.suffix)
                note = f"{path} {unusable}: it was moved to {aside}, and the search begins anew"
            return SqliteArchive(_open_database(path, identity), lock, (note,))
        except (sqlite3.Error, OSError) as error:
            lock.release()
            raise ArchiveError(
                f"the search archive {path} cannot be used: {error}", REMEDY
            ) from error
        except BaseException:  # our own errors and KeyboardInterrupt: somebody else may search it
            lock.release()
            raise

    def begin(
        self,
        attempt: Attempt,
        candidate: Candidate,
        exchanges: Sequence[Exchange] = (),
        drafts: Sequence[SkillDraft] = (),
    ) -> Attempt | None:
        """Begins an attempt as `MemoryArchive.begin` does, on disk before it returns."""
        if earlier := super().begin(attempt, candidate):
            return earlier
        body = wire.dumps({"attempt": attempt, "candidate": candidate})
        row = (attempt.number, candidate.id, BEGUN, body)
        self._write([(INSERT_ATTEMPT, row), *_exchange_rows(attempt.number, exchanges, drafts)])
        return None

    def add(
        self,
        attempt: Attempt,
        exchanges: Sequence[Exchange] = (),
        drafts: Sequence[SkillDraft] = (),
    ) -> None:
        """Adds an attempt as `MemoryArchive.add` does, on disk before it returns."""
        super().add(attempt)
        name = attempt.candidate.id if attempt.candidate else None
        row = (attempt.number, name, DONE, wire.dumps(attempt))
        self._write([(INSERT_ATTEMPT, row), *_exchange_rows(attempt.number, exchanges, drafts)])

    def close(self) -> None:
        """Write what is left and let others have it. Safe to call twice."""
        self._write([])
        with contextlib.suppress(sqlite3.Error):
            self._database.close()
        self._lock.release()

    def _write(self, rows: Sequence[ArchiveRow]) -> None:
        self._unwritten.extend(rows)
        try:
            with _transaction(self._database):
                for statement, values in self._unwritten:
                    self._database.execute(statement, values)
                self._database.execute(INSERT_META, ("spent_s", str(self.seconds)))
        except sqlite3.ProgrammingError:  # closed already
            return
        except sqlite3.Error as error:
            cause = (
                f"the search archive cannot be written ({error}): what was found since is only "
                f"in memory"
            )
            self._complain(f"{cause} (make room on the disk; it is tried again with every attempt)")
        else:
            self._unwritten.clear()

    def _complain(self, problem: str) -> None:
        if problem not in self._problems:
            self._problems.append(problem)

    def _load(self) -> None:
        meta = dict(self._database.execute("SELECT name, value FROM meta"))
        self._id, self._seed, self._spent_s = meta["id"], int(meta["seed"]), float(meta["spent_s"])
        rows = self._database.execute("SELECT state, body FROM attempts ORDER BY number")
        for state, body in rows:
            data = json.loads(body)
            if state == DONE:
                super().add(wire.from_json(Attempt, data))
            else:
                attempt = wire.from_json(Attempt, data["attempt"])
                super().begin(attempt, wire.from_json(Candidate, data["candidate"]))


class _UnusableArchive(Exception):
    """An archive of ours that cannot be read on; ``suffix`` is for the name under which it is
    kept."""

    def __init__(self, suffix: str, problem: str) -> None:
        super().__init__(problem)
        self.suffix = suffix


def _exchange_rows(
    number: int, exchanges: Sequence[Exchange], drafts: Sequence[SkillDraft]
) -> list[ArchiveRow]:
    said = [(INSERT_EXCHANGE, (number, one.agent, wire.dumps(one))) for one in exchanges]
    return [*said, *((INSERT_DRAFT, (number, wire.dumps(one))) for one in drafts)]


# --- the file -----------------------------------------------------------------------------------


def _lock(path: Path) -> FileLock:
    lock = FileLock(f"{path}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock.acquire(timeout=0)
    except Timeout as error:
        remedy = "wait until that search has ended or cancel it; --archive names another file"
        raise ArchiveError(f"another process is searching with {path}", remedy) from error
    except OSError as error:
        raise ArchiveError(f"the search archive {path} cannot be used: {error}", REMEDY) from error
    return lock


def _open_database(path: Path, identity: Json) -> sqlite3.Connection:
    """A connection to an archive of our schema and this identity. Raises _Unusable or
    ArchiveError."""
    _refuse_foreign(path)
    database = sqlite3.connect(path, isolation_level=None)
    try:
        database.execute("PRAGMA journal_mode=DELETE")  # one file: shareable
        database.execute("PRAGMA synchronous=FULL")
        _prepare(database, path, identity)
    except sqlite3.OperationalError:  # the disk or permissions, not the content
        database.close()
        raise
    except sqlite3.DatabaseError as error:
        database.close()
        raise _UnusableArchive("damaged", f"is damaged ({error})") from error
    except BaseException:
        database.close()
        raise
    return database


def _prepare(database: sqlite3.Connection, path: Path, identity: Json) -> None:
    ((ours,),), ((schema,),) = (
        database.execute(f"PRAGMA {name}").fetchall() for name in ("application_id", "user_version")
    )
    if ours != APPLICATION:  # nothing was written yet: _refuse_foreign has looked
        _begin(database, identity)
    elif schema != SCHEMA:
        raise _UnusableArchive(
            f"v{schema}", f"has schema {schema}, and this kernel-lsp writes {SCHEMA}"
        )
    ((state,), *_) = database.execute("PRAGMA quick_check(1)").fetchall()
    if state != "ok":
        raise _UnusableArchive("damaged", f"is damaged ({state})")
    ((known,),) = database.execute("SELECT value FROM meta WHERE name = 'identity'").fetchall()
    if known != (wanted := _text(identity)):
        before, now = json.loads(known), json.loads(wanted)
        names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
        remedy = "--fresh begins anew and keeps it beside, --archive names another file"
        raise ArchiveError(f"{path} belongs to another search: {', '.join(names)} changed", remedy)


def _begin(database: sqlite3.Connection, identity: Json) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    meta = {
        "identity": _text(identity),
        "id": secrets.token_hex(6),
        "seed": str(secrets.randbits(32)),
    }
    with _transaction(database):
        database.execute(f"PRAGMA application_id = {APPLICATION}")
        database.execute(f"PRAGMA user_version = {SCHEMA}")
        for table in TABLES:
            database.execute(table)
        for name, value in {**meta, "started": now, "spent_s": "0"}.items():
            database.execute(INSERT_META, (name, value))


def _text(identity: Json) -> str:
    return json.dumps(wire.to_json(identity), sort_keys=True)


def _refuse_foreign(path: Path) -> None:
    """What somebody named by mistake is left alone; what is called like ours may be a damaged
    one."""
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(72)
        damaged = head[:16] != MAGIC and path.suffix == SUFFIX
        if damaged or (head[:16] == MAGIC and head[68:] == APPLICATION.to_bytes(4, "big")):
            return
    remedy = "name an archive, or a file that does not exist yet"
    raise ArchiveError(f"{path} is no search archive", remedy)


def _aside(path: Path, suffix: str) -> Path:
    """Move it where nothing is yet. With what an interrupted write left: only both are the
    archive."""
    tries = (f"{path}.{suffix}" + (f"-{n}" if n else "") for n in range(1000))
    kept = next(Path(name) for name in tries if not Path(name).exists())
    for part in ("", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            Path(f"{path}{part}").rename(f"{kept}{part}")
    return kept


@contextlib.contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # a full disk has rolled it back already
            database.execute("ROLLBACK")
        raise
