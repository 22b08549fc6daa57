"""The team's tables in the PostgreSQL of its journal, and who may write what in them.

The server itself says it (row-level security, as in journal/row_security.py): everybody reads;
releases are pushed under one's own role and never changed; decisions are a coordinator's, never an
approval of one's own release, and never changed; measured parameters and usage are one's own rows.
Coordinators are named by the owner of the tables. A superuser is bound by none of it.

Two coordinators at once: a decision has the number after the last one that its maker saw, and the
table takes each number once."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, text

from kernel_lsp.errors import TeamError
from kernel_lsp.journal import row_security

VERSION = 1
TABLES = (
    "team_info",
    "team_coordinators",
    "team_releases",
    "team_decisions",
    "team_tuning",
    "team_usage",
    "team_exclusions",
    "team_forgotten",
)
_MADE = """
CREATE TABLE team_info (version integer NOT NULL, name text NOT NULL, files text NOT NULL);
CREATE TABLE team_coordinators (role name PRIMARY KEY);
CREATE TABLE team_releases (
    kind text, name text, number integer, digest text NOT NULL, evidence text NOT NULL,
    better boolean NOT NULL, pushed_by name NOT NULL DEFAULT current_user,
    time double precision NOT NULL, PRIMARY KEY (kind, name, number));
CREATE TABLE team_decisions (
    kind text, name text, number integer, place integer, action text NOT NULL,
    role name NOT NULL DEFAULT current_user, time double precision NOT NULL,
    share double precision, reason text NOT NULL, PRIMARY KEY (kind, name, number, place),
    FOREIGN KEY (kind, name, number) REFERENCES team_releases ON DELETE CASCADE);
CREATE TABLE team_tuning (
    owner text, key text, skill text NOT NULL, parameters jsonb NOT NULL,
    time double precision NOT NULL, PRIMARY KEY (owner, key));
CREATE TABLE team_usage (
    owner text, kind text, name text, number integer, hardware text, uses integer NOT NULL,
    wins integer NOT NULL, pairs integer NOT NULL, uplift_sum double precision NOT NULL,
    uplift_squares double precision NOT NULL,
    PRIMARY KEY (owner, kind, name, number, hardware));
CREATE TABLE team_exclusions (
    role name PRIMARY KEY, by name NOT NULL DEFAULT current_user, reason text NOT NULL);
CREATE TABLE team_forgotten (owner text PRIMARY KEY, time double precision NOT NULL)
"""
_SEQUENCES = """
SELECT s.oid::regclass::text FROM pg_class s JOIN pg_depend d ON d.objid = s.oid
JOIN pg_class t ON t.oid = d.refobjid
WHERE s.relkind = 'S' AND t.relname = ANY(:tables) AND pg_table_is_visible(t.oid)
"""
"""Those that number rows of these tables."""
_OWN = "EXISTS (SELECT 1 FROM owners WHERE owners.role = current_user AND owners.owner = {0}.owner)"
_COORDINATES = "EXISTS (SELECT 1 FROM team_coordinators c WHERE c.role = current_user)"
_NOT_ONES_OWN_APPROVAL = (
    "(action <> 'approve' OR NOT EXISTS (SELECT 1 FROM team_releases r WHERE r.kind ="
    " team_decisions.kind AND r.name = team_decisions.name AND r.number = team_decisions.number"
    " AND r.pushed_by = current_user))"
)
_NEVER_APPROVED = (
    "NOT EXISTS (SELECT 1 FROM team_decisions d WHERE d.kind = team_releases.kind AND d.name ="
    " team_releases.name AND d.number = team_releases.number AND d.action = 'approve')"
)


def make(connection: Connection, team: str, files: str, coordinators: Sequence[str]) -> None:
    """The tables of a new team. Raises TeamError where the database has one already."""
    if connection.scalar(text("SELECT to_regclass('team_info')")) is not None:
        raise TeamError(
            "this database has a team already", "`kernel-lsp team join ADDRESS` joins it"
        )
    for statement in _MADE.split(";"):
        connection.execute(text(statement))
    for statement in _secured():
        connection.execute(text(statement))
    connection.execute(
        text("INSERT INTO team_info VALUES (:version, :team, :files)"),
        {"version": VERSION, "team": team, "files": files},
    )
    for role in coordinators:
        connection.execute(text("INSERT INTO team_coordinators VALUES (:role)"), {"role": role})


def grant(connection: Connection, members: Sequence[str]) -> None:
    """What a member's role needs of the journal's and the team's tables, and of no other's that
    lie beside them."""
    quote = connection.dialect.identifier_preparer.quote_identifier
    tables = ", ".join(map(quote, (*row_security.TABLES, *TABLES)))
    owned = connection.scalars(text(_SEQUENCES), {"tables": [*row_security.TABLES, *TABLES]})
    sequences = ", ".join(owned)
    for member in members:
        name = quote(member)
        connection.execute(text(f"GRANT USAGE ON SCHEMA public TO {name}"))
        connection.execute(text(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {name}"))
        if sequences:
            connection.execute(text(f"GRANT USAGE ON SEQUENCE {sequences} TO {name}"))


def _secured() -> list[str]:
    made = []
    for table in TABLES:
        made.append(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        made.append(f"CREATE POLICY everybody_reads ON {table} FOR SELECT USING (true)")
        if table not in ("team_info", "team_coordinators"):  # these are their owner's to write
            made.append(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
    for table in ("team_tuning", "team_usage"):
        mine = _OWN.format(table)
        made += [
            f"CREATE POLICY as_oneself ON {table} FOR INSERT WITH CHECK ({mine})",
            f"CREATE POLICY own_changes ON {table} FOR UPDATE USING ({mine}) WITH CHECK ({mine})",
            f"CREATE POLICY own_erasing ON {table} FOR DELETE USING ({mine})",
        ]
    made += [
        "CREATE POLICY as_oneself ON team_releases FOR INSERT WITH CHECK"
        " (pushed_by = current_user)",
        "CREATE POLICY own_proposals ON team_releases FOR DELETE USING"
        f" (pushed_by = current_user AND {_NEVER_APPROVED})",
        "CREATE POLICY coordinators_decide ON team_decisions FOR INSERT WITH CHECK"
        f" (role = current_user AND {_COORDINATES} AND {_NOT_ONES_OWN_APPROVAL})",
        "CREATE POLICY coordinators_exclude ON team_exclusions FOR INSERT WITH CHECK"
        f" (by = current_user AND {_COORDINATES})",
        "CREATE POLICY coordinators_take_back ON team_exclusions FOR DELETE USING"
        f" ({_COORDINATES})",
        "CREATE POLICY as_oneself ON team_forgotten FOR INSERT WITH CHECK"
        f" ({_OWN.format('team_forgotten')})",
    ]
    return made
