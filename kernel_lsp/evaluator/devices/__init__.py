"""Where programs run: one protocol, three backends.

A backend places tensors, waits for the device, empties caches, reads a clock, and says what it can
do. It holds no state of an evaluation. Runs in judge and worker only (torch is imported here).
"""

from __future__ import annotations

from typing import Any, Protocol


class Device(Protocol):
    name: str
    """cuda, cpu or interpreter."""
    place: str
    """The string that torch wants."""
    can_time: bool
    can_run_triton: bool

    def synchronize(self) -> None:
        """Wait for everything on every stream."""

    def flush(self) -> None:
        """Evict the caches that a previous call has warmed."""

    def time_ms(self, call: Any) -> tuple[float, Any]:
        """(milliseconds of ``call()`` with everything it started, its result)."""

    def reset_peak(self) -> None:
        """Start counting peak memory."""

    def peak_bytes(self) -> int | None:
        """Peak device memory since reset_peak; None where it cannot be read."""

    def with_tf32(self, call: Any) -> Any:
        """``call`` with TF32 matrix products allowed around it; None where there is no such thing."""

    def environment(self) -> dict[str, Any]:
        """Names, versions and clocks for the evidence."""


def of(name: str) -> Device:
    """The backend called ``name``. Raises ValueError on another name."""
    from kernel_lsp.evaluator.devices import cpu, cuda, interpreter

    backends: dict[str, Any] = {
        "cpu": cpu.Cpu,
        "cuda": cuda.Cuda,
        "interpreter": interpreter.Interpreter,
    }
    if name not in backends:
        raise ValueError(f"unknown device {name!r}: use cuda, cpu or interpreter")
    device: Device = backends[name]()
    return device
