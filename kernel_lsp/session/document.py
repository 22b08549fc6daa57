"""One open document: its text, the analysis shown for it, and which of its targets can be measured."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernel_lsp import analysis, workloads
from kernel_lsp.records import Analysis, Snapshot, Target


@dataclass(slots=True, kw_only=True)
class Document:
    """One open document."""

    snapshot: Snapshot
    folder: str
    """Workspace root, or the file's own folder."""
    path: str
    """Relative to ``folder``."""
    analysis: Analysis = field(default_factory=Analysis)
    """The last good one: what is shown while the text does not parse."""
    analyzed: Snapshot | None = None
    """The snapshot of ``analysis``."""
    unmeasurable: frozenset[str] = frozenset()
    """Targets (qualified names) without a workload."""
    measurable: frozenset[str] = frozenset()
    """Targets with one; the others were not looked at yet."""

    @property
    def current(self) -> bool:
        return self.analyzed is self.snapshot


def examine(snapshot: Snapshot) -> Analysis:
    """Everything known without running anything; for a thread."""
    return analysis.analyze(snapshot)


def has_workload(snapshot: Snapshot, target: Target, folder: str) -> bool:
    """Did anybody say what this target is called with? Reads the folder's recorded workloads."""
    return bool(workloads.workloads_for(snapshot, target, folder)[0])
