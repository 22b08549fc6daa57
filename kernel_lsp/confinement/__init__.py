"""What a child may touch and use: limits, folders, environment; the rest of this package makes it
so.

Covered: memory, processor time, file size, number of processes; an environment without secrets;
folders. entry.py is the one way in which something foreign is started; confine.py is what happens
in the child, also in one that a zygote has forked."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

BOOTSTRAP = Path(__file__).parent.with_name("bootstrap.py")
NOT_LINUX = f"what confines code is Linux's, and this is {sys.platform}: nothing is judged here"
NOT_LINUX_REMEDY = "run kernel-lsp in WSL, in a container or, as by Remote-SSH, on a Linux machine"
UNEDITED = "this machine permits no file in the place of another: the unedited program would run"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """rlimits of a child; None leaves the user's own."""

    memory_bytes: int | None = None
    """Address space. Leave None with CUDA, which reserves far more than it uses."""
    cpu_seconds: int | None = None
    file_bytes: int | None = 2 * 1024**3
    processes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Confinement:
    """What a child may touch."""

    scratch: Path
    """The only folder it can write to; also its working directory and TMPDIR."""
    hidden: tuple[Path, ...] = ()
    """Folders it may not even read (the judge's scratch folder, the user's keys)."""
    readable: tuple[Path, ...] = ()
    """Files and folders that it sees besides the machine's programs, wherever they lie; not what
    lies beside them."""
    writable: tuple[Path, ...] = ()
    """Further folders it can write to (the judge's outbox)."""
    overlaid: tuple[Path, ...] = ()
    """Folders that it sees and may change for itself: what it writes there is gone when it ends.
    They are read-only where the machine permits no overlays."""
    replaced: Mapping[Path, Path] = field(default_factory=dict)
    """Path of a file -> the file that it, and all it starts, sees in its place."""
    gpu: bool = False
    nesting: bool = False
    """Whether children of it confine themselves further, as a zygote's do."""


KEPT = frozenset({
    "PATH", "LD_LIBRARY_PATH", "LD_PRELOAD",
    "CC", "CXX", "VIRTUAL_ENV",
    "CONDA_PREFIX", "CONDA_DEFAULT_ENV",
    "LANG", "LANGUAGE", "LC_ALL",
    "LC_COLLATE", "LC_CTYPE", "LC_MESSAGES",
    "LC_MONETARY", "LC_NUMERIC", "LC_TIME",
    "TZ",
    "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER", "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "CUDA_FORCE_PTX_JIT",
    "CUDA_DISABLE_PTX_JIT", "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_TF32_OVERRIDE",
    "ROCM_HOME", "ROCM_PATH",
    "TRITON_INTERPRET", "TRITON_DEFAULT_FP_FUSION", "TRITON_F32_DEFAULT",
    "TRITON_DISABLE_LINE_INFO",
    "TRITON_LIBCUDA_PATH", "TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH",
    "TRITON_CUOBJDUMP_PATH",
    "TRITON_NVDISASM_PATH", "TRITON_LIBDEVICE_PATH", "TRITON_OVERRIDE_ARCH",
    "TORCH_CUDA_ARCH_LIST", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_BLAS_PREFER_CUBLASLT",
    "TORCH_BLAS_PREFER_HIPBLASLT", "TORCH_CUDNN_V8_API_DISABLED",
    "TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT",
    "TORCH_COMPILE_DISABLE", "TORCH_DEVICE_BACKEND_AUTOLOAD", "TORCHDYNAMO_DISABLE",
    "TORCHINDUCTOR_MAX_AUTOTUNE",
    "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM", "TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE",
    "TORCHINDUCTOR_CPP_WRAPPER",
    "TORCHINDUCTOR_FREEZING", "TORCHINDUCTOR_COORDINATE_DESCENT_TUNING",
    "OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "OMP_WAIT_POLICY",
    "OMP_PROC_BIND", "OMP_PLACES", "OMP_SCHEDULE",
    "OMP_DYNAMIC",
    "OMP_STACKSIZE", "MKL_NUM_THREADS", "MKL_DYNAMIC",
    "MKL_THREADING_LAYER", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS",
    "GEMS_VENDOR",
})  # fmt: skip
"""Exact names: what begins with a name of these may be a key (LANGSMITH_API_KEY, NVIDIA_API_KEY).
Without GEMS_VENDOR flag-gems starts programs to find its GPU, which a confined child may not."""


def clean_environment() -> dict[str, str]:
    """The user's environment without secrets: what a confined child has no use for, it does not
    see."""
    return {name: os.environ[name] for name in sorted(KEPT & os.environ.keys())}


def environment_for(confinement: Confinement | None, extra: dict[str, str]) -> dict[str, str]:
    """What a child sees; everything, when nothing confines it."""
    if confinement is None:
        return {**os.environ, **extra}
    scratch = str(confinement.scratch)
    private = {
        "HOME": scratch,
        "TMPDIR": scratch,
        "XDG_CACHE_HOME": scratch,
        "TRITON_CACHE_DIR": f"{scratch}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{scratch}/inductor",
    }
    return {**clean_environment(), **private, "PYTHONDONTWRITEBYTECODE": "1", **extra}
