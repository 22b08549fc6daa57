"""Whose rows are whose in a team's PostgreSQL: the server says it, by the role that a connection
has.

Everybody reads; rows are written, changed and erased only by the role that their owner belongs to.
An owner is the random id before the colon of `folder` (remote.py makes one a machine); the table
`owners` binds it to the role that came with it first, which the server itself fills in. An event
goes into a session of one's own only. The owner of the tables is bound too (FORCE); superusers and
roles with BYPASSRLS are not: that is what they are for.

The condition stands in each policy, not in a function: names in a policy are resolved when it is
made, so nobody can put another `owners` before ours by a search path. Not covered: roles and
grants (an administrator's work; docs/how-to/team-journal.md), and people who share a role: they
are one to the server."""

from __future__ import annotations

from sqlalchemy import Connection, text

from kernel_lsp.errors import JournalError
from kernel_lsp.journal.models import (
    EventRow,
    ProposalRow,
    SchemaRow,
    SessionRow,
    SourceRow,
    TrackerRow,
)

OWNED = tuple(
    table.__tablename__ for table in (SessionRow, EventRow, ProposalRow, SourceRow, TrackerRow)
)
TABLES = ("owners", SchemaRow.__tablename__, *OWNED)
"""All of a journal's tables."""


def secure(connection: Connection) -> None:
    """Make `owners` and the policies. Nothing on SQLite, whose file is its user's alone."""
    if connection.dialect.name != "postgresql":
        return
    for statement in _statements():
        connection.execute(text(statement))


def claim(connection: Connection, owner: str) -> None:
    """Bind an owner to the role of this connection. Raises JournalError where it is another
    role's."""
    connection.execute(
        text("INSERT INTO owners (owner) VALUES (:owner) ON CONFLICT DO NOTHING"), {"owner": owner}
    )
    found = connection.execute(
        text("SELECT role::text, current_user::text FROM owners WHERE owner = :owner"),
        {"owner": owner},
    ).one()
    if found[0] != found[1]:
        cause = (
            f"this machine's rows belong to the role {found[0]}, and the address names {found[1]}"
        )
        remedy = "connect as the first, or delete journal-owner in the data folder to begin anew"
        raise JournalError(cause, remedy)


def _statements() -> list[str]:
    made = [
        "CREATE TABLE owners (owner text PRIMARY KEY, role name NOT NULL DEFAULT current_user)",
        "ALTER TABLE owners ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE owners FORCE ROW LEVEL SECURITY",
        "CREATE POLICY everybody_reads ON owners FOR SELECT USING (true)",
        "CREATE POLICY as_oneself ON owners FOR INSERT WITH CHECK (role = current_user)",
        f"ALTER TABLE {SchemaRow.__tablename__} ENABLE ROW LEVEL SECURITY",
        f"CREATE POLICY everybody_reads ON {SchemaRow.__tablename__} FOR SELECT USING (true)",
    ]
    for table in OWNED:
        mine = _is_mine(table)
        inserted = f"{mine} AND {_IN_MY_SESSION}" if table == EventRow.__tablename__ else mine
        made += [
            f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
            f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY",
            f"CREATE POLICY everybody_reads ON {table} FOR SELECT USING (true)",
            f"CREATE POLICY as_oneself ON {table} FOR INSERT WITH CHECK ({inserted})",
            f"CREATE POLICY own_changes ON {table} FOR UPDATE USING ({mine}) WITH CHECK "
            f"({inserted})",
            f"CREATE POLICY own_erasing ON {table} FOR DELETE USING ({mine})",
        ]
    return made


def _is_mine(table: str) -> str:
    return (
        "EXISTS (SELECT 1 FROM owners WHERE owners.role = current_user"
        f" AND owners.owner = split_part({table}.folder, ':', 1))"
    )


_IN_MY_SESSION = (
    f"EXISTS (SELECT 1 FROM sessions WHERE sessions.id = events.session AND {_is_mine('sessions')})"
)
