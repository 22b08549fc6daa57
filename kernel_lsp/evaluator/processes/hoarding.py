"""What rlimits cannot hold in a candidate's process, watched from outside. Standard library only.

Resident memory, because a process that uses CUDA reserves far more address space than it uses and
so has no RLIMIT_AS; and the bytes in its scratch folder, because RLIMIT_FSIZE counts every file by
itself; and how deep and how many they are. Not covered: memory of processes that a candidate
starts (starting them is a rejection), files that are deleted but still open, and what is taken and
given back between two looks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil

from kernel_lsp import leftovers

LOOK_S = 0.2
"""Touching fresh pages goes at about 5 GB/s, so a look comes at most a GB late."""


async def until_too_much(pid: int, scratch: Path, *, memory_bytes: int, disk_bytes: int) -> str:
    """Why the process must be ended, once it must; empty when it has ended by itself."""
    while (resident := resident_bytes(pid)) is not None:
        if resident > memory_bytes:
            return f"it used more than {memory_bytes / 2**30:.1f} GiB of memory"
        try:
            written = await asyncio.to_thread(leftovers.bytes_below, scratch)
        except leftovers.TooMuch as error:
            return str(error)
        if written > disk_bytes:
            return f"it wrote more than {disk_bytes / 2**30:.1f} GiB to its scratch folder"
        await asyncio.sleep(LOOK_S)
    return ""


def resident_bytes(pid: int) -> int | None:
    """Bytes of memory that the process holds; None: there is no such process (or none whose memory
    can be read)."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None
