"""Suites of reference files for `kernel-lsp bench`: which tasks there are, and how each becomes one JSON row.

Several tasks may be under way at once: the gate gives each its turn on the device, so that reading,
compiling and checking of one overlap with the timing of another. Every finished row is on the disk before
the next is begun. Not covered: what the rows add up to (scores.py), tables (bench.py).
"""

from __future__ import annotations

import ast
import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernel_lsp import __version__, interpreter, phases, scores, wire
from kernel_lsp.errors import (
    CaptureError,
    EvaluationError,
    KernelLspError,
    RewriteError,
    WorkloadError,
    boundary,
)
from kernel_lsp.evaluator import roofline
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.files import read_source, replace_file
from kernel_lsp.pipeline import Pipeline
from kernel_lsp.records import SCHEMA_VERSION, Evaluation, Job, Json, Outcome, Progress, Proposal, SearchPlan

FAMILY = re.compile(r"^Family: (.+?)\.?$", re.MULTILINE)
"""A line of a task's docstring."""


QUIET_S = 30.0
"""When nothing was finished for so long, a line says what the tasks under way wait for."""
LEFT_ALONE = (CaptureError, RewriteError, WorkloadError)
"""Nothing could be proved about the target, and so nothing was offered."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """``root`` and the tasks below it, in the order in which they are run."""

    root: Path
    tasks: tuple[Path, ...]
    every: tuple[str, ...]
    """Names of all tasks that were asked for, of other shards too: what has no row is missing."""
    candidates: Path | None = None
    """A folder with one candidate file per task, same names; None: ours are proposed."""


@dataclass
class Results:
    """Rows by task, and the file that always holds them."""

    path: Path | None
    rows: dict[str, Json] = field(default_factory=dict)
    every: tuple[str, ...] = ()
    runs: list[Json] = field(default_factory=list)
    """How the rows came about: one entry per run that added to them."""

    @property
    def missing(self) -> list[str]:
        return [name for name in self.every if name not in self.rows]

    @property
    def known(self) -> dict[str, Json]:
        """Rows of the tasks that were asked for."""
        return {name: self.rows[name] for name in self.every if name in self.rows}

    def content(self) -> Json:
        return {
            "runs": self.runs,
            "groups": scores.groups(self.known),
            "missing": self.missing,
            "tasks": dict(sorted(self.rows.items())),
        }

    def store(self) -> None:
        """In one step: an interrupted run leaves the last state whole. Raises OSError."""
        if self.path is not None:
            content = {"schema_version": SCHEMA_VERSION, **self.content()}
            replace_file(self.path, (json.dumps(content, indent=1) + "\n").encode())


def find(root: Path, pattern: str, shard: tuple[int, int], candidates: Path | None) -> Suite:
    """Tasks below ``root`` whose relative path matches, every N-th of them. Raises KernelLspError."""
    if not root.is_dir():
        raise KernelLspError(f"{root} is no folder", "name a folder of task files")
    found = [path for path in sorted(root.rglob("*.py")) if re.search(pattern, _name(root, path))]
    found = [path for path in found if "class Model" in path.read_text(encoding="utf-8", errors="replace")]
    if not found:
        raise KernelLspError(
            f"no task below {root} matches", "a task is a file that defines class Model; see --filter"
        )
    number, of = shard
    every = tuple(_name(root, path) for path in found)
    return Suite(root=root, tasks=tuple(found[number - 1 :: of]), every=every, candidates=candidates)


def load(path: Path) -> Results:
    """The rows of an earlier run. Raises KernelLspError when the file is something else."""
    if not path.exists():
        return Results(path=path)
    try:
        content = json.loads(path.read_text())
        rows: dict[str, Json] = content["tasks"]
        every = (*rows, *content.get("missing", ()))
        scores.groups(rows)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise KernelLspError(f"{path} is no results file of this version", "choose another --out") from error
    return Results(path=path, rows=rows, every=every, runs=list(content.get("runs", ())))


def merged(files: Sequence[Results], path: Path | None) -> Results:
    """One table of several runs. Of two rows of one task, one that was judged wins, else the later."""
    made = Results(path=path, every=tuple(sorted({name for part in files for name in part.every})))
    for part in files:
        made.runs += part.runs
        for name, row in part.rows.items():
            if name not in made.rows or row["status"] != "failed":
                made.rows[name] = row
    return made


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What every task of a run is asked for beyond the quick search."""

    search: SearchPlan | None = None
    allowed_origin: str | None = None


@dataclass
class Runs:
    """One run of a suite."""

    pipeline: Pipeline
    suite: Suite
    results: Results
    jobs: int
    limit_s: float | None
    say: Callable[[str], None]
    asked: Asked = Asked()
    _begun: int = 0
    _finished: int = 0
    _doing: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Task under way -> when it began on the monotonic clock, the last that was heard of it."""
    _said: float = 0.0

    async def all(self) -> None:
        """Rows of all tasks that have none yet; no task is begun once the time is over."""
        end = None if self.limit_s is None else time.monotonic() + self.limit_s
        left = [task for task in self.suite.tasks if not self._is_done(task)]
        waiting, self._begun = iter(left), len(left)
        self.results.every = tuple(dict.fromkeys([*self.results.every, *self.suite.every]))
        self.results.runs.append(self._about())
        lanes = [asyncio.create_task(self._lane(waiting, end)) for _ in range(self.jobs)]
        telling = asyncio.create_task(self._tell())
        try:
            await asyncio.gather(*lanes)
        finally:  # Ctrl-C ends here too: what is finished is on the disk already
            telling.cancel()
            for lane in lanes:
                lane.cancel()
            await asyncio.gather(*lanes, telling, return_exceptions=True)
            await self.pipeline.close()

    async def _tell(self) -> None:
        """What the tasks under way wait for, when nothing else was said for a while."""
        self._said = time.monotonic()
        while True:
            await asyncio.sleep(max(0.01, self._said + QUIET_S - time.monotonic()))
            if time.monotonic() - self._said >= QUIET_S and self._doing:
                self._speak(waiting_for(self._doing, time.monotonic()))

    def _speak(self, text: str) -> None:
        self._said = time.monotonic()
        self.say(text)

    async def _lane(self, waiting: Iterator[Path], end: float | None) -> None:
        while end is None or time.monotonic() < end:
            task = next(waiting, None)
            if task is None:
                return
            name = _name(self.suite.root, task)
            row = self.results.rows[name] = await self._row(task)
            self.results.store()
            self._finished += 1
            self._speak(f"{self._finished} of {self._begun} {name}: {describe(row)}")

    def _is_done(self, task: Path) -> bool:
        """What failed is tried again: the cause may have been a busy device."""
        row = self.results.rows.get(_name(self.suite.root, task))
        return row is not None and row["status"] != "failed"

    def _about(self) -> Json:
        settings = self.pipeline.settings
        return {
            "version": __version__,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "device": settings.device,
            "budget": settings.budget,
            "policy": settings.policy,
            "model": settings.model,
            "search": wire.to_json(self.asked.search),
            "jobs": self.jobs,
            "tasks": len(self.suite.tasks),
        }

    async def _row(self, task: Path) -> Json:
        """A failure of ours is a row too: one broken task must not end the run of the others."""
        start, name = time.monotonic(), _name(self.suite.root, task)
        text = read_source(task).text
        self._doing[name] = start, "reading"
        with phases.collected() as spent:
            try:
                with boundary(EvaluationError, "the run of this task failed"):
                    made = await (self._given if self.suite.candidates else self._proposed)(task, text)
            except LEFT_ALONE as error:
                made = _empty("silent", str(error))
            except KernelLspError as error:
                made = _empty("failed", str(error))
            finally:
                del self._doing[name]
        total = round(time.monotonic() - start, 2)
        return {"family": family(text), **made, "total_s": total, "phases_s": spent.seconds()}

    async def _proposed(self, task: Path, text: str) -> Json:
        start, first, name = time.monotonic(), list[float](), _name(self.suite.root, task)
        settings = self.pipeline.settings
        job = Job(
            text=text,
            path=str(task),
            qualname="Model",
            device=settings.device,
            budget=settings.budget,
            search=self.asked.search,
            allowed_origin=self.asked.allowed_origin,
        )

        def report(progress: Progress) -> None:
            self._doing[name] = start, progress.message
            if progress.proposal is not None and not first:
                first.append(time.monotonic() - start)

        outcome = await self.pipeline.optimize(job, report)
        return {**of_outcome(outcome), "first_verified_s": round(first[0], 2) if first else None}

    async def _given(self, task: Path, text: str) -> Json:
        assert self.suite.candidates is not None
        path = self.suite.candidates / task.relative_to(self.suite.root)
        if not path.exists():
            return _empty("no_candidate", f"there is no {path}")
        probe = await interpreter.probe(interpreter.find(self.suite.root, self.pipeline.settings.python).path)
        request = request_from_files(text, read_source(path).text)
        device = "cuda" if probe.cuda and self.pipeline.settings.device != "cpu" else "cpu"
        request = replace(request, device=device, python=probe.python)
        evaluation = await self.pipeline.gate().evaluate(request)
        return {**_measured(evaluation), "status": evaluation.status.value, "note": evaluation.detail}


def of_outcome(outcome: Outcome) -> Json:
    """What is kept of a job: what was offered and measured, and of each loser why it lost."""
    best = outcome.best
    row = _empty("silent" if best is None else "offered", outcome.note or "")
    if best is not None:
        row |= _measured(best.evaluation)
        row |= {"offered": _steps(best), "least_ms": _least_ms(outcome, best.evaluation)}
        row["note"] = best.candidate.summary
    losers = [proposal for proposal in outcome.proposals if proposal is not best]
    row |= {"search": wire.to_json(outcome.search)} if outcome.search else {}
    return {**row, "cached": outcome.cached, "rejected": [_loser(proposal) for proposal in losers]}


def family(text: str) -> str | None:
    """The line ``Family: norm.`` of the file's docstring."""
    try:
        said = FAMILY.search(ast.get_docstring(ast.parse(text)) or "")
    except SyntaxError:
        return None
    return said[1] if said else None


def describe(row: Json) -> str:
    """A row in a line."""
    if row["status"] not in ("offered", "passed"):
        return f"{row['status']}: {row['note']}"
    return ", ".join(
        f"{base} {one['mid']:.2f}x [{one['low']:.2f}, {one['high']:.2f}]"
        for base, one in row["speedups"].items()
    )


def waiting_for(doing: dict[str, tuple[float, str]], now: float) -> str:
    """The tasks under way, the longest first."""
    oldest = sorted(doing, key=lambda name: doing[name])
    told = (f"{name} ({now - doing[name][0]:.0f} s: {doing[name][1]})" for name in oldest)
    return f"waiting for {'; '.join(told)}"


def _name(root: Path, task: Path) -> str:
    return task.relative_to(root).as_posix()


def _empty(status: str, note: str) -> Json:
    return {"status": status, "note": note, "ms": {}, "speedups": {}}


def _measured(evaluation: Evaluation) -> Json:
    return {
        "ms": {timing.provider: timing.median_ms for timing in evaluation.timings},
        "device_ms": {timing.provider: timing.median_ms for timing in evaluation.device_timings},
        "speedups": wire.to_json(evaluation.speedups),
        "peak_bytes": evaluation.peak_bytes,
        "numerics": wire.to_json(evaluation.numerics),
        "kernels": wire.to_json(evaluation.kernels),
        "environment": evaluation.environment,
        "device_name": evaluation.device_name,
    }


def _steps(proposal: Proposal) -> Json:
    candidate = proposal.candidate
    return {
        "summary": candidate.summary,
        "proposer": candidate.proposer,
        "uses_triton": candidate.uses_triton,
        "steps": [{"skill": s.skill, "site": s.site, "parameters": s.parameters} for s in candidate.steps],
    }


def _loser(proposal: Proposal) -> Json:
    evaluation = proposal.evaluation
    return {
        **_steps(proposal),
        "verdict": proposal.verdict.value,
        "status": evaluation.status.value,
        "detail": evaluation.detail,
        "speedups": wire.to_json(evaluation.speedups),
        "ms": {timing.provider: timing.median_ms for timing in evaluation.timings},
    }


def _least_ms(outcome: Outcome, evaluation: Evaluation) -> float | None:
    """To read every input and parameter and write every result once, at the maker's peak bandwidth."""
    peak = roofline.peak_gb_per_s(evaluation.device_name)
    if peak is None or outcome.read_bytes is None or outcome.written_bytes is None:
        return None
    return roofline.least_ms(outcome.read_bytes, outcome.written_bytes, 0, peak)
