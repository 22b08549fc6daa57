"""Who may write into a run's folder, where several attempts at it may live at the same time.

A node that was cut off from its cluster goes on computing for a while, and what it writes would
lie over what its successor has written. So whoever starts an attempt puts a new ticket into the
folder, and gives it to the processes. Not covered: the moment between looking and writing."""

from __future__ import annotations

import os
from pathlib import Path

from kernel_lsp.errors import KernelLspError

TICKET, VARIABLE = "ticket", "KERNEL_LSP_TRAIN_TICKET"


def check(folder: Path) -> None:
    """Raises KernelLspError when another attempt has taken over. A run that nobody gave a ticket
    is alone."""
    ours = os.environ.get(VARIABLE)
    if ours is None:
        return
    try:
        theirs = (folder / TICKET).read_text()
    except OSError as error:
        raise KernelLspError(f"{folder / TICKET} cannot be read: {error}") from error
    if theirs != ours:
        raise KernelLspError(f"another attempt at this run has taken over {folder}")
