"""What killed a process that ran a kernel, in words: by which signal or error of a device, on
which inputs.

Judge and timer say in their logs what the reference runs on, and their parent reads the last of it
when one has died. After some errors of a GPU (an illegal address, an assertion in a kernel) a
process can never use it again: it says so in its log, and ends. A candidate's log is not read: it
may print anything. No torch."""

from __future__ import annotations

import os
import re
import sys
from typing import NoReturn

from kernel_lsp.errors import WorkerLost

MARK = "kernel-lsp runs the reference on "
ASKED = ", when it was asked what it accepts"
"""Stands behind the inputs of such a run."""
COMPILED = "what torch.compile made of the reference"
PLAIN = "its own inputs"
LOST = "kernel-lsp lost the device: "
LIKELY = "most likely it reads or writes outside its tensors"
_OF_MEMORY = re.compile(r"was ended by (SIGSEGV|SIGBUS|SIGABRT)")
"""What the kernel, or glibc's look at its heap, ends a process with."""


def say(inputs: str) -> None:
    """Notes for which inputs the reference is about to run, so that a crash can name them."""
    print(MARK + inputs, file=sys.stderr, flush=True)


def end(error: BaseException, inputs: str) -> NoReturn:
    """Ends a process that cannot use its device any more since the reference ran, and says for
    which inputs."""
    lines = str(error).strip().splitlines()
    # Again: a device's assertion writes a line for each of thousands of threads in between.
    say(inputs)
    print(LOST + (lines[0] if lines else "unknown"), file=sys.stderr, flush=True)
    os._exit(1)


def last_said(log: str) -> str:
    """What the reference ran on last; empty: it never ran."""
    _, mark, after = log.rpartition(MARK)
    return after.partition("\n")[0] if mark else ""


def device_lost(log: str) -> str | None:
    """What a process said of its device before it ended; None: nothing."""
    _, mark, after = log.rpartition(LOST)
    return after.partition("\n")[0] if mark else None


def cause_of(error: WorkerLost, log: str) -> str | None:
    """An error of the device or a signal; None: it ended in another way."""
    return device_lost(log) or signal_of(error)


def signal_of(error: WorkerLost) -> str | None:
    """The signal of a process that broke its own memory."""
    found = _OF_MEMORY.search(error.cause)
    return found[1] if found else None
