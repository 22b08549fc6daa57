"""Sums in one small SQLite file that any number of processes add to, each judgement once, however
often it is reported.

A disk that refuses, or a damaged file (it is set aside), costs the sums and nothing else. Used by
the bandit over skills (search/bandit.py) and by the statistics of learned skills
(library/usage.py)."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

MAX_REMEMBERED = 100_000
"""Judgements that are known to be counted; a resumed search repeats only its own."""
PATIENCE_S = 2.0
"""How long another process may be writing."""

TallyRow = tuple[Any, ...]


class Tallies:
    """One table, and the marks of what was added to it."""

    def __init__(self, path: Path, *, table: str, add: str, marks: str) -> None:
        """``table`` creates it, ``add`` adds one row to it; ``marks`` is the name of the table of
        marks."""
        self._path, self._add = path, add
        self._tables = (table, f"CREATE TABLE IF NOT EXISTS {marks} (judgement TEXT PRIMARY KEY)")
        self._mark = f"INSERT OR IGNORE INTO {marks} VALUES (?)"
        self._forget = f"DELETE FROM {marks} WHERE rowid <= (SELECT max(rowid) FROM {marks}) - ?"

    def rows(self, query: str) -> list[TallyRow]:
        """The rows of the query; none when nothing was added, or the file cannot be read."""
        if self._path.exists():
            with contextlib.suppress(sqlite3.Error), self._open() as database:
                return database.execute(query).fetchall()
        return []

    def add(self, judgements: Iterable[tuple[str, Sequence[TallyRow]]]) -> None:
        """(mark, rows) of each; all or nothing."""
        try:
            with self._open() as database:
                for mark, rows in judgements:
                    if database.execute(self._mark, (mark,)).rowcount:
                        database.executemany(self._add, rows)
                database.execute(self._forget, (MAX_REMEMBERED,))
        except (sqlite3.OperationalError, OSError):
            # A full disk, or another process takes its time.
            return
        except sqlite3.DatabaseError:  # damaged: it begins anew
            with contextlib.suppress(OSError):
                self._path.replace(self._path.with_suffix(".damaged"))

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """One transaction."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(self._path, timeout=PATIENCE_S)
        try:
            with database:
                for table in self._tables:
                    database.execute(table)
                yield database
        finally:
            database.close()
