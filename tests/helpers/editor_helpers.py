"""Proposals with numbers that are easy to check by hand."""

from __future__ import annotations

from dataclasses import replace

from kernel_lsp import analysis
from kernel_lsp.records import (
    Candidate,
    Check,
    CompiledKernel,
    EvalStatus,
    Evaluation,
    Interval,
    Numerics,
    Outcome,
    Proof,
    Proposal,
    Snapshot,
    SourceEdit,
    Step,
    Target,
    Timing,
    Verdict,
    Workload,
    WorkloadOrigin,
)
from kernel_lsp.rewrite.edit import apply_edit

URI = "file:///project/model.py"
TEXT = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.sum(x, dim=1)


class Other(nn.Module):
    def forward(self, x):
        return torch.sum(x, dim=1)


def get_inputs():
    return [torch.randn(4, 8)]
"""


def snapshot(text: str = TEXT, version: int = 1) -> Snapshot:
    return Snapshot(uri=URI, text=text, version=version)


def target_of(text: str, qualname: str) -> Target:
    found = analysis.find_target(analysis.analyze(snapshot(text)), qualname)
    assert found is not None
    return found


def timing(provider: str, median_ms: float) -> Timing:
    return Timing(
        provider=provider,
        median_ms=median_ms,
        p20_ms=median_ms,
        p80_ms=median_ms,
        num_reps=40,
        cold_cache=True,
    )


def evaluation(low: float = 1.9, mid: float = 2.0, high: float = 2.1) -> Evaluation:
    return Evaluation(
        status=EvalStatus.PASSED,
        device="cuda",
        device_name="H100",
        checks=(
            Check(name="finite", passed=True),
            Check(name="aliasing", passed=None, detail="did not run"),
        ),
        timings=(timing("eager", 1.0), timing("compile", 0.8), timing("candidate", 0.4)),
        speedups={
            "eager": Interval(low=low * 1.25, mid=mid * 1.25, high=high * 1.25),
            "compile": Interval(low=low, mid=mid, high=high),
        },
        numerics=Numerics(
            candidate_error=1e-7,
            reference_error=2e-7,
            tolerance=1e-5,
            num_trials=8,
            distributions=("normal",),
        ),
        kernels=(
            CompiledKernel(name="k", arch="sm_90", registers=32, spill_bytes=None, shared_bytes=0),
        ),
        environment={"torch": "2.13", "driver": "570"},
    )


def proposal(text: str = TEXT, qualname: str = "Model", **changes: object) -> Proposal:
    """Replaces ``torch.sum`` of one target by the method."""
    target = target_of(text, qualname)
    source = text[target.span.start : target.span.end].replace("torch.sum(x, dim=1)", "x.sum(1)")
    edit = SourceEdit(qualname=qualname, target=source)
    after = analysis.fingerprint_of(apply_edit(text, target.span, edit), qualname)
    made = Proposal(
        id=f"p-{qualname}",
        fingerprint=target.fingerprint,
        fingerprint_after=after or "",
        qualname=qualname,
        workload=Workload(name="default", origin=WorkloadOrigin.GET_INPUTS),
        candidate=Candidate(
            id="c",
            edit=edit,
            program="",
            entry=qualname,
            steps=(Step(skill="sum-method", site="s"),),
            proofs=(Proof(claim="x is a tensor", holds=True, because="it is annotated | so"),),
            summary="call the method",
            caveats=("order of additions",),
        ),
        evaluation=evaluation(),
        verdict=Verdict.FASTER,
        created="2026-01-02T03:04:05+00:00",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def outcome(*proposals: Proposal, note: str | None = None) -> Outcome:
    return Outcome(
        qualname=proposals[0].qualname if proposals else "Model", proposals=proposals, note=note
    )
