"""One task of a suite becomes one JSON row: on this machine, or on a node of a cluster.

`LocalRows` does it with this process's pipeline; `Spread` hands the same work to the nodes, where
a `LocalRows` of theirs does it, so a row is the same wherever it was made. A failure of ours is a
row too: one broken task must not end the run of the others. Not covered: which tasks there are,
and where rows are kept (suites.py)."""

from __future__ import annotations

import ast
import hashlib
import re
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from kernel_lsp import config, interpreter, phases, wire
from kernel_lsp.cluster import Cluster
from kernel_lsp.config import Settings
from kernel_lsp.errors import (
    CaptureError,
    EvaluationError,
    JobFailed,
    KernelLspError,
    RewriteError,
    WorkloadError,
    boundary,
)
from kernel_lsp.evaluator import roofline
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.pipeline import Pipeline
from kernel_lsp.records import Evaluation, Job, Json, Outcome, Progress, Proposal, SearchPlan

FAMILY = re.compile(r"^Family: (.+?)\.?$", re.MULTILINE)
"""A line of a task's docstring."""
LEFT_ALONE = (CaptureError, RewriteError, WorkloadError)
"""Nothing could be proved about the target, and so nothing was offered."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowOptions:
    """What every task of a run is asked for beyond the quick search."""

    search: SearchPlan | None = None
    allowed_origin: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RowTask:
    name: str
    path: str
    text: str
    folder: str | None = None
    """Whose interpreter judges a given candidate; None: that of the process."""
    candidate: str | None = None
    """Its text is judged instead of proposing."""


def digest(text: str) -> str:
    """A hash of a task's file: whoever learns from its row later knows whether it is still the
    same."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class RowMaker(Protocol):
    @property
    def settings(self) -> Settings:
        """The settings that rows are made with."""

    @property
    def asked(self) -> RowOptions:
        """What the command line asked of each row."""

    @property
    def doing(self) -> dict[str, tuple[float, str]]:
        """Task under way -> when it began on the monotonic clock, the last that was heard of it."""

    @property
    def places(self) -> int:
        """How many places there are; each may have as many tasks under way as the run allows."""

    async def row(self, task: RowTask) -> Json:
        """The row of one task; whatever goes wrong with the task is in the row."""

    async def close(self) -> None:
        """Ends what rows are made with."""


@dataclass
class LocalRows:
    """With a pipeline of this process."""

    pipeline: Pipeline
    asked: RowOptions = RowOptions()
    doing: dict[str, tuple[float, str]] = field(default_factory=dict)
    places: int = 1

    @property
    def settings(self) -> Settings:
        """The settings of the pipeline."""
        return self.pipeline.settings

    async def close(self) -> None:
        """Closes the pipeline."""
        await self.pipeline.close()

    async def do(self, work: RowTask) -> Json:
        """The row of the task, asked for as a cluster's worker is."""
        return await self.row(work)

    async def row(self, task: RowTask) -> Json:
        """The row of one task, judged in this process; whatever goes wrong with the task is in the
        row."""
        start = time.monotonic()
        self.doing[task.name] = start, "reading"
        with phases.collect_phases() as spent:
            try:
                with boundary(EvaluationError, "the run of this task failed"):
                    made = await (
                        self._proposed(task) if task.candidate is None else self._given(task)
                    )
            except LEFT_ALONE as error:
                made = empty("silent", str(error))
            except KernelLspError as error:
                made = empty("failed", str(error))
            finally:
                del self.doing[task.name]
        total = round(time.monotonic() - start, 2)
        about = {"family": family(task.text), "reference": digest(task.text)}
        return {**about, **made, "total_s": total, "phases_s": spent.seconds()}

    async def _proposed(self, task: RowTask) -> Json:
        start, first = time.monotonic(), list[float]()
        job = Job(
            text=task.text,
            path=task.path,
            qualname="Model",
            device=self.settings.device,
            budget=self.settings.budget,
            search=self.asked.search,
            allowed_origin=self.asked.allowed_origin,
        )

        def report(progress: Progress) -> None:
            self.doing[task.name] = start, progress.message
            if progress.proposal is not None and not first:
                first.append(time.monotonic() - start)

        outcome = await self.pipeline.optimize(job, report)
        return {**of_outcome(outcome), "first_verified_s": round(first[0], 2) if first else None}

    async def _given(self, task: RowTask) -> Json:
        probe = await interpreter.probe(interpreter.find(task.folder, self.settings.python).path)
        request = request_from_files(task.text, task.candidate or "")
        device = "cuda" if probe.cuda and self.settings.device != "cpu" else "cpu"
        request = replace(request, device=device, python=probe.python)
        evaluation = await self.pipeline.gate().evaluate(request)
        return {
            **_measurement_row(evaluation),
            "status": evaluation.status.value,
            "note": evaluation.detail,
        }


class Spread:
    """On the nodes of an open cluster."""

    def __init__(self, cluster: Cluster, settings: Settings, asked: RowOptions) -> None:
        self.settings, self.asked = settings, asked
        self._cluster = cluster

    @property
    def doing(self) -> dict[str, tuple[float, str]]:
        """Task -> when it began and on which node, of all that are under way."""
        return {name: (began, f"on {host}") for name, (began, host) in self._cluster.doing.items()}

    @property
    def places(self) -> int:
        """How many rows may be asked for at once: twice as many as there are places now, since
        nodes may join. What waits for one counts as begun."""
        return 2 * self._cluster.places

    async def close(self) -> None:
        """The cluster is closed by whoever opened it."""

    async def row(self, task: RowTask) -> Json:
        """The row of one task, made on a node. Raises ClusterError when the whole cluster is lost:
        what has no row yet is done in another run."""
        try:
            row: Json = await self._cluster.do(task.name, replace(task, folder=None))
        except JobFailed as error:
            return {**empty("failed", str(error)), "family": family(task.text)}
        return row


def spread(settings: Settings, asked: RowOptions) -> partial[LocalRows]:
    """What makes a node's `LocalRows`, for `Cluster.make`."""
    return partial(_on_node, settings, asked)


def _on_node(settings: Settings, asked: RowOptions, device: str) -> LocalRows:
    """Journals and caches are the node's own, and so is the interpreter where the run names
    none."""
    own = config.load(None)[0]
    python = settings.python or own.python
    return LocalRows(
        Pipeline(replace(settings, device=device, data_dir=own.data_dir, python=python)), asked
    )


# --- what a row holds -----------------------------------------------------------------------------


def of_outcome(outcome: Outcome) -> Json:
    """The part of a job that is kept: what was offered, what was measured, why others were not."""
    best = outcome.best
    row = empty("silent" if best is None else "offered", outcome.note or "")
    if best is not None:
        row |= _measurement_row(best.evaluation)
        row |= {"offered": _steps(best), "least_ms": _least_ms(outcome, best.evaluation)}
        row["note"] = best.candidate.summary
    others = [proposal for proposal in outcome.proposals if proposal is not best]
    row |= {"search": wire.to_json(outcome.search)} if outcome.search else {}
    return {
        **row,
        "cached": outcome.cached,
        "rejected": [_rejected(proposal) for proposal in others],
    }


def family(text: str) -> str | None:
    """The line ``Family: norm.`` of the file's docstring."""
    try:
        said = FAMILY.search(ast.get_docstring(ast.parse(text)) or "")
    except SyntaxError:
        return None
    return said[1] if said else None


def empty(status: str, note: str) -> Json:
    """A row without times, whose note says why."""
    return {"status": status, "note": note, "ms": {}, "speedups": {}}


def _measurement_row(evaluation: Evaluation) -> Json:
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
        "steps": [
            {"skill": s.skill, "site": s.site, "parameters": s.parameters} for s in candidate.steps
        ],
    }


def _rejected(proposal: Proposal) -> Json:
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
    """To read every input and parameter and write every result once, at the maker's peak
    bandwidth."""
    peak = roofline.peak_gb_per_s(evaluation.device_name)
    if peak is None or outcome.read_bytes is None or outcome.written_bytes is None:
        return None
    return roofline.least_ms(outcome.read_bytes, outcome.written_bytes, 0, peak)
