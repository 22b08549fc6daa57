"""What a journal's database looks like, so that two can be compared."""

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, inspect, text

JOURNALS = Path(__file__).resolve().parents[1] / "cases" / "journals"


def schema_of(connection: Connection) -> dict[str, Any]:
    """Table -> its columns, keys and indexes, and on PostgreSQL its policies."""
    found = inspect(connection)
    return {
        table: {
            "columns": {
                column["name"]: (str(column["type"]), column["nullable"], column["default"])
                for column in found.get_columns(table)
            },
            "key": found.get_pk_constraint(table)["constrained_columns"],
            "foreign": [
                (key["constrained_columns"], key["referred_table"], key["options"])
                for key in found.get_foreign_keys(table)
            ],
            "unique": [key["column_names"] for key in found.get_unique_constraints(table)],
            "indexes": sorted(
                (str(index["name"]), index["column_names"]) for index in found.get_indexes(table)
            ),
            "policies": _policies(connection, table),
        }
        for table in found.get_table_names()
    }


def _policies(connection: Connection, table: str) -> list[Any]:
    if connection.dialect.name != "postgresql":
        return []
    rows = connection.execute(
        text(
            "SELECT policyname, cmd, qual, with_check, relrowsecurity, relforcerowsecurity"
            " FROM pg_class LEFT JOIN pg_policies ON tablename = relname"
            " WHERE relname = :table ORDER BY policyname"
        ),
        {"table": table},
    )
    return [tuple(row) for row in rows]
