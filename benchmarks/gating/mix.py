"""Candidates as a proposer would send them: small tasks, most right, some wrong, no two alike.

Half are plain PyTorch, half Triton kernels (on a CPU all are plain: nothing there runs a kernel in
the time of a kernel). Of ten, seven are right, one computes something else, one does not compile or
load, one raises. Texts only, no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

from benchmarks.gating.tasks import GateTask
from kernel_lsp.records import EvalStatus

SMALL = (
    GateTask(
        name="squared relu",
        inputs=("torch.randn(256, 512)",),
        body="y = torch.relu(x); return y * x + 1",
        other="return torch.addcmul(torch.ones_like(x), torch.relu(x), x)",
    ),
    GateTask(
        name="softmax",
        inputs=("torch.randn(256, 512)",),
        body="e = torch.exp(x - x.amax(-1, keepdim=True)); return e / e.sum(-1, keepdim=True)",
        other="return torch.softmax(x, -1)",
    ),
    GateTask(
        name="layer norm",
        inputs=("torch.randn(256, 512)",),
        init="self.norm = nn.LayerNorm(512)",
        body="d = x - x.mean(-1, keepdim=True); v = (d * d).mean(-1, keepdim=True); "
        "return d / torch.sqrt(v + 1e-5) * self.norm.weight + self.norm.bias",
        other="return self.norm(x)",
    ),
    GateTask(
        name="linear, squared relu",
        inputs=("torch.randn(256, 512)",),
        init="self.a = nn.Linear(512, 256)",
        body="y = x @ self.a.weight.t() + self.a.bias; return torch.relu(y) * y + 1",
        other="y = self.a(x); return torch.relu(y) * y + 1",
    ),
)

KERNEL = """\
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def {kernel}({pointers}, out_ptr, n, BLOCK: tl.constexpr):
{code}


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x):
        {before}
        out = torch.empty_like(y)
        {kernel}[{grid}]({tensors}, out, {size}, BLOCK={block}, num_warps={warps})
        return out
"""
POINTWISE = """\
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(y_ptr + offs, mask=offs < n)
    tl.store(out_ptr + offs, tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL) * y + 1, mask=offs < n)"""
SOFTMAX = """\
    offs = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n + offs
    y = tl.load(y_ptr + row, mask=offs < n, other=-float("inf"))
    e = tl.exp(y - tl.max(y, axis=0))
    tl.store(out_ptr + row, e / tl.sum(e, axis=0), mask=offs < n)"""
NORM = """\
    offs = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n + offs
    y = tl.load(y_ptr + row, mask=offs < n, other=0.0)
    d = tl.where(offs < n, y - tl.sum(y, axis=0) / n, 0.0)
    scale = 1 / tl.sqrt(tl.sum(d * d, axis=0) / n + 1e-5)
    w = tl.load(w_ptr + offs, mask=offs < n)
    b = tl.load(b_ptr + offs, mask=offs < n)
    tl.store(out_ptr + row, d * scale * w + b, mask=offs < n)"""
ELEMENTS, ROWS = "(triton.cdiv(y.numel(), {block}),)", "(y.shape[0],)"
CODE = {
    # name: (kernel body, pointers, tensors, grid, size, block, init, before)
    "squared relu": (POINTWISE, "y_ptr", "y", ELEMENTS, "y.numel()", None, "pass", "y = x.contiguous()"),
    "softmax": (
        SOFTMAX, "y_ptr", "y", ROWS, "y.shape[1]", "triton.next_power_of_2(y.shape[1])",
        "pass", "y = x.contiguous()",
    ),
    "layer norm": (
        NORM, "y_ptr, w_ptr, b_ptr", "y, self.norm.weight, self.norm.bias", ROWS, "y.shape[1]", 512,
        "self.norm = nn.LayerNorm(512)", "y = x.contiguous()",
    ),
    "linear, squared relu": (
        POINTWISE, "y_ptr", "y", ELEMENTS, "y.numel()", None, "self.a = nn.Linear(512, 256)",
        "y = self.a(x)",
    ),
}  # fmt: skip
BLOCKS = (256, 512, 1024, 2048)
OUTCOMES = (
    "right",
    "right",
    "wrong",
    "right",
    "right",
    "raises",
    "right",
    "right",
    "does not load",
    "right",
)
EXPECTED = {
    "right": {EvalStatus.PASSED},
    "wrong": {EvalStatus.WRONG_RESULT},
    "raises": {EvalStatus.RUNTIME_ERROR},
    "does not load": {EvalStatus.COMPILE_ERROR, EvalStatus.RUNTIME_ERROR},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """One candidate on its way to the gate, and what is true about it."""

    task: GateTask
    text: str
    outcome: str
    triton: bool

    def right(self, status: EvalStatus | None) -> bool:
        """Whether this verdict is the true one."""
        return status in EXPECTED[self.outcome]


def stream(device: str, start: int = 0) -> Iterator[Sent]:
    """Candidates without end; ``start`` keeps the texts of two streams apart."""
    for number in count(start):
        turn = number // 2
        outcome = OUTCOMES[turn % len(OUTCOMES)]
        task = SMALL[turn % len(SMALL)]
        triton = device == "cuda" and number % 2 == 1
        text = _kernel(task, number, outcome) if triton else _plain(task, number, outcome)
        yield Sent(task=task, text=text, outcome=outcome, triton=triton)


def _plain(task: GateTask, number: int, outcome: str) -> str:
    before, _, expression = task.other.rpartition("return ")
    change = {
        "right": f"{before}return {expression}",
        "wrong": f"{before}return 1.01 * ({expression})",
        "raises": f"raise ValueError('candidate {number}')",
        "does not load": f"{before}return {expression}",
    }[outcome]
    ending = "NUMBER = missing" if outcome == "does not load" else f"NUMBER = {number}"
    return replace(task, other=change).candidate + f"\n{ending}  # candidate {number}\n"


def _kernel(task: GateTask, number: int, outcome: str) -> str:
    code, pointers, tensors, grid, size, block, init, before = CODE[task.name]
    chosen = block or BLOCKS[number // 8 % len(BLOCKS)]
    if outcome == "wrong":  # the end of every block stays unwritten
        code = "offs < n - 5)".join(code.rsplit("offs < n)", 1))
    if outcome == "does not load":
        code = code.replace("tl.load(", "tl.no_such_function(", 1)
    return KERNEL.format(
        kernel=f"{task.name.split()[-1]}_{number}",
        pointers=pointers,
        code=code,
        init=init,
        before=f"raise ValueError('candidate {number}')" if outcome == "raises" else before,
        grid=grid.format(block=chosen),
        tensors=tensors,
        size=size,
        block=chosen,
        warps=(2, 4, 8)[number % 3],
    )
