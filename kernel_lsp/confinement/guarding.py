"""What a guardian does: wait for its child, and leave nothing of it behind. Standard library
only."""

from __future__ import annotations

import os
import time

from kernel_lsp.confinement import linux

STRAYS_S = 5.0
RENAMED_SIGNAL = 128
"""A death by signal is reported as a shell does."""


def code(status: int) -> int:
    """The exit status as a shell gives it: what a process returned, or RENAMED_SIGNAL and the
    number of its signal."""
    found = os.waitstatus_to_exitcode(status)
    return RENAMED_SIGNAL - found if found < 0 else found


def end_strays() -> None:
    """Kill what the child has left behind: as subreaper the guardian inherits every orphan."""
    end = time.monotonic() + STRAYS_S
    while time.monotonic() < end:
        for stray in _children():
            with linux.Ignoring(ProcessLookupError):
                os.kill(stray, linux.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]


def close_all_but(*kept: int) -> None:
    """Close every descriptor of this process but these."""
    lowest = 0
    for descriptor in sorted(kept):
        os.closerange(lowest, descriptor)
        lowest = descriptor + 1
    os.closerange(lowest, 2**20)
