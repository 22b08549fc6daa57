"""How fast a program's steps came while it was recorded, from which is planned how many of them
later runs have."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.programs.stepping import Clock
from kernel_lsp.snapshots.store import ProgramRecording


@dataclass(frozen=True, kw_only=True)
class StepPace:
    """Of one program, about."""

    first_s: float
    """From the start of the process to the end of the first step."""
    step_s: float
    """Of each step after it."""

    def steps_within(self, seconds: float) -> int:
        """How many steps end in so many seconds."""
        later = seconds - self.first_s
        return 0 if later < 0 else 1 + int(later / self.step_s)

    def seconds_of(self, steps: int) -> float:
        """That so many steps take, with the start of the process."""
        return self.first_s + (steps - 1) * self.step_s


def pace_of(recorded: ProgramRecording, clock: Clock) -> StepPace | None:
    """None: fewer than two steps were recorded, or of an older recording nobody knows when."""
    steps, count = recorded.steps, _count(recorded, clock)
    before_s, took_s = float(steps.get("before_s") or 0.0), recorded.elapsed_s
    if count < 2:
        return None
    if clock.kind != "calls" and steps.get("first_s") is not None:
        first_s = float(steps["first_s"])
        step_s = (float(steps["last_s"]) - first_s) / (count - 1)
    else:
        step_s = took_s / count
        first_s = before_s + step_s
    return StepPace(first_s=first_s, step_s=step_s) if step_s > 0 else None


def _count(recorded: ProgramRecording, clock: Clock) -> int:
    """Of the steps that were recorded, as the clock counts them."""
    if clock.kind == "optimizer":
        counted = [int(one["steps"]) for one in recorded.steps.get("optimizers", ())]
        return counted[clock.optimizer] if clock.optimizer < len(counted) else 0
    if clock.kind in ("function", "loader"):
        return int(recorded.steps.get("marked" if clock.kind == "function" else "batches", 0))
    targets = {
        way["target"]
        for way in recorded.ways
        if (str(way.get("module")), str(way.get("class"))) in clock.roots[:1]
    }
    return max((int(one.get("calls") or 0) for one in recorded.seen if one["target"] in targets),
               default=0)  # fmt: skip
