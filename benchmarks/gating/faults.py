"""Candidates that do the worst that can happen to a process, to show what happens to the next one.

Every fault is reached without a word that the static guards look for, because a candidate that
is never run proves nothing. What one can take from its machine is bounded: a gate without limits
must show up in the table and not end the machine."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.gating.tasks import GateTask

TASK = GateTask(
    name="fault",
    inputs=("torch.randn(64, 256)",),
    init="self.a = nn.Linear(256, 256)",
    body="return torch.relu(self.a(x)) * 2 + x",
    other="y = torch.relu(self.a(x)); return (y + y) + x",
)
WRONG = "y = torch.relu(self.a(x)); return (y + 1.01 * y) + x"
GENERATIONS = {"cuda": 11, "cpu": 7}
"""A fork bomb of 2048 processes, of 128 where cores are few."""
DISK_FILES, DISK_FILE_BYTES = 32, 2**28
HOST_STEPS = 96
"""Of one GiB each: more than a share of 80 % of a machine with 128 GiB lets one child have."""

REACH = "found = {name[::-1]: value for name, value in vars(torch).items()}; "
"""Names that are computed are what static guards say they do not cover."""
LIBC = REACH + "libc = found['sepytc'].pythonapi; "
"""The interpreter's own symbols and the C library's, with no library to open."""

OVERWRITE = """\
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def away(x_ptr, n, BLOCK: tl.constexpr):
    offs = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    tl.store(x_ptr + offs * 1099511627776, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(256, 256)

    def forward(self, x):
        y = torch.relu(self.a(x)) * 2 + x
        away[(triton.cdiv(y.numel(), 256),)](y, y.numel(), BLOCK=256)
        torch.cuda.synchronize()
        return y
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    name: str
    text: str
    call_s: float = 20.0
    memory_bytes: int | None = None


def faults(device: str) -> tuple[Fault, ...]:
    """In the order of how much of the machine they touch: what may end this program comes last."""
    wait = "torch.cuda.synchronize()"
    on_gpu = (
        Fault(name="illegal address", text=OVERWRITE),
        _fault(
            "device assert", f"y = x.flatten()[torch.full((4,), 2**30, device=x.device)]; {wait}"
        ),
        _fault(
            "out of memory, device",
            "kept = [torch.empty(2**33, dtype=torch.uint8, device=x.device) for _ in range(64)]",
        ),
    )
    return (
        _fault("kill -9 of itself", f"{LIBC}libc.kill(libc.getpid(), 9)"),
        _fault("segmentation fault", f"{REACH}found['sepytc'].string_at(0)"),
        *(on_gpu if device == "cuda" else ()),
        Fault(name="hang", text=_text("while self is not None: pass"), call_s=4.0),
        _fault(
            "disk full",
            f"{REACH}folder = found['so'].environ['TMPDIR']; "
            f"block = torch.zeros({DISK_FILE_BYTES}, dtype=torch.uint8).numpy(); "
            f"_ = [block.tofile(f'{{folder}}/fill{{i}}') for i in range({DISK_FILES})]",
        ),
        _fault(
            "fork bomb",
            f"{LIBC}_ = [libc.fork() for _ in range({GENERATIONS[device]})]",
        ),
        Fault(
            name="out of memory, host",
            text=_text(
                f"kept = [torch.ones(2**30, dtype=torch.uint8, device='cpu') for _ in "
                f"range({HOST_STEPS})]"
            ),
            memory_bytes=None if device == "cuda" else 6 * 2**30,
        ),
    )


def _fault(name: str, statements: str) -> Fault:
    return Fault(name=name, text=_text(statements))


def _text(statements: str) -> str:
    """The right candidate with ``statements`` before everything that it does when called."""
    return replace(TASK, other=f"{statements}\n        {TASK.other}").candidate
