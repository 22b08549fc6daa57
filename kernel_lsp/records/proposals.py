"""Judged rewrites and how a person sees them: present."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kernel_lsp.records.code import ArgSpec, Workload
from kernel_lsp.records.rewrites import Candidate
from kernel_lsp.records.verdicts import EAGER, TIE, Evaluation


class Verdict(StrEnum):
    FASTER = "faster"
    """Right, measured, and faster: the only verdict that is offered."""
    CORRECT = "correct"
    """Right, but speed is unknown on this device or below the threshold."""
    REJECTED = "rejected"
    UNKNOWN = "unknown"
    """Could not be judged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """A judged candidate for one target under one workload: what the cache and the journal keep."""

    id: str
    """Hash of fingerprint, candidate, workload and device."""
    fingerprint: str
    """Of the target before."""
    fingerprint_after: str
    """Of the target once the edit is applied."""
    qualname: str
    workload: Workload
    candidate: Candidate
    evaluation: Evaluation
    verdict: Verdict
    created: str
    """ISO 8601, UTC."""
    evidence: str | None = None
    """File with everything the verdict rests on (`Evidence`); None: nothing was run, or it could
    not be written. Old ones are deleted, so it may be gone."""
    inputs: tuple[ArgSpec, ...] = ()
    """The tensors that entered, without names, also where code makes them; empty: unknown."""

    def faster(self, threshold: float, *, may_compile: bool = True) -> bool:
        """Whether it is faster than every baseline, as `Evaluation.faster` says."""
        compiles = self.candidate.compiles
        return self.evaluation.faster(threshold, compiles=compiles, may_compile=may_compile)


ORDER = (Verdict.FASTER, Verdict.CORRECT, Verdict.UNKNOWN, Verdict.REJECTED)


def rank(proposal: Proposal) -> tuple[int, float]:
    """Returns the key by which every list of proposals for one target is sorted, the best first.

    Faster ones come first, by their speedup over eager, which all of them were timed against; at a
    tie torch.compile comes first, since it is the simpler edit."""
    eager = proposal.evaluation.speedups.get(EAGER)
    favor = TIE[1] if proposal.candidate.compiles else 1.0
    return ORDER.index(proposal.verdict), -favor * (eager.mid if eager else 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """What a person is shown."""

    title: str
    headline: str
    """One line: verdict, speedup, interval, device."""
    evidence: str
    """Markdown; a table of at most 15 lines for a hover."""
    report: str
    """Markdown; everything that was measured."""
    diff: str
    """Unified diff."""
