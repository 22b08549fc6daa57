"""The frozen records that travel between stages. Standard library only.

Rules: keyword-only, units in the names, ``None`` means unknown (never 0 or 1.0).
Anything that can be derived is a property and is not stored. Every record turns into
JSON and back through :mod:`kernel_lsp.wire`, because most of them cross a process boundary.
Offsets are Python string indices into ``Snapshot.text``; only the presenter knows LSP positions.

One file per stage; everybody imports from here: ``from kernel_lsp.records import Evaluation``.
"""

from kernel_lsp.records.code import (
    Analysis,
    ArgSpec,
    Finding,
    ParseProblem,
    Program,
    Snapshot,
    Span,
    Target,
    TargetKind,
    Workload,
    WorkloadOrigin,
)
from kernel_lsp.records.common import SCHEMA_VERSION, Json
from kernel_lsp.records.events import Event, EventKind, SessionSummary
from kernel_lsp.records.evidence import EVIDENCE_VERSION, Evidence, Fact, Repetition, Samples, Trial
from kernel_lsp.records.jobs import Job, Outcome, Progress
from kernel_lsp.records.proposals import Card, Proposal, Verdict
from kernel_lsp.records.rewrites import Candidate, Proof, Site, SourceEdit, Step
from kernel_lsp.records.skills import Skill, SkillMatch, SkillProblem
from kernel_lsp.records.verdicts import (
    Check,
    CompiledKernel,
    EvalStatus,
    Evaluation,
    Interval,
    Numerics,
    Timing,
)

__all__ = [
    "EVIDENCE_VERSION",
    "SCHEMA_VERSION",
    "Analysis",
    "ArgSpec",
    "Candidate",
    "Card",
    "Check",
    "CompiledKernel",
    "EvalStatus",
    "Evaluation",
    "Event",
    "EventKind",
    "Evidence",
    "Fact",
    "Finding",
    "Interval",
    "Job",
    "Json",
    "Numerics",
    "Outcome",
    "ParseProblem",
    "Program",
    "Progress",
    "Proof",
    "Proposal",
    "Repetition",
    "Samples",
    "SessionSummary",
    "Site",
    "Skill",
    "SkillMatch",
    "SkillProblem",
    "Snapshot",
    "SourceEdit",
    "Span",
    "Step",
    "Target",
    "TargetKind",
    "Timing",
    "Trial",
    "Verdict",
    "Workload",
    "WorkloadOrigin",
]
