"""What the driver says about one GPU, and which processes use it. No torch, no root, no CUDA
context.

NVML comes with the driver; `pynvml` (the package nvidia-ml-py) is a thin binding that is imported
on first use. Every question is answered with None where the driver, the virtual machine or the GPU
cannot say: callers treat unknown as unknown. The kernel's own lists (/proc) stand in for process
lists.

Not covered: a machine with different GPUs whose CUDA_DEVICE_ORDER is not PCI_BUS_ID (CUDA then
counts from the fastest, NVML from the first slot); several GPUs in one evaluation; processes that
only draw."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from kernel_lsp.process import MARK

FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of the kernel: only there, NVML's process numbers are certainly ours to look
up."""
COMPUTE_DEVICE = "/dev/nvidia-uvm"
"""Opened by whatever has a CUDA context, and by nothing that only draws or only reads counters."""
FRESH_S = 2.0
"""Samples of a process's use of the GPU that are older say nothing about now."""
REASONS = {
    1: "idle",
    2: "applications_clocks",
    4: "power_cap",
    8: "hardware_slowdown",
    16: "sync_boost",
    32: "software_thermal",
    64: "hardware_thermal",
    128: "power_brake",
    256: "display_clocks",
}
"""Bits of NVML's clocks event reasons."""
NO_LIBRARY = "without NVML, busy neighbors on a GPU are recognized by their CPU time alone"


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbor:
    """A process that computes on the GPU and is none of ours."""

    pid: int
    name: str
    sm_percent: int | None = None
    """Share of the multiprocessors over the last moments; None where the driver does not count
    it."""
    cpu_percent: int | None = None
    """CPU time it wanted since the last look, in percent of one core; None at the first."""

    def __str__(self) -> str:
        percent = self.sm_percent if self.sm_percent is not None else self.cpu_percent
        unit = "" if self.sm_percent is not None else " CPU"
        return f"pid {self.pid} {self.name}" + (
            f" ({percent} %{unit})" if percent is not None else ""
        )


class Gpu:
    """One GPU through NVML."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._nvml, self._handle = library, handle
        self.uuid: str | None = self._ask("UUID")
        self.name: str | None = self._ask("Name")
        self.driver: str | None = self._try(library.nvmlSystemGetDriverVersion)

    def pids(self) -> set[int] | None:
        """Processes with a compute context, in the driver's numbering (see
        `FIRST_PID_NAMESPACE`)."""
        running = self._ask("ComputeRunningProcesses")
        return None if running is None else {process.pid for process in running}

    def sm_percents(self) -> dict[int, int]:
        """Percent of the multiprocessors per process, newest sample; empty where that is not
        counted."""
        since = int((time.time() - FRESH_S) * 1e6)
        samples = self._ask("ProcessUtilization", since) or ()
        newest = sorted((sample for sample in samples if sample.timeStamp >= since), key=_when)
        return {sample.pid: int(sample.smUtil) for sample in newest}

    def utilization(self) -> int | None:
        """Percent of the last sampling period (up to a second) in which any kernel ran."""
        rates = self._ask("UtilizationRates")
        return None if rates is None else int(rates.gpu)

    def memory_mb(self) -> tuple[int, int] | None:
        """(free, total) in MiB."""
        memory = self._ask("MemoryInfo")
        return None if memory is None else (memory.free >> 20, memory.total >> 20)

    def sample(self) -> dict[str, Any]:
        """Clocks (MHz), temperature (degrees C), power (W), reasons for low clocks: for the
        evidence."""
        library, power, memory = self._nvml, self._ask("PowerUsage"), self.memory_mb()
        return {
            "driver": self.driver,
            "uuid": self.uuid,
            "sm_mhz": self._ask("ClockInfo", library.NVML_CLOCK_SM),
            "memory_mhz": self._ask("ClockInfo", library.NVML_CLOCK_MEM),
            "max_sm_mhz": self._ask("MaxClockInfo", library.NVML_CLOCK_SM),
            "temperature_c": self._ask("Temperature", library.NVML_TEMPERATURE_GPU),
            "power_w": None if power is None else round(power / 1000, 1),
            "throttle_reasons": reasons(self._ask("CurrentClocksThrottleReasons")),
            "utilization_percent": self.utilization(),
            "free_mb": memory and memory[0],
        }

    def _ask(self, what: str, *arguments: Any) -> Any:
        return self._try(getattr(self._nvml, f"nvmlDeviceGet{what}"), self._handle, *arguments)

    def _try(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            # Not supported, no permission, lost …: unknown, whichever it is.
            return None


def reasons(bits: int | None) -> list[str] | None:
    """The words for NVML's bit field."""
    return None if bits is None else [word for bit, word in REASONS.items() if bits & bit]


def _when(sample: Any) -> int:
    return int(sample.timeStamp)


@functools.cache
def _library() -> Any:
    """pynvml after nvmlInit; a text that says why not."""
    try:
        import pynvml
    except ImportError:
        return f"pip install nvidia-ml-py: {NO_LIBRARY}"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return f"{error} (it comes with NVIDIA's driver): {NO_LIBRARY}"
    return pynvml


def visible(environ: Mapping[str, str]) -> str | None:
    """What CUDA counts as its first device: an index or a UUID; None when all are hidden."""
    first = environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    return None if first in ("", "-1") else first


def find(environ: Mapping[str, str] = os.environ) -> Gpu | str:
    """The GPU that a child's ``cuda:0`` will be, or why NVML does not know it."""
    library, first = _library(), visible(environ)
    if isinstance(library, str):
        return library
    if first is None:
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    try:
        if first.isdigit():
            handle = library.nvmlDeviceGetHandleByIndex(int(first))
        else:
            handle = library.nvmlDeviceGetHandleByUUID(first)
    except library.NVMLError as error:
        return f"NVML does not know GPU {first} ({error}): {NO_LIBRARY}"
    return Gpu(library, handle)


class Neighborhood:
    """Whoever else computes on a GPU, over time."""

    def __init__(self, gpu: Gpu | None) -> None:
        self._gpu = gpu
        self._same_numbers = _pid_namespace() == FIRST_PID_NAMESPACE
        self._cpu: dict[int, tuple[float, float]] = {}
        """pid -> (moment, CPU seconds) at the last look."""

    @property
    def sees_all(self) -> bool:
        """Whether all processes on the GPU can be seen. False in a container, whose neighbors on
        the same GPU are in no list."""
        return self._same_numbers and self._gpu is not None

    def look(self) -> tuple[Neighbor, ...]:
        """Every foreign process with a compute context now, whether it does anything or not."""
        listed = self._gpu.pids() if self._gpu else None
        if listed and not self._same_numbers:
            # Containers: old drivers count in the machine's numbers. One of ours in the list proves
            # ours, if it computes: a foreign process may have the number of an idle one of ours.
            self._same_numbers = any(is_ours(pid) for pid in listed & compute_processes())
        if listed is None or not self._same_numbers:
            listed = compute_processes()
        foreign = sorted(pid for pid in listed if not is_ours(pid))
        shares = self._gpu.sm_percents() if self._gpu and foreign and self._same_numbers else {}
        seen = tuple(
            Neighbor(
                pid=pid,
                name=_name(pid),
                sm_percent=shares.get(pid),
                cpu_percent=self._cpu_percent(pid),
            )
            for pid in foreign
        )
        self._cpu = {pid: known for pid, known in self._cpu.items() if pid in foreign}
        return seen

    def _cpu_percent(self, pid: int) -> int | None:
        now, used = time.monotonic(), _cpu_seconds(pid)
        if used is None:
            return None
        before = self._cpu.get(pid)
        if before and now - before[0] < 0.05:  # clock ticks are 10 ms: nothing to divide by yet
            return None
        self._cpu[pid] = (now, used)
        return round(100 * (used - before[1]) / (now - before[0])) if before else None


def compute_processes() -> set[int]:
    """Processes of this user (all of them for root) that have CUDA's device open."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # ended meanwhile, or another user's
                if any(_target(fd) == COMPUTE_DEVICE for fd in (entry / "fd").iterdir()):
                    found.add(int(entry.name))
    return found


def is_ours(pid: int) -> bool:
    """This process, what it started, and what other kernel-lsp processes of this user started:
    also on other GPUs of this machine, and also children whose own environment is closed to us."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return any(
            one.pid == os.getpid() or _is_marked(one) for one in (process, *process.parents())
        )
    return False


def _is_marked(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return MARK in process.environ()
    return False


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def _cpu_seconds(pid: int) -> float | None:
    """CPU time that its threads have got or stood in line for: on a busy machine the two differ."""
    with contextlib.suppress(OSError, ValueError):  # the second: a kernel without these counters
        tasks = [entry / "schedstat" for entry in Path(f"/proc/{pid}/task").iterdir()]
        return sum(sum(map(int, task.read_text().split()[:2])) for task in tasks) / 1e9
    with contextlib.suppress(psutil.Error):
        return float(sum(psutil.Process(pid).cpu_times()[:2]))
    return None


def _name(pid: int) -> str:
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return "of another container"


def _pid_namespace() -> str:
    return _target(Path("/proc/self/ns/pid"))
