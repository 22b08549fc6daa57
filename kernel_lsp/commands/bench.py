"""``kernel-lsp bench``: a suite of reference files, every task judged and timed in one run; resumes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from kernel_lsp import interpreter, scores, wire
from kernel_lsp.commands import console
from kernel_lsp.errors import KernelLspError
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.files import read_source, replace_file
from kernel_lsp.interpreter import Probe
from kernel_lsp.pipeline import Pipeline
from kernel_lsp.records import SCHEMA_VERSION, EvalStatus, Evaluation, Job, Json, Outcome

BASELINES = ("eager", "eager_tf32", "compile")


@dataclass(frozen=True, kw_only=True)
class Suite:
    root: Path
    tasks: list[Path]
    candidates: Path | None
    """A folder with one candidate file per task, same names; None: ours are proposed."""


def bench(
    root: Path = typer.Argument(..., help="A folder of files with Model, get_inputs and get_init_inputs."),
    filter: str = typer.Option("", help="Only tasks whose relative path matches this regular expression."),
    device: str = typer.Option("auto", help="auto, cuda or cpu."),
    policy: str = typer.Option("plan", help="Who proposes: plan (no language model)."),
    budget: int = typer.Option(8, min=1, help="Candidates that may be evaluated per task."),
    out: Path = typer.Option(Path("results.json"), help="Results; an existing file is continued."),
    candidates: Path | None = typer.Option(None, help="Judge these files instead of proposing."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on standard output."),
) -> None:
    """Per task eager, eager with TF32, torch.compile and ours in one run; fast_p and means per group."""
    suite = _suite(root, filter, candidates)
    settings = console.settings(root, device=device, policy=policy, budget=budget)
    done = _load(out)
    console.run(_all_rows(Pipeline(settings), suite, out, done))
    groups = _groups({name: row for name, row in done.items() if root / name in suite.tasks})
    if as_json:
        console.print_json(groups=groups, tasks=done)
    else:
        console.out.print(_table(groups))


def _suite(root: Path, pattern: str, candidates: Path | None) -> Suite:
    if not root.is_dir():
        console.fail(KernelLspError(f"{root} is no folder", "name a folder of task files"))
    tasks = [path for path in sorted(root.rglob("*.py")) if re.search(pattern, str(path.relative_to(root)))]
    tasks = [path for path in tasks if "class Model" in path.read_text(encoding="utf-8", errors="replace")]
    if not tasks:
        console.fail(
            KernelLspError(f"no task below {root} matches", "a task is a file that defines class Model")
        )
    return Suite(root=root, tasks=tasks, candidates=candidates)


async def _all_rows(pipeline: Pipeline, suite: Suite, out: Path, done: dict[str, Json]) -> None:
    """Every task that ``out`` does not hold yet, one after another."""
    try:
        with console.progress("bench"):
            for number, task in enumerate(suite.tasks, start=1):
                name = str(task.relative_to(suite.root))
                if name in done:
                    continue
                done[name] = await _row(pipeline, suite, task)
                _store(out, done)  # after every task: an interrupted run goes on where it stopped
                text = f"{number}/{len(suite.tasks)} {name}: {_text(done[name])}"
                console.err.print(text, markup=False)
    finally:
        await pipeline.close()


async def _row(pipeline: Pipeline, suite: Suite, task: Path) -> Json:
    """What is kept of one task: baselines, ours, the verdict; a failure of ours is a row too."""
    try:
        evaluation, summary = await (
            _given(pipeline, suite, task) if suite.candidates else _proposed(pipeline, task)
        )
    except KernelLspError as error:
        return {"status": "not_run", "detail": str(error), "speedups": {}, "ms": {}}
    if evaluation is None:
        return {"status": "silent", "detail": summary, "speedups": {}, "ms": {}}
    return {
        "status": evaluation.status.value,
        "detail": summary or evaluation.detail,
        "ms": {timing.provider: timing.median_ms for timing in evaluation.timings},
        "speedups": wire.to_json(evaluation.speedups),
        "environment": evaluation.environment,
    }


async def _proposed(pipeline: Pipeline, task: Path) -> tuple[Evaluation | None, str]:
    settings = pipeline.settings
    job = Job(
        text=read_source(task).text,
        path=str(task),
        qualname="Model",
        device=settings.device,
        budget=settings.budget,
    )
    outcome: Outcome = await pipeline.optimize(job)
    if not outcome.proposals:
        return None, outcome.note or ""
    best = outcome.proposals[0]
    return best.evaluation, best.candidate.summary


async def _given(pipeline: Pipeline, suite: Suite, task: Path) -> tuple[Evaluation | None, str]:
    assert suite.candidates is not None
    candidate = suite.candidates / task.relative_to(suite.root)
    if not candidate.exists():
        return None, "no candidate file"
    probe: Probe = await interpreter.probe(interpreter.find(suite.root, pipeline.settings.python).path)
    request = request_from_files(read_source(task).text, read_source(candidate).text)
    device = "cuda" if probe.cuda and pipeline.settings.device != "cpu" else "cpu"
    request = replace(request, device=device, python=probe.python)
    return await pipeline.gate().evaluate(request), ""


def _load(out: Path) -> dict[str, Json]:
    if not out.exists():
        return {}
    try:
        tasks: dict[str, Json] = json.loads(out.read_text())["tasks"]
    except (ValueError, KeyError, TypeError):
        console.fail(KernelLspError(f"{out} is no results file of ours", "choose another --out"))
    return tasks


def _store(out: Path, done: dict[str, Json]) -> None:
    content = {"schema_version": SCHEMA_VERSION, "tasks": done, "groups": _groups(done)}
    replace_file(out, json.dumps(content, indent=1).encode())


def _groups(done: dict[str, Json]) -> dict[str, dict[str, dict[str, float | int | None]]]:
    """Group (first folder, and all) -> baseline -> scores."""
    names = {"all": list(done)}
    for name in done:
        if "/" in name:
            names.setdefault(name.split("/")[0], []).append(name)
    return {
        group: {base: _scores(done, members, base) for base in BASELINES} for group, members in names.items()
    }


def _scores(done: dict[str, Json], members: list[str], baseline: str) -> dict[str, float | int | None]:
    return scores.summary([_speedup(done[name], baseline) for name in members])


def _speedup(row: Json, baseline: str) -> float | None:
    known: dict[str, Any] = row["speedups"].get(baseline) or {}
    return known.get("mid") if row["status"] == EvalStatus.PASSED.value else None


def _text(row: Json) -> str:
    speedups = ", ".join(f"{base} {value['mid']:.2f}x" for base, value in row["speedups"].items())
    return f"{row['status']} {speedups or row['detail']}"


def _table(groups: dict[str, dict[str, dict[str, float | int | None]]]) -> Table:
    first = next(iter(next(iter(groups.values())).values()))
    table = Table("group", "baseline", *first)
    for group, baselines in groups.items():
        for baseline, row in baselines.items():
            cells = (
                "-" if v is None else f"{v:.2f}" if isinstance(v, float) else str(v) for v in row.values()
            )
            table.add_row(group, baseline, *cells)
    return table
