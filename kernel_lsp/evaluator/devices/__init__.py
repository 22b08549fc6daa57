"""Where programs run: one protocol, three backends.

A backend places tensors, waits for the device, empties caches, reads clocks, and says what it can
do. It holds no state of an evaluation. Runs in judge and worker only (torch is imported here).
"""

from __future__ import annotations

from typing import Any

import torch

from kernel_lsp.evaluator.devices import cpu, cuda, interpreter
from kernel_lsp.evaluator.devices.base import TimingDevice


def of(name: str) -> TimingDevice:
    """The backend called ``name``. Raises ValueError on another name."""
    backends: dict[str, Any] = {
        "cpu": cpu.Cpu,
        "cuda": cuda.CudaDevice,
        "interpreter": interpreter.InterpreterDevice,
    }
    if name not in backends:
        raise ValueError(f"unknown device {name!r}: use cuda, cpu or interpreter")
    device: TimingDevice = backends[name]()
    return device


def few_threads(device: TimingDevice) -> None:
    """Lets torch's CPU operators of this process have two threads where the device is a GPU.

    What judges and workers do on the CPU is small, and many of them run side by side: with a thread
    per core each, an H200 with 16 cores judged 43 candidates a minute; with two, 76."""
    if device.name == "cuda":
        torch.set_num_threads(2)
