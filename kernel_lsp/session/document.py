"""One open document: its text, the analysis shown for it, and which of its targets can be
measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kernel_lsp import analysis, workloads
from kernel_lsp.documents import path_of
from kernel_lsp.records import Analysis, Snapshot, Span, Target, TargetKind
from kernel_lsp.snapshots import store


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
    shares: Mapping[str, float] = field(default_factory=dict)
    """Of the time of a recorded run, by qualified name."""

    @property
    def current(self) -> bool:
        """Whether the analysis is that of the text as it is now."""
        return self.analyzed is self.snapshot

    def touched(self, where: Span) -> list[Target]:
        """The targets of `analysis` that a place of the text touches, the innermost first. A
        comment behind the last statement belongs to its target."""
        old = (self.analyzed or self.snapshot).text
        place = where if self.current else earlier(where, self.snapshot.text, old)
        found = [
            t for t in self.analysis.targets if touches(_to_the_end_of_the_line(t.span, old), place)
        ]
        return sorted(found, key=lambda target: target.span.end - target.span.start)


def touches(span: Span, where: Span) -> bool:
    """Whether the spans have a place in common; ends count."""
    return span.start <= where.end and where.start <= span.end


def earlier(where: Span, text: str, old: str) -> Span:
    """A place of a text in the text that it was: all that was changed meanwhile is one place."""
    head = _alike(text, old)
    tail = min(min(len(text), len(old)) - head, _alike(text[::-1], old[::-1]))

    def before(at: int) -> int:
        if at <= head or at < len(text) - tail:
            return min(at, head)
        return at - len(text) + len(old)

    return Span(start=before(where.start), end=before(where.end))


def _alike(text: str, old: str) -> int:
    """How many characters at the start are the same. By halves: one by one takes 20 ms for 5,000
    lines."""
    low, high = 0, min(len(text), len(old))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if old.startswith(text[:middle]) else (low, middle - 1)
    return low


def _to_the_end_of_the_line(span: Span, text: str) -> Span:
    end = text.find("\n", span.end)
    return Span(start=span.start, end=len(text) if end < 0 else end)


def examine(snapshot: Snapshot) -> Analysis:
    """Everything known without running anything; for a thread."""
    return analysis.analyze(snapshot)


def has_workload(snapshot: Snapshot, target: Target, folder: str, data_dir: str) -> bool:
    """Did anybody say what this target is called with, or record it? Reads the files that would
    say so."""
    if workloads.workloads_for(snapshot, target, folder)[0]:
        return True
    path = path_of(snapshot.uri)
    if path is None or target.kind is not TargetKind.MODULE:
        return False
    return target.qualname in store.recorded_targets(Path(data_dir), path)


def shares_of(path: str, folder: str) -> dict[str, float]:
    """Qualified name -> share of the time of a recorded run, of one file's targets."""
    found = workloads.shares_in(Path(folder, path), Path(folder))
    # A repository may say anything.
    return {name: share for name, share in found.items() if 0 <= share <= 1}
