"""Where the time of one verdict goes: wall and CPU seconds of every question that it asks.

    PYTHONPATH=. python3 benchmarks/verdict_stages.py                       # a small block, cold
    PYTHONPATH=. python3 benchmarks/verdict_stages.py --program examples/gelu_bias_tail.py
    PYTHONPATH=. python3 benchmarks/verdict_stages.py --times 3 --brief --warm

A candidate that is its reference spelled in other words is judged in full: trials, gradients,
edges, growth, baselines, timing. Each time it is another reference to the gate, and what is built
once for a machine is kept from the time before. Wall seconds of questions overlap, so they do not
add up; CPU seconds are those of the process that was asked. Other work on the machine makes wall
seconds longer and CPU seconds hardly, so compare the latter, taken in turns. Standard library and
psutil on this side."""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from kernel_lsp.evaluator import Gate
from kernel_lsp.evaluator.request import EvaluationRequest
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.process import Child
from kernel_lsp.records import Evaluation

BLOCK = '''
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """An attention block of 64 channels and its feed-forward part."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(64), nn.LayerNorm(64)
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        scores = torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1)
        x = x + self.out(scores @ v)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def get_inputs():
    return [torch.randn(8, 32, 64)]
'''


@dataclass
class Spent:
    """What the questions of one verdict took."""

    wall: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    cpu: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    count: dict[str, int] = field(default_factory=lambda: defaultdict(int))


@contextmanager
def measured() -> Iterator[Spent]:
    """Every question that a child answers inside the block."""
    spent, exchange = Spent(), Child._exchange_within

    async def watched(self: Child, seconds: float, message: dict[str, Any], blobs: Any) -> Any:
        name = f"{self.name.rpartition('.')[2]}.{message['do']}"
        before, start = _cpu(self.process.pid), time.monotonic()
        try:
            return await exchange(self, seconds, message, blobs)
        finally:
            spent.wall[name] += time.monotonic() - start
            spent.cpu[name] += _cpu(self.process.pid) - before
            spent.count[name] += 1

    Child._exchange_within = watched  # type: ignore[method-assign]
    try:
        yield spent
    finally:
        Child._exchange_within = exchange  # type: ignore[method-assign]


def _cpu(pid: int) -> float:
    try:
        return sum(psutil.Process(pid).cpu_times()[:4])
    except psutil.Error:
        return 0.0


async def judge(
    request: EvaluationRequest, cache: Path, *, warm: bool
) -> tuple[Evaluation, Spent, float]:
    """(verdict, what its questions took, wall seconds). ``warm``: torch is imported before, as it
    is in an editor; else that is part of it."""
    with measured() as spent:
        async with Gate(cache=cache) as gate:
            if warm:
                gate.warm(request.python)
                await asyncio.gather(*gate._warming)
            start = time.monotonic()
            evaluation = await gate.evaluate(request)
            seconds = time.monotonic() - start
    return evaluation, spent, seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--program", type=Path, help="reference; default: a small block")
    parser.add_argument("--candidate", type=Path, help="default: the reference itself")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--warm", action="store_true", help="torch is imported before")
    parser.add_argument("--inference", action="store_true", help="nobody differentiates")
    parser.add_argument("--brief", action="store_true", help="one line of JSON per verdict")
    options = parser.parse_args()
    reference = options.program.read_text() if options.program else BLOCK
    candidate = options.candidate.read_text() if options.candidate else reference
    with tempfile.TemporaryDirectory() as cache:
        for number in range(options.times):
            request = request_from_files(
                f"{reference}\n# {number}\n",
                candidate + "\n# the same in other words\n",
                device=options.device,
                has_cuda=options.device == "cuda",
                inference=options.inference,
            )
            found = asyncio.run(judge(request, Path(cache), warm=options.warm))
            _show(*found, brief=options.brief)


def _show(evaluation: Evaluation, spent: Spent, seconds: float, *, brief: bool) -> None:
    cpu = sum(spent.cpu.values())
    status = f"{evaluation.status}{': ' * bool(evaluation.detail)}{evaluation.detail}"
    if brief:
        told = {"wall": round(seconds, 2), "cpu": round(cpu, 2), "status": status}
        print(json.dumps({**told, "cpu_of": {k: round(v, 2) for k, v in spent.cpu.items()}}))
        return
    print(f"{status}\n{seconds:.2f} s wall, {cpu:.2f} s CPU of all questions\n")
    print(f"{'question':24} {'times':>5} {'wall s':>8} {'CPU s':>8}")
    for name in sorted(spent.wall, key=lambda name: -spent.cpu[name]):
        print(f"{name:24} {spent.count[name]:5} {spent.wall[name]:8.2f} {spent.cpu[name]:8.2f}")


if __name__ == "__main__":
    main()
