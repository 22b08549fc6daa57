"""What a backend does for a measurement, and the times of one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass(frozen=True, slots=True)
class ColdCall:
    """One cold call."""

    ms: float
    """From the moment the device could start on the call until the work it queued is done."""
    outside_ms: float
    """The host's clock, from before the inputs are written until the whole device is idle."""
    queued_ms: float = 0.0
    """The host's clock until everything is queued; 0 where nothing is."""


class TimingDevice(Protocol):
    name: str
    """cuda, cpu or interpreter."""
    place: str
    """The string that torch wants."""
    can_time: bool
    can_run_triton: bool
    lead_ms: float
    """How long the device is kept busy before a timed call, so that it does not wait for Python,
    which prepares the inputs and launches meanwhile."""
    notes: list[str]
    """What this machine does not let a measurement do."""

    def synchronize(self) -> None:
        """Wait for everything on every stream."""

    def is_lost(self) -> bool:
        """Whether an error was one after which this process can never use the device again."""

    def read_by_next(self, tensors: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """(tensor, what an operator that follows at once reads of it), for tensors that are still
        being computed when a call returns; none where calls are finished then."""

    def cache_bytes(self) -> int:
        """What must be written to evict the caches; addresses rotate over as much."""

    def sample(
        self, prepare: Callable[[], Any], call: Callable[[Any], Any]
    ) -> tuple[ColdCall, Any]:
        """Write the inputs, evict the caches, call: (times, the result). Returns when the device
        is idle."""

    def launch(self, prepare: Callable[[], Any], call: Callable[[Any], Any]) -> float | None:
        """Milliseconds that ``call`` keeps Python busy on an idle device; None where it is the
        whole call."""

    def graph(self, call: Callable[[], Any]) -> tuple[Callable[[], Any], Any] | None:
        """(replay, result) of ``call``, recorded once; None where there is no such thing. Raises
        anything."""

    def reset_peak(self) -> None:
        """Start counting memory."""

    def peak_bytes(self) -> int | None:
        """Most device memory taken at once since reset_peak, beyond what was taken then; None:
        unknown."""

    def with_tf32(self, call: Any) -> Any:
        """``call`` with TF32 matrix products allowed around it; None where there is no such
        thing."""

    def environment(self) -> dict[str, Any]:
        """Names, versions and clocks for the evidence."""
