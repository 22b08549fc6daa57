"""Triton kernels as targets: what each gains over its own best configuration, judged by the gate.

    PYTHONPATH=. python3 benchmarks/triton_targets.py --device cuda --limit-s 240 --out triton-h200-DATE.json

Reference and baseline are the kernel as it is written (autotuned where it is). A kernel for which nothing
is offered counts as 1.0 in the mean. On a CPU the interpreter judges, so nothing has a speed. Not covered:
kernels of installed packages, searches deeper than the quick one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import re
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernel_lsp import analysis, config
from kernel_lsp.errors import KernelLspError
from kernel_lsp.files import read_source, replace_file
from kernel_lsp.pipeline import Pipeline
from kernel_lsp.records import Job, Outcome, Snapshot, TargetKind, Verdict

FOLDER = Path(__file__).resolve().parent / "triton"


def jobs(device: str, pattern: str) -> list[Job]:
    found = []
    for path in sorted(FOLDER.glob("*.py")):
        text = read_source(path).text
        targets = analysis.analyze(Snapshot(uri=path.as_uri(), text=text)).targets
        kernels = [t.qualname for t in targets if t.kind is TargetKind.TRITON_KERNEL]
        kernels = [name for name in kernels if re.search(pattern, name)]
        found += [Job(text=text, path=str(path), qualname=name, device=device) for name in kernels]
    return found


def row(outcome: Outcome) -> dict[str, Any]:
    best = outcome.best
    if best is None or best.verdict is not Verdict.FASTER:
        return {"speedup": None, "note": outcome.note}
    gains = {name: [gain.low, gain.mid, gain.high] for name, gain in best.evaluation.speedups.items()}
    steps = [(step.skill, step.parameters) for step in best.candidate.steps]
    return {"speedup": min(gain[1] for gain in gains.values()), "gains": gains, "steps": steps}


async def measured(pipeline: Pipeline, job: Job, rows: dict[str, Any]) -> None:
    begun = time.monotonic()
    try:
        found = row(await pipeline.optimize(job))
    except KernelLspError as error:
        found = {"speedup": None, "note": str(error)}
    rows[job.qualname] = {**found, "seconds": round(time.monotonic() - begun, 1)}
    shown = f"{found['speedup']:.2f}x" if found["speedup"] else "silent"
    why = "; ".join(f"{skill} {values}" for skill, values in found.get("steps", ())) or found.get("note")
    print(f"{job.qualname:24} {shown:8} {rows[job.qualname]['seconds']:6.1f} s  {str(why)[:170]}", flush=True)


async def run(waiting: list[Job], limit_s: float, lanes: int) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    end = time.monotonic() + limit_s
    with tempfile.TemporaryDirectory() as data:
        pipeline = Pipeline(replace(config.load(None)[0], data_dir=data))

        async def lane() -> None:
            while waiting and time.monotonic() < end:
                await measured(pipeline, waiting.pop(0), rows)

        try:
            await asyncio.gather(*(lane() for _ in range(lanes)))
        finally:
            await pipeline.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--limit-s", type=float, default=240, help="no kernel is begun after that (240)")
    parser.add_argument("--lanes", type=int, default=3, help="kernels at a time (3)")
    parser.add_argument("--filter", default="", help="only kernels whose name matches this expression")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = asyncio.run(run(jobs(options.device, options.filter), options.limit_s, options.lanes))
    mean = math.exp(sum(math.log(r["speedup"] or 1.0) for r in rows.values()) / max(1, len(rows)))
    offered = sum(1 for r in rows.values() if r["speedup"])
    print(f"{len(rows)} kernels, {offered} offered, geometric mean {mean:.2f}x (silent as 1.0)")
    if options.out:
        about = {"schema_version": 1, "date": time.strftime("%Y-%m-%d"), "device": options.device}
        told = {**about, "geomean": mean, "kernels": rows}
        replace_file(options.out, (json.dumps(told, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
