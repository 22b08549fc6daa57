"""The CUDA backend: events behind a head start, an L2 flush, graphs, peak memory.

A timed call is queued like this, without a word from the host in between:

    busy wait (the head start) | inputs written | L2 flushed | event | the call | event

While the device waits and flushes, Python has already queued the call, so the time between the
events is the device's and not that of a host that was late; a call that takes Python longer than
the head start still shows as a longer one. Work on a private stream that waits for nobody reads
inputs that are not written yet; work that nobody waits for ends after the second event, which the
host's clock around the whole sequence sees (`Sample.outside_ms`).

Does not lock clocks (that needs root). Whatever this driver or torch does not offer becomes a
note."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Callable
from typing import Any

import torch

from kernel_lsp.evaluator.devices.base import ColdCall
from kernel_lsp.evaluator.devices.cpu import versions

MEMORY_SHARE = 0.8

LEAD_MS = 0.2
"""Least head start. Eager operators take Python 5 to 10 us each, a Triton launch 20 to 50."""
GUESSED_CYCLES_PER_MS = 1.5e6
CALIBRATION_CYCLES = 1_000_000
CU_LIMIT_PERSISTING_L2_CACHE_SIZE = 6
_clock = time.perf_counter_ns  # bound before any candidate is loaded


class CudaDevice:
    name, place = "cuda", "cuda"
    can_time, can_run_triton = True, True

    def __init__(self) -> None:
        limit_memory()
        self._synchronize = torch.cuda.synchronize
        self._event = torch.cuda.Event
        self._elapsed = torch.cuda.Event.elapsed_time
        self._spin = getattr(torch.cuda, "_sleep", None)
        self._callers_stream, self._on, self._copy = (
            torch.cuda.current_stream(),
            torch.cuda.stream,
            torch.clone,
        )
        self._allocated, self._peak = torch.cuda.memory_allocated, torch.cuda.max_memory_allocated
        self._restart_peak = torch.cuda.reset_peak_memory_stats
        self._buffer: torch.Tensor | None = None
        self._cycles_per_ms: float | None = None
        self._forget_persisting: Callable[[], Any] | None = None
        self._before = 0
        self.lead_ms = LEAD_MS
        self.notes: list[str] = []

    def synchronize(self) -> None:
        """Wait until the device has done all that it was given."""
        self._synchronize()

    def is_lost(self) -> bool:
        """Whether the context is broken: an error that stays, as after an illegal address."""
        try:
            self._synchronize()
        except Exception:
            # An error that stays: an illegal or misaligned address, an assertion in a kernel.
            return True
        return False

    def read_by_next(self, tensors: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Copies queued on the stream that the caller has: it does not wait for any other."""
        with self._on(self._callers_stream):
            mine = [t.detach() for t in tensors if t.is_cuda and t.layout is torch.strided]
            return [(tensor, self._copy(tensor)) for tensor in mine]

    def cache_bytes(self) -> int:
        """Bytes that are written to flush the cache: three times the second level."""
        return 3 * (torch.cuda.get_device_properties(0).L2_cache_size or 64 * 1024**2)

    def flush(self) -> None:
        """Writes over more memory than the L2 cache holds, so that what is called next reads from
        memory."""
        if self._buffer is None:
            self._buffer = torch.zeros(self.cache_bytes() // 4, dtype=torch.int32, device="cuda")
        self._buffer += 1

    def sample(
        self, prepare: Callable[[], Any], call: Callable[[Any], Any]
    ) -> tuple[ColdCall, Any]:
        """Time of one call with a cold cache in ms, by events around it, alone and with its
        preparation; and its result."""
        self._get_ready()
        start, stop = self._event(enable_timing=True), self._event(enable_timing=True)
        stream = torch.cuda.current_stream()
        if self._forget_persisting is not None:
            self._forget_persisting()
        begin = _clock()
        self._head_start()
        arguments = prepare()
        self.flush()
        start.record(stream)
        result = call(arguments)
        stop.record(stream)
        queued = (_clock() - begin) / 1e6
        self._synchronize()  # every stream of the device
        outside = (_clock() - begin) / 1e6
        return ColdCall(self._elapsed(start, stop), outside, queued), result

    def launch(self, prepare: Callable[[], Any], call: Callable[[Any], Any]) -> float | None:
        """Milliseconds until the call returns on an idle device; its kernels are not waited for."""
        arguments = prepare()
        self._synchronize()
        begin = _clock()
        call(arguments)
        end = _clock()
        self._synchronize()
        return (end - begin) / 1e6

    def graph(self, call: Callable[[], Any]) -> tuple[Callable[[], Any], Any] | None:
        """A replay of the call and its result, recorded on a stream of its own, as graphs must be,
        after a run there (libraries set up workspaces per stream). Not through torch.cuda.graph(),
        which empties the allocator's cache and so would make everything that is timed afterwards
        allocate anew. When a recording fails, torch's random generator goes on as if it were being
        recorded: it gets a state that is not."""
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            call()
            self._synchronize()
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                try:
                    result = call()
                finally:
                    graph.capture_end()
            except BaseException:
                random = torch.cuda.default_generators[stream.device_index]
                random.graphsafe_set_state(random.clone_state())
                raise
        torch.cuda.current_stream().wait_stream(stream)
        return graph.replay, result

    def reset_peak(self) -> None:
        """Begin to count the peak of memory anew, from what is allocated now."""
        self._restart_peak()
        self._before = int(self._allocated())

    def peak_bytes(self) -> int | None:
        """Bytes by which memory has grown at most since `reset_peak`."""
        return max(0, int(self._peak()) - self._before)

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
        """Versions, the GPU, its cache, clocks and driver, for the evidence."""
        return {
            **versions(),
            "device_name": torch.cuda.get_device_name(0),
            "capability": ".".join(map(str, torch.cuda.get_device_capability(0))),
            "cuda": torch.version.cuda,
            "l2_bytes": torch.cuda.get_device_properties(0).L2_cache_size,
            **nvidia_smi(),
        }

    def _get_ready(self) -> None:
        """Once per process, before the first sample and so before any candidate is loaded."""
        if self._cycles_per_ms is not None:
            return
        self.flush()
        self._cycles_per_ms = self._calibrated()
        self._forget_persisting = persisting_l2_reset()
        if self._forget_persisting is None:
            self.notes.append(
                "the driver does not reset persisting L2 lines: they may survive the flush"
            )

    def _calibrated(self) -> float:
        """Cycles of a millisecond of torch's spinning kernel."""
        if self._spin is None:
            self.notes.append(
                "this torch cannot keep the device busy: launches are inside the times"
            )
            return GUESSED_CYCLES_PER_MS
        took = 0.0
        for _ in range(3):  # the first wakes the clocks up
            start, stop = self._event(enable_timing=True), self._event(enable_timing=True)
            start.record()
            self._spin(CALIBRATION_CYCLES)
            stop.record()
            self._synchronize()
            took = self._elapsed(start, stop)
        return CALIBRATION_CYCLES / took if took > 0.05 else GUESSED_CYCLES_PER_MS

    def _head_start(self) -> None:
        if self._spin is not None and self._cycles_per_ms is not None:
            self._spin(int(self.lead_ms * self._cycles_per_ms))


def persisting_l2_reset() -> Callable[[], Any] | None:
    """The driver's function that turns persisting L2 lines into ordinary ones, when it works here.

    Also gives back what this context has set aside for them. Needs CUDA 11 and a GPU of 2020 or
    later."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        reset, limit = driver.cuCtxResetPersistingL2Cache, driver.cuCtxSetLimit
    except (OSError, AttributeError):
        return None
    reset.argtypes, reset.restype = [], ctypes.c_int
    limit.argtypes, limit.restype = [ctypes.c_int, ctypes.c_size_t], ctypes.c_int
    limit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0)  # refused where nothing can be set aside
    function: Callable[[], Any] = reset
    return function if reset() == 0 else None


def limit_memory() -> None:
    """Cap torch's allocator in this process, so that a neighbor does not run out because of us.

    KERNEL_LSP_GPU_MEMORY_MB (set from gpu_memory_mb), else a share of what is free now. Not
    covered: a candidate that calls cudaMalloc itself, and the context (0.3 to 0.5 GB)."""
    free, total = torch.cuda.mem_get_info()
    wanted = os.environ.get("KERNEL_LSP_GPU_MEMORY_MB")
    limit = int(wanted) << 20 if wanted else MEMORY_SHARE * free
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))


def nvidia_smi() -> dict[str, Any]:
    """Driver, clocks, temperature and power of this device; empty where nvidia-smi is missing or
    silent.

    device_lock.py samples clocks and neighbors over the whole turn where NVML is there; this is one
    look."""
    fields = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,power.draw"
    uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None)
    which = "0" if uuid is None else f"GPU-{uuid}"  # CUDA_VISIBLE_DEVICES renumbers, UUIDs stay
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", which]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(
        zip(fields.split(","), (part.strip() for part in done.stdout.split(",")), strict=False)
    )
