"""The CPU backend: perf_counter, a cache flush by writing past the last-level cache.

Peak memory is not read: malloc's high-water mark belongs to the process, not to a call.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kernel_lsp import __version__
from kernel_lsp.evaluator.devices.base import ColdCall

MAX_FLUSH_BYTES = 64 * 1024**2
"""Writing 64 MiB costs about 10 ms; larger caches stay partly warm, equally for every provider."""

_clock = time.perf_counter_ns  # bound before any candidate is loaded


class Cpu:
    name, place = "cpu", "cpu"
    can_time, can_run_triton = True, False

    def __init__(self) -> None:
        self._buffer: torch.Tensor | None = None
        self.lead_ms = 0.0
        self.notes: list[str] = []

    def synchronize(self) -> None:
        """A CPU call is finished when it returns."""

    def is_lost(self) -> bool:
        """False: a CPU has no context that an error could break."""
        return False

    def read_by_next(self, tensors: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """[]: a CPU call is finished when it returns."""
        return []

    def cache_bytes(self) -> int:
        """Bytes that are written to flush the caches: twice the last level, at most
        MAX_FLUSH_BYTES."""
        return min(2 * (last_level_cache_bytes() or MAX_FLUSH_BYTES), MAX_FLUSH_BYTES)

    def flush(self) -> None:
        """Writes over more memory than the caches hold, so that what is called next reads from
        memory."""
        if self._buffer is None:
            self._buffer = torch.zeros(self.cache_bytes() // 4, dtype=torch.int32)
        self._buffer += 1

    def sample(
        self, prepare: Callable[[], Any], call: Callable[[Any], Any]
    ) -> tuple[ColdCall, Any]:
        """Time of one call with cold caches in ms, alone and with its preparation; and its
        result."""
        begin = _clock()
        arguments = prepare()
        self.flush()
        start = _clock()
        result = call(arguments)
        end = _clock()
        return ColdCall((end - start) / 1e6, (end - begin) / 1e6), result

    def launch(self, prepare: Callable[[], Any], call: Callable[[Any], Any]) -> float | None:
        """None: a launch is the whole call."""
        return None

    def graph(self, call: Callable[[], Any]) -> tuple[Callable[[], Any], Any] | None:
        """None: there are no graphs of launches."""
        return None

    def reset_peak(self) -> None:
        """Does nothing: see `peak_bytes`."""

    def peak_bytes(self) -> int | None:
        """None: what one call takes is unknown here."""
        return None

    def with_tf32(self, call: Any) -> Any:
        """None: there is no arithmetic in TF32."""
        return None

    def environment(self) -> dict[str, Any]:
        """Versions, threads and the CPU's name, for the evidence."""
        return {**versions(), "threads": torch.get_num_threads(), "device_name": cpu_name()}


def versions() -> dict[str, Any]:
    """What every backend reports. ``load`` is the mean of the last minute, before timing: on a
    machine with more runnable threads than cores, a parallel region of 0.4 ms was seen to take
    64."""
    return {
        "kernel_lsp": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.platform(),
        "load": round(os.getloadavg()[0], 2),
    }


def cpu_name() -> str:
    """The model as /proc/cpuinfo names it, else the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def last_level_cache_bytes() -> int | None:
    """Size of the largest cache that Linux reports for CPU 0."""
    units = {"K": 1024, "M": 1024**2, "G": 1024**3}
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if text[-1:] in units and text[:-1].isdigit():
            sizes.append(int(text[:-1]) * units[text[-1]])
    return max(sizes, default=None)
