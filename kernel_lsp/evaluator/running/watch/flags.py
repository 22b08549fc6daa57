"""Process-wide switches, before and after a candidate was loaded.

Covers: what changes speed or precision for everybody (threads, dtype, TF32, modes, hooks on
modules and saved tensors, operations overridden below Python, denormals) and what changes the
process (cores, priority, limits, signal handlers, import and garbage hooks, trace functions,
threads, child processes). Does not cover: a switch that is put back before anybody looks (values
and the parent's clock judge that), the random stream (the judge compares it), warnings filters,
open descriptors."""

from __future__ import annotations

import _thread
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as _modes

from kernel_lsp.evaluator.running.watch.events import CANDIDATE

LIMITS = tuple(getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_"))
ATTENTION = ("flash", "mem_efficient", "math", "cudnn")
SPEAKING_KEYS = ("CPU", "CUDA", "Autograd", "Composite", "BackendSelect", "Python")
"""Dispatch keys under which another implementation changes results; Meta is for shapes alone."""


def flags() -> dict[str, Any]:
    """Name of every switch -> how it stands, as text."""
    return {name: _read(read) for name, read in FLAGS.items()}


def _read(read: Callable[[], Any]) -> str:
    try:
        return str(read())
    except (RuntimeError, AttributeError) as error:
        # torch refuses to mix its old and new TF32 switches.
        return type(error).__name__


def _module_hooks() -> int:
    return sum(len(value) for name, value in vars(hooks).items()
               if name.startswith("_global") and isinstance(value, dict))  # fmt: skip


def _overridden() -> list[str]:
    found = (key.split("/") for key in torch.library._impls if key.startswith(("aten/", "prims/")))
    return sorted("/".join(parts) for parts in found if parts[-1].startswith(SPEAKING_KEYS))


def _handlers() -> list[str]:
    return [f"{number}:{signal.getsignal(number)}" for number in sorted(signal.valid_signals())]


def _import_hooks() -> list[str]:
    """Only a candidate's own: libraries add some when they are imported."""
    found = [*sys.meta_path, *sys.path_hooks]
    names = [str(getattr(hook, "__module__", None) or type(hook).__module__) for hook in found]
    return [name for name in names if name.startswith(CANDIDATE[1:])]


def _memory_share() -> float | None:
    """What this process may take of the device; None without one, or where torch cannot tell."""
    read = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    return float(read()) if read and torch.cuda.is_initialized() else None


FLAGS: MappingProxyType[str, Callable[[], Any]] = MappingProxyType({
    "torch.get_num_threads()": torch.get_num_threads,
    "torch.get_num_interop_threads()": torch.get_num_interop_threads,
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
    "oneDNN on": lambda: torch._C._get_mkldnn_enabled(),
    "NNPACK on": lambda: torch._C._get_nnpack_enabled(),
    "attention by": lambda: [getattr(torch._C, f"_get_{way}_sdp_enabled")() for way in ATTENTION],
    "fast path of nn.MultiheadAttention": torch.backends.mha.get_fastpath_enabled,
    "einsum's order": lambda: (torch.backends.opt_einsum.enabled, torch.backends.opt_einsum.strategy),
    "how tensors are printed": lambda: vars(torch._tensor_str.PRINT_OPTS),
    "denormals flushed": lambda: float(torch.tensor(1e-310, dtype=torch.float64) * 1.0) == 0.0,
    "function and dispatch modes": lambda: torch._C._len_torch_function_stack() + len(_modes()),
    "current stream": lambda: torch.cuda.current_stream().cuda_stream if torch.cuda.is_initialized() else 0,
    "share of the device's memory": _memory_share,
    "hooks on all modules": _module_hooks,
    "hooks on saved tensors": lambda: torch._C._autograd._top_saved_tensors_default_hooks(True) is not None,
    "saved tensors allowed": lambda: torch._C._autograd._saved_tensors_hooks_is_enabled(),
    "anomaly detection": torch.is_anomaly_enabled,
    "multithreaded backward": lambda: torch._C._is_multithreading_enabled(),
    "overridden operations": _overridden,
    "switch interval": sys.getswitchinterval,
    "recursion limit": sys.getrecursionlimit,
    "trace function": lambda: sys.gettrace() is None,
    "profile function": lambda: sys.getprofile() is None,
    "garbage collection": lambda: (gc.isenabled(), gc.get_threshold(), gc.get_debug()),
    "hooks on garbage collection": lambda: len(gc.callbacks),
    "import hooks": _import_hooks,
    "signal handlers": _handlers,
    "timers": lambda: [signal.getitimer(which)[0] > 0 for which in (0, 1, 2)],
    "cores": lambda: sorted(os.sched_getaffinity(0)),
    "priority": lambda: os.getpriority(os.PRIO_PROCESS, 0),
    "limits": lambda: [resource.getrlimit(limit) for limit in LIMITS],
    "folder": lambda: Path.cwd(),
})  # fmt: skip


def threads() -> int:
    """Python threads that run besides the main one, whoever started them."""
    return _thread._count()


def no_monitor_of_progress() -> None:
    """torch.compile shows its search for kernels with tqdm, whose first bar starts a thread that
    stays: not the candidate's doing, yet it was called cheating for it (max-autotune, torch 2.11,
    H200)."""
    tqdm = sys.modules.get("tqdm")  # imported with torch, where it is installed
    if tqdm is not None:
        tqdm.tqdm.monitor_interval = 0


def children() -> list[int]:
    """Process ids that this process has started and that still run."""
    found: list[int] = []
    for path in Path("/proc/self/task").glob("*/children"):
        try:
            found += map(int, path.read_text().split())
        except OSError:  # the thread has just ended
            continue
    return found
