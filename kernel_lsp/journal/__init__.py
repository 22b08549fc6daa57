"""The log of what was offered and what became of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernel_lsp.journal.store import Journal


def open_journal(data_dir: Path) -> Journal:
    """The journal in a user's data folder; see `store.Journal.open`."""
    # Not at the top: the server imports `journal.tracker`, and SQLAlchemy would cost it 24 MB and 150 ms.
    from kernel_lsp.journal.store import FILE_NAME, Journal

    return Journal.open(data_dir / FILE_NAME)
