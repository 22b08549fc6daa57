"""What a walk stands on: the kernel found and opened, the device that judges, the folder that
keeps.

Not covered: the walk (walking.py).
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kernel_lsp import __version__, analysis
from kernel_lsp.cache import Cache
from kernel_lsp.errors import CaptureError, EvaluationError
from kernel_lsp.lineage import catalog, kept
from kernel_lsp.pipeline import Pipeline, learning
from kernel_lsp.pipeline.opened import Opened, open_target
from kernel_lsp.pipeline.prepare import PreparedJob, prepare
from kernel_lsp.pipeline.silence import MAX_INTERPRETED
from kernel_lsp.records import Job, Outcome, Report, Snapshot, TargetKind, Workload
from kernel_lsp.rewrite.kernels import harness
from kernel_lsp.skillbook import Skillbook

INTERPRETER = "interpreter"


@dataclass(frozen=True, kw_only=True, slots=True)
class LineageRequest:
    """One walk."""

    job: Job
    workload: Workload | None = None
    """None: the best that is known for the target."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What a walk stands on."""

    pipeline: Pipeline
    prepared: PreparedJob
    one: Opened
    """Its engine has the operators open."""
    skills: Skillbook
    """Of the user, as they are on disk."""
    device: str
    """cuda or interpreter: where candidates are judged."""
    hardware: str
    """As the library calls it: cuda:sm_90, or interpreter."""
    place: Path

    @property
    def measured(self) -> bool:
        """Whether times mean something: on a GPU alone."""
        return self.device == "cuda"


@asynccontextmanager
async def set_up(pipeline: Pipeline, asked: LineageRequest, report: Report) -> AsyncIterator[Setup]:
    """Yields what a walk stands on: the kernel opened, the gate, the folder that keeps it. Raises
    KernelLspError: no such kernel, no workload, no device, or it cannot be followed."""
    prepared = _prepare(asked)
    if prepared.target.kind is not TargetKind.TRITON_KERNEL:
        raise CaptureError(
            f"{prepared.target.qualname} is no Triton kernel", "name a @triton.jit function"
        )
    bench = await pipeline.bench(asked.job)
    device = "cuda" if bench.device == "cuda" else INTERPRETER
    # The engine follows launches on fake tensors, so a tuned kernel opens without a GPU too.
    walking = replace(bench, device="cuda", skills=Skillbook(skills=catalog.operators()))
    async with open_target(prepared, walking, pipeline.gate(), pipeline.settings, report) as one:
        elements = sum(math.prod(spec.shape) for spec in one.capture.inputs if spec.shape)
        if device == INTERPRETER and elements > MAX_INTERPRETED:
            cause = (
                f"{elements:,} input elements are too many for Triton's interpreter "
                f"({MAX_INTERPRETED:,})"
            )
            raise EvaluationError(
                cause, "give smaller shapes with --workload, or run where there is a GPU"
            )
        key = Cache.key(
            **{**one.identity(), "device": device}, version=__version__, rules=catalog.RULES
        )
        place = kept.folder(Path(pipeline.settings.data_dir), prepared.target.qualname, key)
        yield Setup(
            pipeline=pipeline,
            prepared=prepared,
            one=one,
            skills=bench.skills,
            device=device,
            hardware=learning.hardware_of(bench) if device == "cuda" else INTERPRETER,
            place=place,
        )


def _prepare(asked: LineageRequest) -> PreparedJob:
    job = replace(asked.job, background=True)  # nothing is compiled on suspicion
    if asked.workload is None:
        found = prepare(job)
        if isinstance(found, Outcome):
            raise CaptureError(found.note or "there is nothing to walk back")
        return found
    snapshot = Snapshot(uri=Path(job.path).absolute().as_uri(), text=job.text)
    target = analysis.find_target(analysis.analyze(snapshot), job.qualname)
    if target is None:
        raise CaptureError(
            f"there is no {job.qualname} in {job.path}", "name a @triton.jit function"
        )
    program = harness.judged_program(analysis.slice_program(snapshot, target), target)
    return PreparedJob(
        job=job, snapshot=snapshot, target=target, program=program, workload=asked.workload
    )
