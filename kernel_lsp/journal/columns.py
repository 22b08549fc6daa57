"""Types of the journal's columns, which read whatever lies there: SQLite keeps values of any type
and size in any column, and what one row holds must not end the reading of the others."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, ColumnElement, Dialect, String, Text, case, cast, func
from sqlalchemy.types import TypeDecorator

MAX_CHARS = 8 * 1024**2
"""A row of 100 MB took 480 MB of whoever read it; ours have some kilobytes."""
MAX_NAME_CHARS = 4096
"""Of a path, on Linux."""
MAX_DEPTH = 64
"""Of JSON: deeper values, of which ours have none, cannot be written down again."""


class ReadableText(TypeDecorator[str]):
    """Text of at most so many characters: what is longer is cut by the database."""

    impl = String
    cache_ok = True

    def __init__(self, max_chars: int) -> None:
        super().__init__()
        self.max_chars = max_chars

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Selects the beginning alone, so that the rest never is in this process. What is short is
        taken as it is: SQLite's substr ends at a zero byte."""
        beginning = func.substr(column, 1, self.max_chars, type_=self)
        return case((func.length(column) <= self.max_chars, column), else_=beginning)

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        """The text; bytes and numbers are shown as such."""
        if isinstance(value, bytes):
            return value.decode(errors="replace")
        return value if value is None else str(value)


class ReadableJson(TypeDecorator[Any]):
    """A JSON value; None where there is none that can be read, or one that is too large."""

    impl = JSON
    cache_ok = True

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Selects NULL in the place of what is too large."""
        return case((func.length(cast(column, Text)) <= MAX_CHARS, column))

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """A decoder that never raises."""
        decode = super().result_processor(dialect, coltype)

        def read(value: Any) -> Any:
            try:
                found = decode(value) if decode else value
            except (TypeError, ValueError, RecursionError):
                return None
            return found if _is_flatter(found, MAX_DEPTH) else None

        return read


def _is_flatter(value: Any, depth: int) -> bool:
    if not isinstance(value, (dict, list)):
        return True
    parts = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(_is_flatter(part, depth - 1) for part in parts)
