"""What killed a process that ran a kernel, in words: by which signal, on which inputs. No torch.

The judge says in its log what it runs the reference on, and its parent reads the last of it when the judge
has died. A candidate's log is not read: it may print anything.
"""

from __future__ import annotations

import re
import sys

from kernel_lsp.errors import WorkerLost

MARK = "kernel-lsp runs the reference on "
OTHER_LAYOUT = " inputs, when it was asked which layouts it accepts"
"""Stands behind the layout's name."""
LIKELY = "most likely it reads or writes outside its tensors"
_OF_MEMORY = re.compile(r"was ended by (SIGSEGV|SIGBUS|SIGABRT)")
"""What the kernel, or glibc's look at its heap, ends a process with."""


def say(inputs: str) -> None:
    """In the judge, before the reference runs."""
    print(MARK + inputs, file=sys.stderr, flush=True)


def last_said(log: str) -> str:
    """What the reference ran on last; empty: it never ran."""
    _, mark, after = log.rpartition(MARK)
    return after.partition("\n")[0] if mark else ""


def signal_of(error: WorkerLost) -> str | None:
    """The signal of a process that broke its own memory; None: it ended in another way."""
    found = _OF_MEMORY.search(error.cause)
    return found[1] if found else None
