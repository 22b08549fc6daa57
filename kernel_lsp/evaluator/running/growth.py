"""Whether every call of a program keeps memory: what a cache without end does to a run of days.

The same call is made again and again, and what is taken is read after equal numbers of calls:
device memory by torch's allocator, host memory by glibc's, and tensors by Python's collector.
Growth counts when it goes on from one reading to the next, so a cache that is filled once is none.
Runs in the worker, and in the judge once a candidate is suspected: the reference may keep as much.
Does not cover: what is mapped without either allocator, and what begins to grow after some dozen
calls."""

from __future__ import annotations

import ctypes
import gc
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

MAX_CALLS, SERIES_S = 8, 0.1
"""Calls of one series, fewer where they take longer than this together."""
SERIES = 3
MIN_BYTES = 2**12
"""Of host memory a call: Python and malloc take a little more now and then (once 1.7 KiB a
call)."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What each further call keeps."""

    host_bytes: int = 0
    device_bytes: int = 0
    tensors: int = 0

    def __bool__(self) -> bool:
        return bool(self.host_bytes or self.device_bytes or self.tensors)


class _Mallinfo(ctypes.Structure):
    """glibc's struct mallinfo2 (2.33 and later)."""

    _fields_ = [(f"field_{number}", ctypes.c_size_t) for number in range(10)]


def kept_by(call: Callable[[], None]) -> Kept:
    """What each further call keeps; raises what the call raises. A suspicion is looked into once
    more."""
    call()
    return _kept_by(call) and _kept_by(call)


def _kept_by(call: Callable[[], None]) -> Kept:
    start = time.perf_counter()
    call()
    took = time.perf_counter() - start
    count = max(1, min(MAX_CALLS, int(SERIES_S / max(took, 1e-6))))
    readings = [_taken_bytes()]
    for _ in range(SERIES):
        for _ in range(count):
            call()
        readings.append(_taken_bytes())
        if not any(b > a for a, b in zip(readings[-2], readings[-1], strict=True)):
            return Kept()
    pairs = list(itertools.pairwise(readings))
    host, device, tensors = (min(b[i] - a[i] for a, b in pairs) // count for i in range(3))
    return Kept(host if host >= MIN_BYTES else 0, max(device, 0), max(tensors, 0))


def _taken_bytes() -> tuple[int, int, int]:
    """(host bytes, device bytes, tensors) that are in use, cycles collected."""
    gc.collect()
    device = torch.cuda.memory_allocated() if torch.cuda.is_initialized() else 0
    tensors = sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())
    return _host_bytes(), device, tensors


def _host_bytes() -> int:
    """What malloc has given; 0 where the C library does not say."""
    info = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if info is None:
        return 0
    info.restype = _Mallinfo
    taken = info()
    return int(taken.field_7) + int(taken.field_4)  # uordblks, hblkhd
