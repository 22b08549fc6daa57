"""Triton kernels as targets: what each gains over its own best configuration, judged by the gate.

    PYTHONPATH=. python3 benchmarks/triton_targets.py --limit-s 400 --lanes 4 --out
    triton-h200-DATE.json
    … --packages DIR     kernels of liger-kernel and flag-gems too: DIR holds their unpacked wheels
                         (pip download --no-deps liger-kernel flag-gems; python3 -m zipfile -e FILE
                         DIR)
    … --use NAME         planned by the rule (rule) or a policy (launch-small@1), to compare them
    … --only REGEX       of path and name; --resume goes on with what --out has not yet, and asks
                         once more what could not be judged; --merge FILE… takes the rows of other
                         runs over

Reference and baseline are the kernel as it is written (autotuned where it is). A kernel for which
nothing is offered counts as 1.0 in the mean. What packages' kernels are called with is in
triton/installed. On a CPU the interpreter judges, so nothing has a speed. Not covered: searches
deeper than the quick one."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import os
import re
import sys
import tempfile
import time
import tomllib
import venv
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.reporting import circumstances, write_record
from kernel_lsp import analysis, config, phases
from kernel_lsp.errors import KernelLspError
from kernel_lsp.files import read_source
from kernel_lsp.models.store import PolicyStore
from kernel_lsp.pipeline import Pipeline
from kernel_lsp.records import Job, Outcome, Snapshot, TargetKind, Verdict
from trainer.tasks import timed_tasks

FOLDER = Path(__file__).resolve().parent / "triton"
OURS = (FOLDER.parent, FOLDER.parents[1], Path())
"""Folders of sys.path that the interpreter of a project has no business with."""
UNJUDGED = "could not judge"
Rows = dict[str, dict[str, Any]]


def jobs(device: str, only: str, packages: Path | None) -> list[Job]:
    """Kernels of ours and, where they are, of installed packages, by turns: a run that is cut
    short has seen some of each."""
    groups: dict[str, list[Job]] = {}
    for job in (*own(device), *(installed(device, packages) if packages else ())):
        groups.setdefault(name(job).partition("/")[0] if job.folder else "", []).append(job)
    turns = itertools.chain.from_iterable(itertools.zip_longest(*groups.values()))
    return [job for job in turns if job is not None and re.search(only, name(job))]


def name(job: Job) -> str:
    """``file::kernel``, of packages with their name."""
    path = Path(job.path)
    short = path.relative_to(job.folder).as_posix() if job.folder else path.name
    return f"{short}::{job.qualname}"


def own(device: str) -> Iterator[Job]:
    for path in sorted(FOLDER.glob("*.py")):
        text = read_source(path).text
        for target in analysis.analyze(Snapshot(uri=path.as_uri(), text=text)).targets:
            if target.kind is TargetKind.TRITON_KERNEL:
                yield Job(text=text, path=str(path), qualname=target.qualname, device=device)


def installed(device: str, packages: Path) -> Iterator[Job]:
    """The folder becomes a workspace with our workloads; kernels of packages that it lacks are
    left out."""
    packages = packages.resolve()
    texts = [path.read_text() for path in sorted((FOLDER / "installed").glob("*.toml"))]
    (packages / ".kernel-lsp").mkdir(exist_ok=True)
    (packages / ".kernel-lsp" / "workloads.toml").write_text("\n".join(texts))
    for workload in tomllib.loads("\n".join(texts))["workload"]:
        path = packages / workload["target"].split("::")[0]
        if path.exists():
            text = read_source(path).text
            yield Job(
                text=text,
                path=str(path),
                qualname=workload["name"],
                folder=str(packages),
                device=device,
            )


def interpreter(packages: Path, folder: Path) -> str:
    """One that has the packages and all that this one has. Returns its path."""
    venv.create(folder, system_site_packages=True, symlinks=True)
    standard = str(Path(os.__file__).parent)
    places = [
        p
        for p in sys.path
        if Path(p).is_dir() and not standard.startswith(p) and Path(p) not in OURS
    ]
    lines = "\n".join([str(packages.resolve()), *places])
    os.environ.setdefault("GEMS_VENDOR", "nvidia")  # else flag-gems starts programs to find its GPU
    next(folder.glob("lib/python*/site-packages")).joinpath("packages.pth").write_text(lines + "\n")
    return str(folder / "bin" / "python")


def row(outcome: Outcome) -> dict[str, Any]:
    best = outcome.best
    if best is None or best.verdict is not Verdict.FASTER:
        return {"speedup": None, "note": outcome.note}
    gains = {
        name: [gain.low, gain.mid, gain.high] for name, gain in best.evaluation.speedups.items()
    }
    steps = [(step.skill, step.parameters) for step in best.candidate.steps]
    return {"speedup": min(gain[1] for gain in gains.values()), "gains": gains, "steps": steps}


async def measured(pipeline: Pipeline, job: Job) -> dict[str, Any]:
    begun = time.monotonic()
    with phases.collect_phases() as spent:
        try:
            found = row(await pipeline.optimize(job))
        except KernelLspError as error:
            found = {"speedup": None, "note": str(error)}
    longest = sorted(spent.seconds().items(), key=lambda part: -part[1])[:8]
    return {**found, "seconds": round(time.monotonic() - begun, 1), "phases_s": dict(longest)}


async def run(waiting: list[Job], rows: Rows, options: argparse.Namespace) -> None:
    end = time.monotonic() + options.limit_s
    with tempfile.TemporaryDirectory() as data:
        settings = replace(config.load(None)[0], data_dir=data)
        if options.use:
            PolicyStore(Path(data)).use(options.use)
        if options.packages:
            settings = replace(settings, python=interpreter(options.packages, Path(data, "venv")))
        pipeline = Pipeline(settings)

        async def one(job: Job) -> None:
            rows[name(job)] = found = await measured(pipeline, job)
            show(name(job), found)
            if options.out:
                save(options, rows)

        try:
            await timed_tasks.share(timed_tasks.until(end, waiting), one, options.lanes)
        finally:
            await pipeline.close()


def show(kernel: str, found: dict[str, Any]) -> None:
    gain = f"{found['speedup']:.2f}x" if found["speedup"] else "silent"
    why = "; ".join(f"{skill} {values}" for skill, values in found.get("steps", ())) or found.get(
        "note"
    )
    print(
        f"{kernel.rpartition('/')[2]:52} {gain:7} {found['seconds']:6.1f} s  {str(why)[:150]}",
        flush=True,
    )


def geomean(rows: Rows) -> float:
    return math.exp(sum(math.log(r["speedup"] or 1.0) for r in rows.values()) / max(1, len(rows)))


def summary(rows: Rows) -> dict[str, Any]:
    offered = sum(1 for row in rows.values() if row["speedup"])
    return {"kernels": len(rows), "offered": offered, "geomean": geomean(rows)}


def save(options: argparse.Namespace, rows: Rows) -> None:
    groups: dict[str, Rows] = {}
    for kernel, found in rows.items():
        groups.setdefault(kernel.partition("/")[0], {})[kernel] = found
    record = {
        "schema_version": 3,
        **circumstances(options.device),
        **summary(rows),
        "groups": {group: summary(some) for group, some in groups.items()},
        "rows": rows,
    }
    write_record(options.out, record)


def earlier(paths: Iterable[Path]) -> Rows:
    """What other runs have found; a row that could not be judged gives way to one that was, and is
    asked again."""
    rows: Rows = {}
    for path in paths:
        rows |= json.loads(path.read_text())["rows"]
    return {kernel: row for kernel, row in rows.items() if UNJUDGED not in (row.get("note") or "")}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument(
        "--limit-s", type=float, default=400, help="no kernel is begun after that (400)"
    )
    parser.add_argument("--lanes", type=int, default=4, help="kernels at a time (4)")
    parser.add_argument(
        "--only", default="", help="only kernels whose file or name matches this expression"
    )
    parser.add_argument("--packages", type=Path, help="folder of unpacked wheels")
    parser.add_argument("--use", metavar="NAME", help="who plans: rule, or a policy by its name")
    parser.add_argument("--resume", action="store_true", help="keep what --out has, do the rest")
    parser.add_argument(
        "--merge", type=Path, nargs="*", default=[], help="keep what these have, too"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    kept = [options.out] if options.resume and options.out and options.out.exists() else []
    rows = earlier([*options.merge, *kept])
    every = jobs(options.device, options.only, options.packages)
    asyncio.run(run([job for job in every if name(job) not in rows], rows, options))
    if options.out:
        save(options, rows)
    totals = summary(rows)
    mean = f"geometric mean {totals['geomean']:.2f}x (silent as 1.0)"
    print(f"{len(rows)} kernels, {totals['offered']} offered, {mean}; {len(every)} were asked for")


if __name__ == "__main__":
    main()
