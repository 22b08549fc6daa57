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
    tables = set(inspect(connection).get_table_names())
    if SchemaRow.__tablename__ not in tables:
        Base.metadata.create_all(connection)
        row_security.secure(connection)
        connection.execute(SchemaRow.__table__.insert().values(version=NEWEST))  # type: ignore[attr-defined]
        return
    version = connection.scalar(select(SchemaRow.version))
    if not isinstance(version, int) or version < 1:
        raise JournalError(
            f"the journal says schema {str(version)[:40]}, which never existed",
            "move the file away",
        )
    if version > NEWEST:
        raise JournalError(
            f"the journal has schema {version}, written by a newer kernel-lsp; this one knows "
            f"{NEWEST}",
            "upgrade kernel-lsp, or set data_dir to another folder",
        )
    if version < NEWEST:
        upgrade(connection, version)
        connection.execute(update(SchemaRow).values(version=NEWEST))
    elif not tables.issuperset(Base.metadata.tables):
        Base.metadata.create_all(connection)  # one that is lost must not hide the others


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
