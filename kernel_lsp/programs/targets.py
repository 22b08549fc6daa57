"""The targets of a recorded program in the order in which they are looked at, and what was found
for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kernel_lsp.programs.shares import IN_OPTIMIZER, ShareName, Shares
from kernel_lsp.records import Outcome, Proposal, SourceEdit
from kernel_lsp.snapshots.store import ProgramRecording

MIN_SHARE = 0.005
"""Of the step, below which nothing of a target could be noticed."""
ENOUGH = 0.95
"""Share of the step that is looked at."""
KINDS = ("module", "function", "autograd")
"""Of recorded targets that may be one of a program's."""


@dataclass(frozen=True, kw_only=True)
class ProgramTarget:
    """One target of the program."""

    path: Path
    qualname: str
    module: str
    share: float
    """Of the step's device time, backward and what is called inside included; of the recorded time
    where the step could not be profiled."""
    calls: int
    outcome: Outcome | None = None
    """None: it was not opened."""
    why_not: str | None = None

    @property
    def name(self) -> ShareName:
        """(module, qualified name), as shares name it."""
        return self.module, self.qualname

    @property
    def proposal(self) -> Proposal | None:
        """The best proposal for the target; None while none is there."""
        return self.outcome.best if self.outcome else None

    @property
    def edit(self) -> SourceEdit | None:
        """The edit of the best proposal; None while none is there."""
        return self.proposal.candidate.edit if self.proposal else None

    @property
    def compiles(self) -> bool:
        """Whether the best proposal compiles its target with torch.compile."""
        return self.proposal is not None and self.proposal.candidate.compiles

    @property
    def is_judged(self) -> bool:
        """Whether it was opened, and torch.compile or a candidate was timed."""
        return self.outcome is not None and any(
            one.evaluation.timings for one in self.outcome.proposals
        )


def rank_targets(recorded: ProgramRecording, shares: Shares | None) -> list[ProgramTarget]:
    """The recording's modules, functions and autograd Functions in the order in which they are
    looked at: those in which most could be saved first, and an outermost one by what is not in the
    blocks that it repeats."""
    found: dict[tuple[Path, str], ProgramTarget] = {}
    for way in recorded.ways:
        path, qualname = recorded.path_of(way), recorded.qualname_of(way)
        if way.get("kind") not in KINDS or (path, qualname) in found:
            continue
        seen = next((one for one in recorded.seen if one["target"] == way["target"]), way)
        name = (str(way.get("module", "")), qualname)
        share = float(seen.get("share") or 0.0) if shares is None else shares.of_target(name)
        found[path, qualname] = ProgramTarget(
            path=path,
            qualname=qualname,
            module=name[0],
            share=share,
            calls=int(seen.get("calls") or 0),
            why_not=way.get("not_kept") if recorded.snapshot(way) is None else None,
        )

    opened = {one.name for one in found.values() if one.why_not is None}

    def order(one: ProgramTarget) -> float:
        return -(one.share if shares is None else shares.alone(one.name, opened))

    return sorted(found.values(), key=order)


def skip_reason(
    one: ProgramTarget, before: Sequence[ProgramTarget], shares: Shares | None
) -> str | None:
    """Why a target is not looked at, after those ``before`` it; None: it is."""
    if one.why_not is not None:
        return one.why_not
    if one.share < MIN_SHARE:
        return f"below {MIN_SHARE:.1%} of the step"
    if shares is not None and (most := shares.gainable(one.name)) < MIN_SHARE:
        return (
            f"at most {most:.1%} of the step could be saved: the rest is products on tensor cores"
        )
    if shares is not None and looked_at(before, shares) >= ENOUGH:
        return f"{ENOUGH:.0%} of the step were looked at before"
    return None


def looked_at(targets: Sequence[ProgramTarget], shares: Shares) -> float:
    """Share of the step's device time in targets that were judged, or that are called by such a
    one."""
    judged = {one.name for one in targets if one.is_judged}
    inside = sum(row.us for row in shares.rows if judged.intersection(row.ranges[-2:]))
    return inside / shares.total_us if shares.total_us else 0.0


def covered_share(
    targets: Sequence[ProgramTarget], shares: Shares, *, has_optimizer: bool
) -> float:
    """Share of the step's device time whose target, or one around it, was judged, and optimizers
    with a fused implementation that was timed."""
    share = shares.within([one.name for one in targets if one.is_judged])
    return share + (shares.of_kind(IN_OPTIMIZER) if has_optimizer else 0.0)


def not_opened(one: ProgramTarget, reason: str) -> ProgramTarget:
    """The target, with the reason why it is none of those that are rewritten."""
    return replace(one, why_not=reason)
