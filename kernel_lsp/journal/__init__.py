"""The log of what was offered and what became of it: `Journal`, `open_journal`, and `tracker`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernel_lsp.journal.store import Journal

__all__ = ["Journal", "open_journal"]


def open_journal(data_dir: Path) -> Journal:
    """A user's journal: in the data folder, or where KERNEL_LSP_JOURNAL says; see
    `store.Journal.open`."""
    from kernel_lsp.journal.store import Journal

    return Journal.open(data_dir=data_dir)


def __getattr__(name: str) -> Any:
    # Not imported above: the server needs only `journal.tracker`, and SQLAlchemy would cost it 24
    # MB.
    if name == "Journal":
        from kernel_lsp.journal.store import Journal

        return Journal
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
