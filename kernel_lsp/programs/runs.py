"""Runs of one program, each a fresh process in a copy of the workspace, one copy per variant of
the edits; the copies are removed in the end.

On a GPU runs whose times do not count go side by side, and a timed run imports its libraries while
the one before it is timed. What an earlier session has run counts again (resuming.py)."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_lsp.files import read_source
from kernel_lsp.patching.store import is_own
from kernel_lsp.programs import resuming
from kernel_lsp.programs.composing import ProgramVariant
from kernel_lsp.programs.measuring import AS_IS, MeasuredWays
from kernel_lsp.programs.mirror import Mirror
from kernel_lsp.programs.resuming import KeptRuns
from kernel_lsp.programs.stepping import Clock, ProgramWay, StartedRun, StepRun
from kernel_lsp.programs.timetable import Timetable

PROFILED_SHARE = 1 / 4
"""Of the time for all: as many steps are profiled as fit into it."""
PROFILED_LATEST = 1 / 2
"""Of the time that is left, after which a profile is cut off that takes longer than was planned."""
TIMED_RUNS = 16
"""Among which the time for all is divided at least: of slow steps a run has fewer than were asked
for, so that ways can be compared."""
MIN_TIMED = 6
"""Steps of a timed run: three are in the steady state."""
MAX_BESIDE = 4
"""Runs at once whose times do not count."""
CORES_BESIDE = 4
"""Of the processor, for each of them."""
MEMORY_SLACK, CONTEXT_BYTES = 1.5, 2**30
"""Of a run beside others: times its peak (what the allocator keeps), and what CUDA itself takes."""
AskedRun = tuple[ProgramWay, int, dict[str, Any]]
"""Way, number among those that are alike, and what else the run is to do."""


@dataclass(frozen=True, kw_only=True)
class ProgramPlan:
    """What is asked for."""

    root: Path
    """The workspace."""
    folder: Path
    """Where the command runs."""
    command: tuple[str, ...]
    device: str = "auto"
    steps: int = 30
    """Of one timed run."""
    minutes: float = 10.0
    """For the targets."""
    within: float = 20.0
    """Minutes for all of it; what is left then is done by the same command again."""
    run_s: float = 300.0
    """For one run."""
    budget: int = 8
    fresh: bool = False
    may_compile: bool = True
    """False: its user cannot run torch.compile, and nothing is compared with it."""
    marked: tuple[str, str] | None = None
    """Module and name of the function that is a step; None: it is found."""

    @property
    def within_s(self) -> float:
        """Seconds for all of it."""
        return 60 * self.within


class ProgramRuns:
    """Starts runs of the program, as it is and with our edits, within the time for all."""

    def __init__(
        self,
        plan: ProgramPlan,
        clock: Clock,
        kept: KeptRuns,
        timetable: Timetable,
        measured: MeasuredWays,
    ) -> None:
        """``measured``: timed runs so far, by which others are estimated."""
        self.plan, self.clock, self.timetable = plan, clock, timetable
        self.steps = plan.steps
        """Of one timed run."""
        self.variants: dict[str, ProgramVariant] = {}
        self.texts: dict[Path, str] = {}
        """Files of the workspace that the program imports."""
        self.looks_ahead = False
        """Whether a run may import its libraries while another is timed."""
        self._beside = 1
        """How many runs at once there is room for, where their times do not count."""
        self._kept, self._measured = kept, measured
        self._stack = ExitStack()
        self._mirrors: dict[str | None, Mirror] = {}
        self._begun: dict[str, StartedRun] = {}
        """Runs that have begun and whose end nobody has waited for, by their key."""
        self._checked: dict[str, StepRun] = {}
        """Runs whose times do not count, by their key, those that failed too."""

    def __enter__(self) -> ProgramRuns:
        self._mirrors[None] = self._stack.enter_context(Mirror.of(self.plan.root, {}))
        return self

    def __exit__(self, *failure: Any) -> None:
        for run in self._begun.values():
            run.end()
        self._stack.close()

    def add(self, variant: ProgramVariant) -> ProgramWay:
        """Make room for runs with these edits."""
        own = {path: text for path, text in variant.texts.items() if is_own(path, self.plan.root)}
        self.variants[variant.name] = variant
        self._mirrors[variant.name] = self._stack.enter_context(Mirror.of(self.plan.root, own))
        return ProgramWay(name=variant.name, variant=variant.name)

    def learn(self, profiled: StepRun, *, on_gpu: bool) -> None:
        """Take from a profiled run which files the program imports, how many runs there is room
        for, and how many steps each can have."""
        own = (path for path in map(Path, profiled.files) if is_own(path, self.plan.root))
        self.texts |= {
            path: read_source(path).text for path in own if path.suffix == ".py" and path.is_file()
        }
        self.looks_ahead = on_gpu and _cores() >= CORES_BESIDE
        self._beside = self._room_for(profiled)
        if profiled.steps_ms:
            # The last is the profiled one.
            slowest_ms = max(profiled.steps_ms[:-1] or profiled.steps_ms)
            self.fit(profiled.first_s or 0.0, slowest_ms / 1e3)

    def fit(self, first_s: float, step_s: float) -> None:
        """Choose the steps of a timed run, fewer where they are slow. ``first_s``: until the first
        step has ended."""
        fitting = int(self.plan.within_s / TIMED_RUNS / step_s) if step_s else self.plan.steps
        self.steps = min(self.plan.steps, max(MIN_TIMED, fitting))
        self.timetable.saw(AS_IS, first_s + self.steps * step_s)

    def _room_for(self, run: StepRun) -> int:
        """Runs at once. Without a GPU they would take each other's cores."""
        if not self.looks_ahead or not run.room_bytes:
            return 1
        need = MEMORY_SLACK * (run.peak_bytes or 0) + CONTEXT_BYTES
        return max(1, min(MAX_BESIDE, _cores() // CORES_BESIDE, int(run.room_bytes // need)))

    def start(self, way: ProgramWay, number: int = 0, **more: Any) -> StepRun:
        """Run to its end. ``number``: of the run among those that are alike; ``more``: what else it
        is to do, where its time does not count."""
        key = self._key(way, number, more)
        place = resuming.digest(key)
        if (found := self._find_kept(key, more)) is not None:
            if not more:
                self.timetable.saw(way, found.took_s)
            return found
        begun = self._begun.pop(place, None) or self._begin(way, more)
        begin = time.monotonic()
        beside = [] if more else [*self._begun.values()]
        left_s = self.timetable.left_s * (PROFILED_LATEST if "profiled" in more else 1.0)
        run = begun.finish(min(self.plan.run_s, left_s), beside)
        self._mirrors[way.variant].check_linked()
        if more:
            self._checked[place] = run
        else:
            self.timetable.saw(way, time.monotonic() - begin)
        self._kept.keep(key, run)
        return run

    def start_early(
        self, way: ProgramWay, number: int = 0, *, held: bool = False, **more: Any
    ) -> None:
        """Let it begin, for `start` to wait for."""
        key = self._key(way, number, more)
        place = resuming.digest(key)
        if place not in self._begun and self._find_kept(key, more) is None:
            self._begun[place] = self._begin(way, more, held=held)

    def start_together(self, asked: Sequence[AskedRun]) -> list[StepRun]:
        """Runs whose times do not count, side by side where there is room; each ends when the time
        for all is over."""
        found = []
        for place, (way, number, more) in enumerate(asked):
            for other, other_number, other_more in asked[place : place + self._beside]:
                if self._beside > 1:
                    self.start_early(other, other_number, **other_more)
            found.append(self.start(way, number, **more))
        return found

    def is_kept(self, way: ProgramWay, number: int) -> bool:
        """A timed run that needs no time any more."""
        return self._find_kept(self._key(way, number, {}), {}) is not None

    def is_late(self, runs: Sequence[StepRun]) -> bool:
        """Whether one was ended because the time for all was over."""
        return not self.timetable.left_s and any(run.is_cut_off for run in runs)

    def seconds_of(self, asked: Sequence[AskedRun]) -> float:
        """That these runs take, about: what was run before takes none."""
        new = [
            self._seconds_of_steps(way, more["steps"])
            for way, number, more in asked
            if self._find_kept(self._key(way, number, more), more) is None
        ]
        return sum(new) / self._beside

    def _seconds_of_steps(self, way: ProgramWay, steps: int) -> float:
        """A check has fewer steps than the timed run that it is estimated by."""
        run = next(iter(self._measured.runs.get(way, {}).values()), None)
        if run is None or run.first_s is None or run.step_ms is None:
            return self.timetable.estimate_s(way)
        return run.first_s + steps * run.step_ms / 1e3

    def _key(self, way: ProgramWay, number: int, more: dict[str, Any]) -> Any:
        texts = self.variants[way.variant].texts if way.variant is not None else {}
        changed = {str(path): text for path, text in {**self.texts, **texts}.items()}
        asked = {"steps": self.steps, **more}
        return [way, number, self.clock, self.plan.command, asked, changed]

    def _find_kept(self, key: Any, more: dict[str, Any]) -> StepRun | None:
        if more and (found := self._checked.get(resuming.digest(key))) is not None:
            return found
        # Before the profile nobody knows what the program imports: that run lists it itself.
        may_count = self.texts or "profiled" in more
        return self._kept.find(key) if may_count else None

    def _begin(self, way: ProgramWay, more: dict[str, Any], *, held: bool = False) -> StartedRun:
        texts = self.variants[way.variant].texts if way.variant is not None else {}
        asked = {"steps": self.steps, **more}
        return StartedRun(
            self._mirrors[way.variant],
            self.plan.command,
            self.plan.folder,
            way,
            self.clock,
            # Texts of installed files: these are never written, not even in a copy.
            served={path: text for path, text in texts.items() if not is_own(path, self.plan.root)},
            held=held,
            **asked,
        )


def _cores() -> int:
    return len(os.sched_getaffinity(0))
