"""The profiling process: where the time of a few calls goes, of the reference and of one candidate.

Requests: prepare (the reference, on a session's values), load (the candidate), profile. It starts
when everything is timed and decides nothing. The profiler is bound before a candidate is loaded;
what a candidate does to its own process can only spoil these numbers. On a GPU kernels and copies
count, by their time on the device; on a CPU operators, by the time that is their own.

Not covered: calls that torch.compile has made; registers and counters, which drivers ask rights
for."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from kernel_lsp import wire
from kernel_lsp.evaluator import devices
from kernel_lsp.evaluator.running import work
from kernel_lsp.evaluator.running.timer import Timer
from kernel_lsp.evaluator.running.worker import failure, serve
from kernel_lsp.evaluator.tensors import TensorOutbox

CALLS, WARM_UPS = 3, 3
MAX_ROWS = 20
"""Kernels that are listed by name, those that take longest."""
MAX_NAME = 120
_profile, _Activity = torch.profiler.profile, torch.profiler.ProfilerActivity


class Profiler(Timer):
    """A timer that holds no clock, and tells what ran."""

    native = False
    """The candidate brings C++ or CUDA."""

    def load_candidate(self, message: dict[str, Any], blobs: list[bytes]) -> dict[str, Any]:
        """Loads the candidate beside the reference, with the reference's state; the reply has
        "error" where it cannot be loaded."""
        self.native = bool(message.get("extensions"))
        reply = self.load(message, blobs)
        if "error" in reply:
            return reply
        assert self.clock is not None
        self.load_state(self.state)
        self.clock.add("candidate", self.callee)
        return reply

    def profile(self) -> dict[str, Any]:
        """Per provider: its kernels, the longest first, with calls and microseconds of one call."""
        assert self.clock is not None
        try:
            return {"profiles": {name: self._profiled(name) for name in ("eager", "candidate")}}
        except BaseException as error:  # user code, or a profiler that may not run here
            return failure(error, "profiling")

    def _profiled(self, name: str) -> dict[str, Any]:
        clock = self.clock
        assert clock is not None
        callee = clock.providers[name]
        for _ in range(WARM_UPS):
            clock.call(callee, clock.arena.fill(0, 1.0, 0))
        self.device.synchronize()
        on_gpu = self.device.name == "cuda"
        kinds = [_Activity.CPU, _Activity.CUDA] if on_gpu else [_Activity.CPU]
        given = [clock.arena.fill(0, 1.0, 0)]
        with _profile(activities=kinds) as running:
            for _ in range(CALLS):
                clock.call(callee, given[0])
            self.device.synchronize()
        found = summarize(list(running.events() or ()), on_gpu=on_gpu, calls=CALLS)
        return {**found, **self._work(name, callee, given[0])}

    def _work(self, name: str, callee: Any, given: Any) -> dict[str, float | None]:
        """Operations and bytes of one call more; nothing where they cannot be counted."""
        clock = self.clock
        unknown: dict[str, float | None] = {"operations": None, "moved_bytes": None}
        assert clock is not None
        if name == "candidate" and self.native:
            return unknown
        try:
            with work.counted() as counter:
                clock.call(callee, given)
                self.device.synchronize()
        except Exception:  # a candidate may do what no mode of torch's allows
            return unknown
        own = counter.launches > 0
        return {
            "operations": None if own else counter.operations,
            "moved_bytes": counter.bytes or None,
        }


def summarize(events: Sequence[Any], *, on_gpu: bool, calls: int) -> dict[str, Any]:
    """The kernels of some calls and the time of one. ``events``: torch.profiler's. ``us``: of
    one call, all kernels together; ``busy_us``: the union of their intervals, and ``gaps_us``:
    what lies between the first and the last kernel of all calls beside it, of one call (None on
    a CPU)."""
    rows: dict[str, list[float]] = {}
    spans: list[tuple[float, float]] = []
    for event in events:
        if (event.device_type == torch.autograd.DeviceType.CUDA) is not on_gpu:
            continue
        begin, end = float(event.time_range.start), float(event.time_range.end)
        took = end - begin if on_gpu else float(event.self_cpu_time_total)
        row = rows.setdefault(str(event.name)[:MAX_NAME], [0.0, 0.0])
        row[0], row[1] = row[0] + 1, row[1] + took
        spans.append((begin, end))
    longest = sorted(rows.items(), key=lambda row: -row[1][1])
    found = {
        "us": sum(took for _, took in rows.values()) / calls,
        "kernels": [
            {"name": name, "count": count / calls, "us": took / calls}
            for name, (count, took) in longest[:MAX_ROWS]
        ],
    }
    if not on_gpu or not spans:
        return {**found, "busy_us": None, "gaps_us": None}
    busy = _union(spans)
    whole = max(end for _, end in spans) - min(begin for begin, _ in spans)
    return {**found, "busy_us": busy / calls, "gaps_us": (whole - busy) / calls}


def _union(spans: list[tuple[float, float]]) -> float:
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def _answer(
    profiler: Profiler, message: dict[str, Any], blobs: list[bytes], out: TensorOutbox
) -> dict[str, Any]:
    what = message["do"]
    if what == "ready":  # constructing the device has made its context
        return {"ok": True}
    if what == "prepare":
        return profiler.prepare(message, blobs)
    return profiler.load_candidate(message, blobs) if what == "load" else profiler.profile()


def main() -> None:
    """Answers each frame of stdin as the profiling process, until stdin ends."""
    requests, replies = wire.claim_stdio()
    warnings.simplefilter("ignore")
    profiler = Profiler(sys.argv[1])
    devices.few_threads(profiler.device)
    serve(requests, replies, lambda message, blobs, out: _answer(profiler, message, blobs, out))


if __name__ == "__main__":
    main()
