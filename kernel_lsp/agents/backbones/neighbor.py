"""Does a model server that somebody else has started here compute on a GPU of this machine?

Then generating and timing disturb each other and must take turns (`ModelInfo.on_measured_gpu`).
Whoever listens on the port is found in /proc, with what shares its process group (vLLM computes in
a child of its server). Not covered: which of several GPUs it is; a tunnel's other end, which is no
GPU here."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

COMPUTE_DEVICE = "/dev/nvidia-uvm"
"""Open in every process that has a CUDA context."""
LISTENING = "0A"


def computes_here(port: int) -> bool:
    """Whether the server behind that port computes on this machine's GPU. False where there is no
    GPU; True where the listener cannot be seen (a container, another user)."""
    if not Path(COMPUTE_DEVICE).exists():
        return False
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    owners = {pid for pid in _pids() if not sockets.isdisjoint(_open_files(pid))}
    if not owners:
        return True
    groups = {_group(pid) for pid in owners}
    return any(_group(pid) in groups and COMPUTE_DEVICE in _open_files(pid) for pid in _pids())


def _listening(port: int) -> Iterator[str]:
    """Inodes of sockets that listen on this port, at whichever address."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _open_files(pid: int) -> set[str]:
    """What its descriptors point to; nothing where we may not look, or where it has ended."""
    found = set()
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(str(link.readlink()))
    return found


def _group(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return os.getpgid(pid)
    return None
