"""Bring a journal to the newest schema: alembic's scripts in schema/versions, one transaction,
never backwards.

A new database is made from models.py at once; an older one runs the scripts that it lacks. To
change the schema: change models.py, add a script whose revision is the next number, raise `NEWEST`,
and keep every older script as it is. The number stands in our own table, which every kernel-lsp
reads: an older one must refuse what it does not know, and a colleague whose role may not make
tables opens a team's journal that is up to date without writing anything."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, select, text, update

from kernel_lsp.errors import JournalError
from kernel_lsp.journal import row_security
from kernel_lsp.journal.models import Base, SchemaRow

NEWEST = 3
SCRIPTS = Path(__file__).parent / "schema"


def migrate(connection: Connection) -> None:
    """Run inside a write transaction. Raises JournalError on a schema that only a newer kernel-lsp
    knows."""
    if not inspect(connection).has_table(SchemaRow.__tablename__):
        Base.metadata.create_all(connection)
        row_security.secure(connection)
        connection.execute(SchemaRow.__table__.insert().values(version=NEWEST))  # type: ignore[attr-defined]
        return
    version = connection.scalar(select(SchemaRow.version)) or 0
    if version > NEWEST:
        raise JournalError(
            f"the journal has schema {version}, written by a newer kernel-lsp; this one knows "
            f"{NEWEST}",
            "upgrade kernel-lsp, or set data_dir to another folder",
        )
    if version < 1:
        raise JournalError(
            f"the journal says schema {version}, which never existed", "move the file away"
        )
    if version < NEWEST:
        upgrade(connection, version)
        connection.execute(update(SchemaRow).values(version=NEWEST))


def upgrade(connection: Connection, version: int | None) -> None:
    """Run the scripts after ``version``; None: all of them."""
    from alembic import command  # 0.1 s, and most journals are up to date
    from alembic.config import Config

    # alembic asks a table of its own how far a database is; here it lives as long as the upgrade.
    connection.execute(
        text("CREATE TEMPORARY TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
    )
    if version is not None:
        connection.execute(
            text("INSERT INTO alembic_version VALUES (:version)"), {"version": str(version)}
        )
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    command.upgrade(config, "head")
    connection.execute(text("DROP TABLE alembic_version"))
