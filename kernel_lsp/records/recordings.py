"""What `kernel-lsp record` saw of a program: how Triton kernels were launched, and what took its
time.

Read from ``.kernel-lsp/*.toml`` by workloads/. How modules were called is a `Workload` like any
other."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.records.code import ArgSpec
from kernel_lsp.records.common import Json


@dataclass(frozen=True, kw_only=True, slots=True)
class BusyShare:
    """How much of a recorded run one target, or one way of calling it, was. Forward only."""

    calls: int
    """Counted for a target; estimated from sampled calls for one of several ways of calling it."""
    share: float | None = None
    """Of the time from the first recorded call to the end of the last, 0..1; CUDA events where the
    work was on a GPU, the clock elsewhere. A target that calls another includes it. None: never
    timed."""
    mean_us: float | None = None
    """Of the sampled calls."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedLaunch:
    """One way in which a Triton kernel was launched in a recorded run: same signature, constants
    and grid."""

    kernel: str
    """Qualified name of the ``@triton.jit`` function in its file."""
    path: str
    """Of that file, from the workspace root, with forward slashes."""
    arguments: tuple[ArgSpec, ...]
    """Every parameter but the constexprs, by name, in the kernel's order. A pointer is its tensor
    (a view keeps its own shape and stride), a number is its value."""
    constants: Json
    """constexpr parameters by name. What TOML cannot hold (a dtype, a function) is its repr."""
    grid: tuple[int, ...]
    """As it was evaluated for this launch."""
    num_warps: int | None = None
    """What the launch used, whoever chose it; None: unknown, as in the interpreter."""
    num_stages: int | None = None
    num_ctas: int | None = None
    autotuned: bool = False
    """``constants`` and warps are the configuration that ``triton.autotune`` had chosen."""
    aliases: tuple[tuple[str, ...], ...] = ()
    """Parameters whose tensors shared memory, as in a kernel that works in place."""
    launcher: str | None = None
    """``path::qualname`` of the workspace's function that launched it; None: not of the
    workspace."""
    called_with: tuple[ArgSpec, ...] | None = None
    """The launcher's arguments by name, as they were when it launched; None: not recorded, or one
    of them is an object that no workload can hold."""
    busy: BusyShare

    @property
    def target(self) -> str:
        """The kernel as `path::name`."""
        return f"{self.path}::{self.kernel}"
