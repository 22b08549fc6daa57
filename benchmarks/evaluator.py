"""What judging costs: seconds per candidate, A/A false claims, cancel-to-dead. Prints a table.

    PYTHONPATH=. python3 benchmarks/evaluator.py --device cuda --out results.json

Standard library on this side; torch is imported by the children only.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.reporting import write_record
from kernel_lsp import wire
from kernel_lsp.evaluator import EvaluationBudget, EvaluationRequest, evaluate
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.records import Evaluation

REFERENCE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)

    def forward(self, x):
        return {body}


def get_inputs():
    return [torch.rand({rows}, {columns})]


def get_init_inputs():
    return [{columns}]
"""
BODIES = {
    "linear, gelu": "torch.nn.functional.gelu(self.linear(x))",
    "softmax": "torch.softmax(x, dim=-1)",
    "pointwise chain": "torch.tanh(x) * torch.sigmoid(x) + x",
    "linear, sum": "self.linear(x).sum(dim=1)",
}
SIZES = {"cpu": (256, 512), "cuda": (2048, 2048)}


def same(name: str, device: str, compile_s: float, timing_s: float) -> EvaluationRequest:
    """A reference against itself: right, and not faster."""
    rows, columns = SIZES[device]
    text = REFERENCE.format(body=BODIES[name], rows=rows, columns=columns)
    request = request_from_files(text, text, device=device, has_cuda=device == "cuda")
    return replace(request, budget=EvaluationBudget(compile_s=compile_s, timing_s=timing_s))


async def false_claims(device: str, trials: int) -> list[dict[str, object]]:
    rows = []
    for number in range(trials):
        name = list(BODIES)[number % len(BODIES)]
        evaluation = await evaluate(same(name, device, 0, 2))
        interval = evaluation.speedup
        rows.append(
            {
                "workload": name,
                "status": evaluation.status.value,
                "detail": evaluation.detail,
                "speedup": wire.to_json(interval),
                "claimed": evaluation.faster(),
                "seconds": evaluation.seconds,
            }
        )
    return rows


async def with_compile(device: str) -> Evaluation:
    return await evaluate(same("linear, gelu", device, 60, 2))


async def cancel_to_dead(device: str) -> float:
    """Seconds from cancelling a running evaluation until no process of it is left."""
    task = asyncio.create_task(evaluate(same("linear, gelu", device, 0, 60)))
    await asyncio.sleep(4)  # judge and workers run, and nothing is finished yet on any device
    assert not task.done(), "the evaluation was over before it was cancelled"
    start = time.perf_counter()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return time.perf_counter() - start


async def measure(device: str, trials: int) -> dict[str, object]:
    rows = await false_claims(device, trials)
    compiled = await with_compile(device)
    seconds = [float(row["seconds"]) for row in rows]  # type: ignore[arg-type]
    return {
        "device": device,
        "device_name": compiled.device_name,
        "seconds_per_candidate": median(seconds),
        "seconds_with_compile": compiled.seconds,
        "false_claims": sum(bool(row["claimed"]) for row in rows),
        "trials": rows,
        "cancel_to_dead_s": await cancel_to_dead(device),
        "with_compile": wire.to_json(compiled),
    }


def _interval(speedup: dict[str, float] | None) -> str:
    return f"{speedup['low']:.3f} .. {speedup['high']:.3f}" if speedup else "not timed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=sorted(SIZES), default="cpu")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = asyncio.run(measure(options.device, options.trials))
    print(f"device                          {result['device_name']}")
    print(f"seconds per candidate           {result['seconds_per_candidate']:.1f}")
    print(f"the same with torch.compile     {result['seconds_with_compile']:.1f}")
    print(f"A/A claims of speed             {result['false_claims']} of {options.trials}")
    print(f"cancel to dead                  {float(result['cancel_to_dead_s']):.3f} s")  # type: ignore[arg-type]
    print("each program against itself: eager / candidate, 99 % interval")
    for row in result["trials"]:  # type: ignore[attr-defined]
        print(
            f"  {row['workload']:20} {row['status']:10} {_interval(row['speedup']):22} "
            f"{row['detail']}"
        )
    write_record(options.out, result)


if __name__ == "__main__":
    main()
