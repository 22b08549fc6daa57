"""Bring a journal to the newest schema: numbered functions, one transaction, never backwards.

A new database is made from models.py at once and stamped `NEWEST`; an older one runs the functions
it lacks. To change the schema: change models.py, append a function to `MIGRATIONS`, and keep every
older one as it is."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, inspect, select, text, update

from kernel_lsp.errors import JournalError
from kernel_lsp.journal import row_security
from kernel_lsp.journal.models import Base, SchemaRow

FIRST = 1


def _consent_to_training(connection: Connection) -> None:
    """Who saved a row before this was asked has said neither yes nor no."""
    connection.execute(text("ALTER TABLE proposals ADD COLUMN training BOOLEAN"))


MIGRATIONS: list[Callable[[Connection], None]] = [_consent_to_training, row_security.secure]
"""MIGRATIONS[i] turns schema FIRST + i into FIRST + i + 1."""


def newest() -> int:
    return FIRST + len(MIGRATIONS)


def migrate(connection: Connection) -> None:
    """Run inside a write transaction. Raises JournalError on a schema that only a newer kernel-lsp
    knows."""
    if not inspect(connection).has_table(SchemaRow.__tablename__):
        Base.metadata.create_all(connection)
        row_security.secure(connection)
        connection.execute(SchemaRow.__table__.insert().values(version=newest()))  # type: ignore[attr-defined]
        return
    version = connection.scalar(select(SchemaRow.version)) or 0
    if version > newest():
        raise JournalError(
            f"the journal has schema {version}, written by a newer kernel-lsp; this one knows "
            f"{newest()}",
            "upgrade kernel-lsp, or set data_dir to another folder",
        )
    if version < FIRST:
        raise JournalError(
            f"the journal says schema {version}, which never existed", "move the file away"
        )
    if version < newest():
        for step in MIGRATIONS[version - FIRST :]:
            step(connection)
        connection.execute(update(SchemaRow).values(version=newest()))
