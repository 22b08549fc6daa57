"""Run-time guards inside the worker: what a candidate changed in its process, and its outputs.

Covers: replaced functions of torch, Triton, clocks and this package; numeric flags, default dtype,
threads and child processes left running; function and dispatch modes left on; reading files,
starting programs, opening sockets, walking frames (audit events that no library but the candidate
asked for); lazy, aliased, misplaced outputs.
Does not cover: native code that changes memory directly, and a candidate that repairs everything
before it is looked at. Those can lie here but not to the judge (values) or the parent (clock).
"""

from __future__ import annotations

import _thread
import gc
import inspect
import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from kernel_lsp import wire
from kernel_lsp.evaluator import devices, inputs, numerics, stats, tensors, timing
from kernel_lsp.evaluator.devices import cpu, cuda
from kernel_lsp.evaluator.tensors import tensor_leaves

Note = dict[str, str]
TORCH_FOLDER = str(Path(torch.__file__).parent)
OWN_BUSINESS = (TORCH_FOLDER, str(Path(TORCH_FOLDER).parent / "triton"), str(Path(wire.__file__).parent))
FORBIDDEN_EVENTS = {
    "sys._getframe": "walks the call stack",
    "sys._current_frames": "walks the call stack",
    "sys.settrace": "traces its caller",
    "sys.setprofile": "traces its caller",
    "gc.get_objects": "searches the heap",
    "gc.get_referrers": "searches the heap",
    "subprocess.Popen": "starts a program",
    "os.system": "starts a program",
    "os.exec": "starts a program",
    "os.posix_spawn": "starts a program",
    "os.fork": "starts a process",
    "os.forkpty": "starts a process",
    "socket.connect": "uses the network",
    "socket.bind": "uses the network",
    "os.listdir": "reads folders",
    "os.scandir": "reads folders",
    "open": "reads or writes files",
}


class Watch:
    """Snapshot at :meth:`start` (before the candidate is loaded), difference in :meth:`problems`."""

    def __init__(self) -> None:
        self._events: dict[str, str] = {}
        self._on = False
        self._functions: dict[tuple[str, str], Any] = {}
        self._flags: dict[str, Any] = {}
        self._threads = 0

    def start(self) -> None:
        self._functions = dict(_functions())
        self._flags = flags()
        self._threads = _thread._count()
        sys.addaudithook(self._audit)
        self._on = True

    def noticed(self) -> list[Note]:
        """What the candidate asked of the system so far; cheap enough for every call."""
        return [{"name": "no-side-channels", "detail": text} for text in self._events.values()]

    def problems(self) -> list[Note]:
        """Everything that is different now, each as {"name", "detail"}."""
        self._on = False
        found = self.noticed()
        found += [
            {"name": "functions-unpatched", "detail": f"the candidate replaced {where}.{name}"}
            for (where, name), old in self._functions.items()
            if _replaced(where, name, old)
        ]
        now = flags()
        found += [
            {"name": "flags-unchanged", "detail": f"{key} is now {now[key]} (was {old})"}
            for key, old in self._flags.items()
            if now[key] != old
        ]
        running = _thread._count() - self._threads
        if running > 0:
            found.append({"name": "no-threads-left", "detail": f"{running} threads are still running"})
        if children():
            found.append({"name": "no-processes-left", "detail": "child processes are still running"})
        self._on = True
        return found

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._on or event not in FORBIDDEN_EVENTS or event in self._events:
            return
        self._on = False  # looking at frames is an audited event itself
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and _is_plumbing(frame.f_code):
            frame = frame.f_back
        if frame is not None and frame.f_code.co_filename.startswith("<program_"):
            self._events[event] = f"the candidate {FORBIDDEN_EVENTS[event]} ({event}, line {frame.f_lineno})"
        self._on = True


def _is_plumbing(code: CodeType) -> bool:
    """Whether to look further up for who asked: libraries act for their caller, except torch, Triton
    and the import system, which have files and frames of their own to read."""
    return not code.co_filename.startswith(("<program_", "<frozen", *OWN_BUSINESS))


NAMESPACES: tuple[Any, ...] = (
    torch, torch.nn.functional, torch.Tensor, torch.nn.Module, torch.cuda, torch.autograd, torch.linalg,
    time, gc, sys, inspect, random, threading, _thread,
    wire, tensors, timing, stats, numerics, inputs, devices, cpu, cuda, cpu.Cpu, cuda.Cuda, timing.Rounds,
    torch.cuda.Event, torch.cuda.Stream,
)  # fmt: skip
SKIPPED = {"last_traceback", "last_value", "last_type", "last_exc", "stdin", "stdout", "stderr", "modules"}


def _label(space: Any) -> str:
    return str(getattr(space, "__qualname__", None) or getattr(space, "__name__", space))


def _spaces() -> Iterator[tuple[str, Any]]:
    yield from ((_label(space), space) for space in NAMESPACES)
    yield "builtins", sys.modules["builtins"]
    yield "worker", sys.modules["__main__"]
    yield "watch", sys.modules[__name__]
    for name, kind in vars(torch.nn).items():
        if isinstance(kind, type):
            yield f"torch.nn.{name}", kind


SPACES: dict[str, Any] = dict(_spaces())


def _functions() -> Iterator[tuple[tuple[str, str], Any]]:
    for label, space in SPACES.items():
        for name, value in list(vars(space).items()):
            if (callable(value) or isinstance(value, (staticmethod, classmethod))) and name not in SKIPPED:
                yield (label, name), value


def _replaced(label: str, name: str, old: Any) -> bool:
    new = vars(SPACES[label]).get(name)
    return new is not old and not _is_torchs_own(new)


def _is_torchs_own(value: Any) -> bool:
    """torch re-binds some of its functions itself, e.g. manual_seed when the compiler is first used."""
    code = getattr(inspect.unwrap(value) if callable(value) else value, "__code__", None)
    return code is not None and code.co_filename.startswith(TORCH_FOLDER)


def flags() -> dict[str, Any]:
    """Process-wide switches that change speed or precision."""
    return {name: _read(read) for name, read in _FLAGS.items()}


def _modes() -> int:
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    return int(torch._C._len_torch_function_stack()) + len(_get_current_dispatch_mode_stack())


_FLAGS = {
    "torch.get_num_threads()": torch.get_num_threads,
    "torch.get_default_dtype()": torch.get_default_dtype,
    "torch.is_grad_enabled()": torch.is_grad_enabled,
    "torch.is_inference_mode_enabled()": torch.is_inference_mode_enabled,
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "float32 matmul precision": torch.get_float32_matmul_precision,
    "autocast on the CPU": lambda: torch.is_autocast_enabled("cpu"),
    "autocast on CUDA": lambda: torch.is_autocast_enabled("cuda"),
    "cuBLAS TF32": lambda: torch._C._get_cublas_allow_tf32(),
    "cuBLAS reduced fp16 sums": lambda: torch._C._get_cublas_allow_fp16_reduced_precision_reduction(),
    "cuDNN TF32": lambda: torch._C._get_cudnn_allow_tf32(),
    "cuDNN on": lambda: torch.backends.cudnn.enabled,
    "cuDNN benchmark": lambda: torch.backends.cudnn.benchmark,
    "denormals flushed": lambda: float(torch.tensor(1e-310, dtype=torch.float64) * 1.0) == 0.0,
    "function and dispatch modes": _modes,
    "switch interval": sys.getswitchinterval,
    "recursion limit": sys.getrecursionlimit,
    "trace function": lambda: sys.gettrace() is None,
    "profile function": lambda: sys.getprofile() is None,
}


def _read(read: Any) -> str:
    try:
        return str(read())
    except (RuntimeError, AttributeError) as error:  # torch refuses to mix its old and new TF32 switches
        return type(error).__name__


def children() -> list[int]:
    """Process ids that this process has started and that still run."""
    found: list[int] = []
    for path in Path("/proc/self/task").glob("*/children"):
        try:
            found += map(int, path.read_text().split())
        except OSError:  # the thread has just ended
            continue
    return found


def output_problems(result: Any, arguments: Any, aliases: bool) -> list[Note]:
    """What is wrong with an output besides its values. ``aliases``: the reference returns inputs too."""
    found: list[Note] = []
    mine = [tensor.untyped_storage().data_ptr() for tensor in tensor_leaves(arguments) if tensor.numel()]
    for tensor in tensor_leaves(result):
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or vars(tensor):
            kind = type(tensor).__name__
            detail = f"the output is a {kind} with its own behavior, not a plain tensor"
            found.append({"name": "plain-outputs", "detail": detail})
        elif not aliases and tensor.numel() and tensor.untyped_storage().data_ptr() in mine:
            detail = "the output shares memory with an input; the reference's does not"
            found.append({"name": "outputs-own-memory", "detail": detail})
    return found
