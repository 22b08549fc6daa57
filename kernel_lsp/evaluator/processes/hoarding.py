"""What rlimits cannot hold in a candidate's process, watched from outside. Standard library only.

Resident memory, because a process that uses CUDA reserves far more address space than it uses and so has
no RLIMIT_AS; and the bytes in its scratch folder, because RLIMIT_FSIZE counts every file by itself.
Not covered: memory of processes that a candidate starts (starting them is a rejection), files that are
deleted but still open, and what is taken and given back between two looks.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

LOOK_S = 0.2
"""Touching fresh pages goes at about 5 GB/s, so a look comes at most a GB late."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


async def until_too_much(pid: int, scratch: Path, *, memory_bytes: int, disk_bytes: int) -> str:
    """Why the process must be ended, once it must; empty when it has ended by itself."""
    while (resident := resident_bytes(pid)) is not None:
        if resident > memory_bytes:
            return f"it used more than {memory_bytes / 2**30:.1f} GiB of memory"
        if await asyncio.to_thread(folder_bytes, scratch) > disk_bytes:
            return f"it wrote more than {disk_bytes / 2**30:.1f} GiB to its scratch folder"
        await asyncio.sleep(LOOK_S)
    return ""


def resident_bytes(pid: int) -> int | None:
    """None: there is no such process (or none whose memory can be read)."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return None


def folder_bytes(folder: Path) -> int:
    """Bytes on disk of all files below, so that a sparse file costs what it takes."""
    return sum(_sizes(folder))


def _sizes(folder: Path) -> Iterator[int]:
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                yield os.lstat(os.path.join(root, name)).st_blocks * 512
            except OSError:  # deleted meanwhile
                continue
