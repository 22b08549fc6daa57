"""How much memory judging a program needs, and how much there is: for a refusal that names both.

An estimate, from sizes that were seen when the program was opened. Runs in the judge. Does not
cover: what the program itself allocates on its way."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch

from kernel_lsp.evaluator.tensors import tensor_leaves

OF_INPUTS, OF_RESULTS = 8, 12
"""Copies that judge and worker have of a call's inputs and parameters (as drawn, on the device, in
float64 twice; the worker's two) and of its results (as they came, from the candidate, in float64
of each and of their differences)."""
GIB = 2**30
REMEDY = "choose a smaller workload, or end what else uses the memory"


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, says that there was no memory left."""
    while error is not None:
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(
            said in str(error) for said in ("out of memory", "can't allocate memory")
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


def bytes_of(values: Any) -> int:
    """Bytes of all tensors in a nested value."""
    return sum(t.numel() * t.element_size() for t in tensor_leaves(values))


def needed_bytes(inputs: int, state: int, results: int) -> int:
    """Bytes that judge and worker need together, from those of inputs, state and results."""
    return OF_INPUTS * (inputs + state) + OF_RESULTS * results


def free_bytes(place: str) -> int:
    """Free bytes of the device's memory; of the machine's where that is the CPU."""
    return int(torch.cuda.mem_get_info()[0]) if place == "cuda" else _memory("MemAvailable")


def total_bytes(place: str) -> int:
    """All bytes of the device's memory; of the machine's where that is the CPU."""
    return int(torch.cuda.mem_get_info()[1]) if place == "cuda" else _memory("MemTotal")


def _memory(name: str) -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def make_room(place: str) -> None:
    """Give back what nothing holds any more."""
    gc.collect()
    if place == "cuda":
        torch.cuda.empty_cache()


def in_words(needed: int, free: int) -> str:
    """The sentence's end that compares needed with free bytes, both in GiB."""
    return f"needs about {needed / GIB:.1f} GiB, {free / GIB:.1f} are free"
