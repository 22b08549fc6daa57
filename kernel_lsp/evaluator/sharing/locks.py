"""Files of one device that all kernel-lsp processes of a user share: lock, holder, what was used.

The kernel releases a lock when its holder dies. A folder that cannot hold files is no reason not to
measure: then nobody is waited for. Not covered: editors with different data_dir settings.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
from pathlib import Path

from filelock import FileLock, Timeout

from kernel_lsp.evaluator.sharing import nvml
from kernel_lsp.evaluator.sharing.allowance import DeviceLedger
from kernel_lsp.evaluator.sharing.nvml import Gpu


def device_key(device: str, gpu: Gpu | None) -> str:
    """One name per device, the same in every process: the GPU's UUID where it is known."""
    if device != "cuda":
        return device
    name = (gpu and gpu.uuid) or f"cuda-{nvml.visible(os.environ) or 0}"
    return re.sub(r"[^A-Za-z0-9-]", "_", name)


class LockFiles:
    """Lock, holder and ledger of one device. The machine is in their names: home folders are
    shared."""

    def __init__(self, data_dir: str, key: str) -> None:
        self.folder = Path(data_dir) / "locks"
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
        stem = f"{re.sub(r'[^A-Za-z0-9-]', '_', platform.node())}-{key}"
        self.lock = FileLock(self.folder / f"{stem}.lock")
        self.queue = FileLock(self.folder / f"{stem}.queue")
        """Held by the next in line, so that who just had the device cannot take it twice in a
        row."""
        self.ledger = DeviceLedger(self.folder / f"{stem}.used.json")
        self._holder = self.folder / f"{stem}.holder"
        self.claims = self.folder / f"{stem}.claims"
        """Folder for the memory that jobs have claimed (memory_claims.py)."""

    def holder(self) -> int | None:
        """Process that has the device now; None when nobody has, or who is unknown."""
        found = self._signature()
        return found and found[0]

    def in_words(self) -> str:
        """Who has the device now, and for what; empty when that is not known."""
        found = self._signature()
        if found is None:
            return ""
        pid, purpose = found
        return f" (pid {pid}), which judges {purpose}," if purpose else f" (pid {pid})"

    def _signature(self) -> tuple[int, str] | None:
        if not is_held(self.lock.lock_file):
            return None
        try:
            pid, _, purpose = self._holder.read_text().partition(" ")
            return int(pid), purpose
        except (OSError, ValueError):
            return None

    def wanted(self) -> bool:
        """Whether another process waits for the device."""
        return is_held(self.queue.lock_file)

    def sign(self, purpose: str) -> None:
        """Writes who holds the lock and what for, so that those who wait can name it."""
        with contextlib.suppress(OSError):  # only a name for those who wait
            self._holder.write_text(f"{os.getpid()} {purpose}".strip())


def is_held(file: str) -> bool:
    """Whether some process has this lock now."""
    try:
        with FileLock(file).acquire(timeout=0):
            return False
    except Timeout:
        return True
    except OSError:
        return False


def try_lock(lock: FileLock) -> bool:
    """Whether it may be used now: also where no lock can be had at all."""
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    except OSError:
        return True
    return True
