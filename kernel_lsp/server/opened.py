"""What the server asks of open notebooks. cells.py answers, and is imported with the first one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from lsprotocol import types

from kernel_lsp.presenter.items import Hint, TextEdit
from kernel_lsp.records import Span


class OpenNotebooks(Protocol):
    """All open notebooks of one client; each is a document of the session, by its own name."""

    def holds(self, uri: str) -> bool:
        """Whether that is the name of an open notebook."""

    def cell(self, uri: str) -> tuple[str, Span, str] | None:
        """(notebook, where it lies in the program, its source) of a cell that is analyzed."""

    def refresh(self, uri: str) -> None:
        """Makes the program of the cells as they are now."""

    def publish(self, uri: str, hints: Iterable[Hint]) -> None:
        """Tells the client about the cells whose hints are others than before."""

    def edit(self, uri: str, edits: Iterable[TextEdit]) -> types.WorkspaceEdit:
        """Edits of the program as edits of its cells. Raises ValueError where a line would change
        that only IPython understands."""

    def words(self, uri: str, text: str) -> str:
        """Words about lines of the program as words about lines of its cells."""
