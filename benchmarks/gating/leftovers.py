"""What a gate leaves behind: processes, scratch folders, device memory.

Processes and folders of this program are known from others' by a folder of our own in which all
scratch folders are made (it stands in every child's environment). Device memory is the driver's
count of all users: on a device of our own every byte is ours."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kernel_lsp import scratch


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """All scratch folders made in this block lie in the folder that it yields; it goes with the
    block."""
    before = tempfile.tempdir
    folder = Path(tempfile.mkdtemp(prefix="kernel-lsp-bench-"))
    tempfile.tempdir = str(folder)
    try:
        yield folder
    finally:
        tempfile.tempdir = before
        shutil.rmtree(folder, ignore_errors=True)


def processes(folder: Path) -> list[str]:
    """Command lines of children, at any depth, whose environment names ``folder``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has just ended, or is another user's
                if str(folder).encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_text().replace("\0", " ").strip())
    return found


def folders(folder: Path) -> list[str]:
    """Names of what is left there and in this process's own room, which lives as long as it."""
    room = scratch.room()
    left = [entry for place in (folder, room) for entry in place.iterdir() if entry != room]
    return sorted(entry.name for entry in left)


def device_mib() -> int | None:
    """MiB taken on the first device that we see; None where nvidia-smi is missing or silent."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    command = [
        "nvidia-smi",
        "--query-gpu=memory.used",
        "--format=csv,noheader,nounits",
        "-i",
        first,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return int(done.stdout.strip())
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
