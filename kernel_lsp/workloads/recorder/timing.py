"""How long a call took on a GPU: two CUDA events that nobody waits for."""

from __future__ import annotations

from typing import Any


class CudaCallTimer:
    """A call whose tensors lie on a GPU, between two events on the current stream."""

    __slots__ = ("_begun", "_ended")

    def __init__(self, begun: Any, ended: Any) -> None:
        self._begun, self._ended = begun, ended

    @classmethod
    def begin(cls, torch: Any) -> CudaCallTimer:
        """A clock that runs from now on, on the current stream."""
        clock = cls(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        clock._begun.record()
        return clock

    def end(self) -> None:
        """Stops the clock behind all that the stream has been given."""
        self._ended.record()

    def ready(self) -> bool:
        """Whether the device is past the call."""
        return bool(self._ended.query())

    def seconds(self) -> float:
        """Seconds between both events; waits for the second one."""
        self._ended.synchronize()
        return float(self._begun.elapsed_time(self._ended)) / 1000
