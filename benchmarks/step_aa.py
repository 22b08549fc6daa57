"""The same program as its own rewrite: how often is its step called faster, how far is the ratio
from 1?

    python benchmarks/step_aa.py --comparisons 30 --out results.json
    benchmarks/programs/gpt_script.py --small

Each comparison is what `kernel-lsp optimize -- python PROGRAM.py` does with a rewrite: a copy of
the workspace, fresh processes, alternating rounds, the interval over rounds, the rule by which
edits are offered. Only that the "edited" copy is the program itself. Every comparison is written
before the next begins; the same command goes on from there. The clock is the first optimizer's
step."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.reporting import circumstances, write_record
from kernel_lsp.programs import measuring, stepping
from kernel_lsp.programs.measuring import AS_IS, ROUNDS, MeasuredWays
from kernel_lsp.programs.mirror import Mirror
from kernel_lsp.programs.stepping import Clock, ProgramWay, StepRun

ITSELF = ProgramWay(name="the program itself", variant="itself")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("program", type=Path, help="a script with an optimizer")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    parser.add_argument(
        "--root-class", default="Model", help="class of the outermost module, in the script"
    )
    parser.add_argument("--comparisons", type=int, default=30)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    rows = _known(given.out)
    program = given.program.resolve()
    clock = Clock(roots=(("__main__", given.root_class),), kind="optimizer")
    with Mirror.of(program.parent, {}) as one, Mirror.of(program.parent, {}) as other:
        for number in range(len(rows), given.comparisons):

            def start(way: ProgramWay, _: int) -> StepRun:
                mirror = one if way == AS_IS else other
                command = [sys.executable, program.name, *given.arguments]
                return stepping.run(
                    mirror, command, program.parent, way, clock, steps=given.steps, timeout_s=300.0
                )

            begun = time.time()
            measured = MeasuredWays()
            ways = [AS_IS, ITSELF] if number % 2 == 0 else [ITSELF, AS_IS]
            measuring.measure(
                measured, ways, start, lambda _: None, (*ROUNDS.first, *ROUNDS.compared)
            )
            rows.append(_row(measured, time.time() - begun))
            _write(given.out, rows, given.steps, program.name)
            print(len(rows), rows[-1]["ratio"], "CLAIM" if rows[-1]["claimed"] else "", flush=True)
    print(json.dumps(_summary(rows), indent=1))


def _row(measured: MeasuredWays, seconds: float) -> dict[str, Any]:
    ratio = measured.ratio(AS_IS, ITSELF)
    failed = measured.failed(AS_IS) or measured.failed(ITSELF)
    bounds = (
        None if ratio is None else [round(one, 5) for one in (ratio.low, ratio.mid, ratio.high)]
    )
    steps = {
        way.name: [run.step_ms for run in runs.values()] for way, runs in measured.runs.items()
    }
    return {
        "ratio": bounds,
        "claimed": ratio is not None and measuring.pays(ratio),
        "failed": failed,
        "steps_ms": steps,
        "seconds": round(seconds, 1),
        "load": round(os.getloadavg()[0], 1),
    }


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    ratios = [row["ratio"][1] for row in rows if row["ratio"]]
    return {
        "comparisons": len(rows),
        "claims": sum(row["claimed"] for row in rows),
        "failed": sum(row["failed"] is not None for row in rows),
        "median_distance": round(median(abs(one - 1.0) for one in ratios), 5) if ratios else None,
        "largest_distance": round(max(abs(one - 1.0) for one in ratios), 5) if ratios else None,
    }


def _write(out: Path, rows: list[dict[str, Any]], steps: int, program: str) -> None:
    record = {
        "program": program,
        "steps": steps,
        "rounds": len((*ROUNDS.first, *ROUNDS.compared)),
        **circumstances(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "summary": _summary(rows),
        "rows": rows,
    }
    write_record(out, record)


def _known(out: Path) -> list[dict[str, Any]]:
    return list(json.loads(out.read_text())["rows"]) if out.is_file() else []


if __name__ == "__main__":
    main()
