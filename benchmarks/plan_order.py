"""How good the rule's first course is, by a table of measured plans, without a GPU.

    python -m trainer.generated --out TASKS --count 900 --seed 61
    python benchmarks/plan_order.py --tasks TASKS --tasks benchmarks/tasks [--out FILE]

For each program of the table the engine captures it as if for a CUDA device, the rule names its first course
now, and the table says how long that took on the H200; "then" is the course that was first when the table was
recorded. Both as a share of the fastest plan found, with 95 % intervals from resampling structural families.
A course is the same one when skills and sites are; its parameters are then those that were tried first.
Not covered: courses that the table does not have (counted), hosts quieter than that of the recording.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from kernel_lsp import skillbook
from kernel_lsp.errors import KernelLspError
from kernel_lsp.files import replace_file
from kernel_lsp.records import Skill
from trainer import tasks
from trainer.intervals import of_groups
from trainer.ruling import first
from trainer.tasks import SuiteTask, digest

TABLE = Path(__file__).resolve().parent / "results" / "plans-h200-2026-11-21.json"


def places(steps: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(step["skill"], step["site"]) for step in steps]


def share(entry: dict[str, Any], row: dict[str, Any]) -> float:
    """Fastest plan over this one; a wrong one is not used, and then the program stays as it is."""
    best = min(one["ms"]["candidate"] for one in entry["rows"] if one["status"] == "passed")
    mine = row["ms"]["candidate"] if row["status"] == "passed" else entry["baseline_ms"]["eager"]
    return float(min(1.0, best / mine))


def compared(task: SuiteTask, entry: dict[str, Any], skills: Sequence[Skill]) -> dict[str, Any]:
    """One program: shares then and now. Raises KernelLspError."""
    from kernel_lsp.rewrite.engine import Session

    session = Session(task.program, task.workload, "cuda", list(skills))
    ruled = [row for row in entry["rows"] if row.get("proposer")]
    chosen = [*asyncio.run(first(session, session.capture().sites))] or None
    found = next((row for row in [*ruled, *entry["rows"]] if places(row["steps"]) == chosen), None)
    return {
        "family": task.family,
        "then": share(entry, ruled[0]),
        "now": share(entry, found) if found else None,
        "best_course": max(share(entry, row) for row in ruled),
        "same": places(ruled[0]["steps"]) == chosen,
        "steps": chosen,
    }


def report(found: dict[str, dict[str, Any]]) -> str:
    known = [one for one in found.values() if one["now"] is not None]
    changed = [one for one in known if not one["same"]]
    lines = [
        f"{len(found)} programs, {len({one['family'] for one in found.values()})} families;"
        f" the table has the first course of {len(known)}, another one than then in {len(changed)}"
    ]
    for name, rows in (("all of them", known), ("with another course", changed)):
        if rows:
            low, high = interval(rows)
            told = " ".join(f"{key} {fmean(r[key] for r in rows):.3f}" for key in ("then", "now"))
            best = fmean(row["best_course"] for row in rows)
            lines.append(f"{name}: {told} [gain {low:+.3f}, {high:+.3f}], best course of then {best:.3f}")
    return "\n".join(lines)


def interval(rows: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """95 % of the gain, families resampled."""
    families = defaultdict(list)
    for row in rows:
        families[row["family"]].append(row["now"] - row["then"])
    return of_groups(families.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", type=Path, action="append", required=True, help="a folder of tasks")
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--limit-s", type=float, default=3600.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    table = json.loads(options.table.read_text())["tasks"]
    skills = [skill for skill in skillbook.load(skillbook.folders(())).skills if skill.executable]
    found, end = {}, time.monotonic() + options.limit_s
    for task in (one for folder in options.tasks for one in tasks.load(folder).tasks):
        entry = table.get(task.name)
        if entry is None or entry["reference"] != digest(task.source) or time.monotonic() > end:
            continue
        try:
            found[task.name] = compared(task, entry, skills)
        except KernelLspError as error:
            print(f"{task.name}: {error}", file=sys.stderr)
    print(report(found))
    if options.out:
        replace_file(options.out, (json.dumps(found, indent=1) + "\n").encode())
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
