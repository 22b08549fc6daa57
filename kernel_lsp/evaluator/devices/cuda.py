"""The CUDA backend: events around a device-wide synchronization, an L2 flush, peak memory.

The stop event is recorded only after the host has waited for the whole device, so work on a
private stream is inside the measurement. Does not lock clocks (that needs root); it records them.
"""

from __future__ import annotations

import os
import subprocess
from typing import Any

import torch

from kernel_lsp.evaluator.devices.cpu import versions

MEMORY_SHARE = 0.8


class Cuda:
    name, place = "cuda", "cuda"
    can_time, can_run_triton = True, True

    def __init__(self) -> None:
        limit_memory()
        self._synchronize = torch.cuda.synchronize
        self._event = torch.cuda.Event
        self._buffer: torch.Tensor | None = None

    def synchronize(self) -> None:
        self._synchronize()

    def flush(self) -> None:
        if self._buffer is None:
            size = 3 * (torch.cuda.get_device_properties(0).L2_cache_size or 64 * 1024**2)
            self._buffer = torch.zeros(size // 4, dtype=torch.int32, device="cuda")
        self._buffer += 1

    def time_ms(self, call: Any) -> tuple[float, Any]:
        start, stop = self._event(enable_timing=True), self._event(enable_timing=True)
        self._synchronize()
        start.record()
        result = call()
        self._synchronize()  # every stream of the device, so a private one hides nothing
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop), result

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def peak_bytes(self) -> int | None:
        return int(torch.cuda.max_memory_allocated())

    def with_tf32(self, call: Any) -> Any:
        """Convolutions round to TF32 already in torch's defaults: the switch here is cuBLAS's."""
        allow = torch._C._set_cublas_allow_tf32
        try:
            if torch._C._get_cublas_allow_tf32():
                return None
        except RuntimeError:  # the program uses torch's other set of switches; the two do not mix
            return None

        def switched(*args: Any, **kwargs: Any) -> Any:
            allow(True)
            try:
                return call(*args, **kwargs)
            finally:
                allow(False)

        return switched

    def environment(self) -> dict[str, Any]:
        return {
            **versions(),
            "device_name": torch.cuda.get_device_name(0),
            "capability": ".".join(map(str, torch.cuda.get_device_capability(0))),
            "cuda": torch.version.cuda,
            **nvidia_smi(),
        }


def limit_memory() -> None:
    """Cap torch's allocator in this process, so that a neighbor does not run out because of us.

    KERNEL_LSP_GPU_MEMORY_MB (set from gpu_memory_mb), else a share of what is free now. Not covered:
    a candidate that calls cudaMalloc itself, and the context (0.3 to 0.5 GB).
    """
    free, total = torch.cuda.mem_get_info()
    wanted = os.environ.get("KERNEL_LSP_GPU_MEMORY_MB")
    limit = int(wanted) << 20 if wanted else MEMORY_SHARE * free
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))


def nvidia_smi() -> dict[str, Any]:
    """Driver, clocks and temperature of device 0; empty where nvidia-smi is missing or silent."""
    fields = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,power.draw"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", "0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(fields.split(","), (part.strip() for part in done.stdout.split(",")), strict=False))
