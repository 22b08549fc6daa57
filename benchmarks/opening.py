"""How much of a program's step is opened, and for how much of it a rewrite is proposed.

    python benchmarks/opening.py --python ENVIRONMENT/bin/python --out results.json
    python benchmarks/opening.py --out results.json convnext_train gat_train

Each driver of benchmarks/programs runs with --small as its user would run it, recorded through the
product; one of its steps is profiled. Then its targets are opened from the top, as `kernel-lsp
optimize -- python PROGRAM.py` does: captured to a graph as a whole or, where that fails, by the
parts of their statements that can be one. Nothing is judged or timed here. Per program, as shares
of all device time of the step (on a CPU: of all time in operators), backward pass and optimizer
included:

    whole      its target, or one around it, is one graph
    opened     the same, and targets of which parts are graphs (with all that they call)
    proposed   opened, and a rewrite other than torch.compile was made
    optimizer  inside of optimizers, and whether they have a fused implementation to be timed;
               counted as opened and proposed where they have
    rest       what is left, by the innermost target around it, with the reason in one line

Every program is written to --out before the next begins; the same command leaves out what is there
already (--again does not). A driver whose package is missing is listed as such. Programs run with
your rights."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.reporting import circumstances, write_record
from kernel_lsp.config import Settings
from kernel_lsp.errors import CaptureError, KernelLspError
from kernel_lsp.files import read_source
from kernel_lsp.pipeline import Pipeline, kept, parts
from kernel_lsp.pipeline.opened import JobBench, Opened, engine_of, open_target
from kernel_lsp.pipeline.prepare import PreparedJob, prepare
from kernel_lsp.programs import optimizing, recording, targets
from kernel_lsp.programs.bench import ProgramBench
from kernel_lsp.programs.runs import ProgramPlan
from kernel_lsp.programs.shares import IN_OPTIMIZER, ShareName, ShareRow, Shares
from kernel_lsp.programs.targets import ENOUGH, MIN_SHARE, ProgramTarget
from kernel_lsp.programs.timetable import Timetable
from kernel_lsp.records import Job, Outcome, Progress, Step
from kernel_lsp.records.rewrites import COMPILER_SKILL
from kernel_lsp.snapshots import store
from kernel_lsp.workloads import running

PROGRAMS = Path(__file__).parent / "programs"
RECORDED_STEPS = 8
RUN_SECONDS = 300.0
MAX_TRIED = 4
"""Sites of one target whose rewrite is made before it counts as without one."""
BAR_ALL, BAR_EACH = 0.85, 0.65
MISSING = "import torch\nimport sys\nfor name in sys.argv[1:]:\n    __import__(name)\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("programs", nargs="*", help="names of drivers; none: all")
    parser.add_argument("--folder", type=Path, default=PROGRAMS, help="where the drivers lie")
    parser.add_argument("--python", default=sys.executable, help="the drivers' interpreter")
    parser.add_argument("--out", type=Path, required=True, help="JSON, written after each program")
    parser.add_argument("--again", action="store_true", help="measure what is there already again")
    given = parser.parse_args()
    files = [given.folder / f"{Path(name).stem}.py" for name in given.programs]
    files = files or sorted(given.folder.glob("*.py"))
    report = _read_report(given.out)
    for file in files:
        if file.stem in report["programs"] and not given.again:
            continue
        print(f"{file.stem} …", flush=True)
        begun = time.time()
        row = _measure(file, given.python)
        row["seconds"] = round(time.time() - begun, 1)
        report["programs"][file.stem] = row
        _write_report(given.out, report, given.python)
        print(_lines_of(row), flush=True)
    print(json.dumps(report["summary"], indent=1))


def _measure(file: Path, python: str) -> dict[str, Any]:
    missing = _missing_package(file, python)
    if missing is not None:
        return {"missing": missing}
    with TemporaryDirectory(prefix="kernel-lsp-opening-") as scratch:
        root = Path(scratch).resolve() / "program"
        root.mkdir()
        shutil.copy(file, root)
        before = Path.cwd()
        os.chdir(root)  # where its user would run it
        try:
            return asyncio.run(_open_program(root, (python, file.name, "--small")))
        except KernelLspError as error:
            return {"failed": str(error)}
        finally:
            os.chdir(before)


def _missing_package(file: Path, python: str) -> str | None:
    """The last line of what importing says; None: everything is there."""
    lines = file.read_text(encoding="utf-8").splitlines()
    names = [line.split()[1] for line in lines if line.startswith(("import ", "from "))]
    done = subprocess.run(
        [python, "-W", "ignore", "-c", MISSING, *names], capture_output=True, text=True
    )
    return (done.stderr.strip().splitlines() or ["?"])[-1] if done.returncode else None


async def _open_program(root: Path, command: tuple[str, ...]) -> dict[str, Any]:
    """Raises KernelLspError when it cannot be recorded."""
    data_dir = root.parent / "data"
    out = running.default_path(root, command)
    recording.record(root, command, out, data_dir, steps=RECORDED_STEPS, to_stderr=True)
    recorded = next(iter(store.recordings(data_dir, root)), None)
    clock = optimizing.clock_of(recorded) if recorded is not None else None
    if recorded is None or clock is None:
        return {"failed": "nothing was recorded"}
    plan = ProgramPlan(root=root, folder=root, command=command, device="cpu", run_s=RUN_SECONDS)
    pipeline = Pipeline(Settings(python=command[0], data_dir=str(data_dir)))
    try:
        timetable = Timetable(math.inf)
        with ProgramBench(plan, clock, recorded, lambda progress: None, timetable) as bench:
            bench.profile()
            if bench.shares is None:
                return {"failed": "; ".join(bench.notes)}
            ranked = targets.rank_targets(recorded, bench.shares)
            opening = _ProgramOpening(pipeline, root, bench.shares)
            await opening.open_all(ranked)
            return opening.row(has_fused=bench.has_fused_optimizer)
    finally:
        await pipeline.close()


class _ProgramOpening:
    """The targets of one program, opened from the top until enough of the step is."""

    def __init__(self, pipeline: Pipeline, root: Path, shares: Shares) -> None:
        self.pipeline, self.root, self.shares = pipeline, root, shares
        self.found: list[dict[str, Any]] = []
        self._names: dict[str, list[ShareName]] = {"whole": [], "opened": [], "proposed": []}

    async def open_all(self, ranked: Sequence[ProgramTarget]) -> None:
        for one in ranked:
            begun = time.time()
            answer = await self._open(one)
            answer["seconds"] = round(time.time() - begun, 1)
            for key, names in self._names.items():
                names += [one.name] if answer.get(key) else []
            row = {"target": f"{one.name[0]}:{one.name[1]}", "share": round(one.share, 4), **answer}
            self.found.append(row)

    async def _open(self, one: ProgramTarget) -> dict[str, Any]:
        if one.why_not is not None:
            return {"reason": one.why_not}
        if one.share < MIN_SHARE:
            return {"reason": f"below {MIN_SHARE:.1%} of the step", "left_out": True}
        if min(self._share("whole"), self._share("proposed")) >= ENOUGH:
            return {"reason": "enough of the step was opened before", "left_out": True}
        try:
            job = Job(
                text=read_source(one.path).text, path=str(one.path), qualname=one.qualname,
                folder=str(self.root), device="cpu", background=True,
            )  # fmt: skip
            prepared = prepare(job, self.pipeline.settings.data_dir)
            if isinstance(prepared, Outcome):
                return {"reason": prepared.note}
            return await self._open_prepared(prepared)
        except (KernelLspError, OSError, SyntaxError, UnicodeDecodeError) as error:
            return {"reason": _one_line(error)}

    async def _open_prepared(self, prepared: PreparedJob) -> dict[str, Any]:
        bench = await self.pipeline.bench(prepared.job)
        try:
            return {"whole": True, "opened": True, **await self._propose(prepared, bench)}
        except CaptureError as error:
            if not parts.may_have_parts(prepared):
                raise
            whole = error
        prepared = replace(prepared, program=kept.with_replay(prepared.program))
        found: list[dict[str, Any]] = []
        for part in await self._parts(prepared, bench):
            try:
                found.append(await self._propose(part, bench))
            except KernelLspError as error:
                found.append({"reason": _one_line(error)})
        opened = [one for one in found if "operations" in one]
        record = {"reason": _one_line(whole), "parts": found}
        proposed = next((one["proposed"] for one in opened if one.get("proposed")), None)
        return {**record, "opened": bool(opened), "proposed": proposed}

    async def _parts(self, prepared: PreparedJob, bench: JobBench) -> list[PreparedJob]:
        gate, settings = self.pipeline.gate(background=True), self.pipeline.settings
        try:
            async with gate.forks() as start, engine_of(prepared, bench, settings, start) as engine:
                found = await engine.survey(prepared.program, prepared.workload, bench.device)
        except CaptureError:
            return []
        few = found.parts[: parts.MAX_PARTS]
        return [replace(prepared, program=replace(prepared.program, part=p.part)) for p in few]

    async def _propose(self, prepared: PreparedJob, bench: JobBench) -> dict[str, Any]:
        """Raises CaptureError where it is no graph."""
        gate, settings = self.pipeline.gate(background=True), self.pipeline.settings
        async with open_target(prepared, bench, gate, settings, _ignore) as one:
            size = len(one.capture.graph.operations) if one.capture.graph is not None else None
            return {"operations": size, "proposed": await _first_proposal(one)}

    # --- what is printed

    def _share(self, key: str) -> float:
        return self.shares.within(self._names[key])

    def row(self, *, has_fused: bool) -> dict[str, Any]:
        optimizer = self.shares.of_kind(IN_OPTIMIZER)
        more = optimizer if has_fused else 0.0
        return {
            "step_ms": self.shares.step_ms,
            "whole": round(self._share("whole") + more, 4),
            "opened": round(self._share("opened") + more, 4),
            "proposed": round(self._share("proposed") + more, 4),
            "optimizer": {"share": round(optimizer, 4), "has_fused": has_fused},
            "rest": self._rest(has_fused=has_fused),
            "targets": self.found,
        }

    def _rest(self, *, has_fused: bool) -> list[dict[str, Any]]:
        """What is not opened, by the innermost target around it."""
        opened, us = set(self._names["opened"]), dict[str, float]()
        for row in self.shares.rows:
            if opened.isdisjoint(row.ranges) and not (has_fused and row.kind == IN_OPTIMIZER):
                label = _label(row)
                us[label] = us.get(label, 0.0) + row.us
        reasons = {one["target"]: one.get("reason") for one in self.found}
        rest = [
            {"what": label, "share": round(t / self.shares.total_us, 4), "why": reasons.get(label)}
            for label, t in us.items()
        ]
        return sorted(rest, key=lambda one: -one["share"])


async def _first_proposal(one: Opened) -> str | None:
    """What the first rewrite does that can be made, torch.compile aside."""
    sites = [site for site in one.sites if site.skill != COMPILER_SKILL]
    for site in sites[:MAX_TRIED]:
        try:
            await one.engine.propose([Step(skill=site.skill, site=site.site)])
            return f"{site.skill}: {site.summary}"
        except KernelLspError:  # its preconditions are asked for once more when it is made
            continue
    return None


def _ignore(_: Progress) -> None:
    """Nobody watches."""


def _label(row: ShareRow) -> str:
    return ":".join(row.ranges[-1]) if row.ranges else f"no target ({row.kind})"


def _one_line(error: Exception) -> str:
    return str(error).strip().replace("\n", " ")[:400]


def _lines_of(row: dict[str, Any]) -> str:
    if "opened" not in row:
        return f"  {row.get('missing') or row.get('failed')}"
    head = "  ".join(f"{key} {row[key]:.1%}" for key in ("whole", "opened", "proposed"))
    rest = [f"    {o['share']:6.1%} {o['what']}: {o['why']}" for o in row["rest"][:6]]
    return "\n".join([f"  {head}  ({row['seconds']:.0f} s)", *rest])


def _read_report(out: Path) -> dict[str, Any]:
    return dict(json.loads(out.read_text())) if out.is_file() else {"programs": {}}


def _write_report(out: Path, report: dict[str, Any], python: str) -> None:
    probe = subprocess.run(
        [python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True
    )
    rows = [row for row in report["programs"].values() if "opened" in row]
    keys = ("whole", "opened", "proposed")
    mean = {key: sum(row[key] for row in rows) / max(1, len(rows)) for key in keys}
    report |= {
        **circumstances(),
        "device": f"cpu, {os.cpu_count()} cores, {platform.machine()}; --small",
        "torch": probe.stdout.strip(),
        "kernel_lsp": version("kernel-lsp"),
        "summary": {
            "programs": len(rows),
            "mean": {key: round(value, 4) for key, value in mean.items()},
            "below_bar_each": sorted(
                name for name, row in report["programs"].items()
                if "opened" in row and row["opened"] < BAR_EACH
            ),
            "bars": {"all": BAR_ALL, "each": BAR_EACH},
        },
    }  # fmt: skip
    report["programs"] = dict(sorted(report["programs"].items()))
    write_record(out, report)


if __name__ == "__main__":
    main()
