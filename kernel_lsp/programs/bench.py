"""The runs of one program: profiled, checked and timed, as it is and with our edits.

    with Bench(plan, clock, recorded, report) as bench:
        bench.profile()                 bench.shares: where the step's device time goes
        bench.time_first()              what needs no target
        bench.time_later(looked)        with the rewrites of targets
        bench.measured

Every variant of the edits (composing.py) has a copy of the workspace, which is removed in the end,
and is timed only when the program computes with it what it did."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernel_lsp.files import read_source
from kernel_lsp.patching import store
from kernel_lsp.patching.store import is_own
from kernel_lsp.programs import composing, measuring, stepping, targets
from kernel_lsp.programs.composing import ProgramVariant, Workspace
from kernel_lsp.programs.measuring import (
    AS_IS,
    COMPILED,
    FIRST,
    LATER,
    SLOWEST,
    Agreement,
    MeasuredWays,
)
from kernel_lsp.programs.mirror import Mirror
from kernel_lsp.programs.resuming import KeptRuns
from kernel_lsp.programs.shares import ShareName, Shares
from kernel_lsp.programs.stepping import Clock, ProgramWay, StepRun
from kernel_lsp.programs.targets import ProgramTarget
from kernel_lsp.records import Progress, Report
from kernel_lsp.snapshots.store import ProgramRecording

CHECKED_STEPS = 4
PROFILED_STEPS = 6
MAX_PLAIN = 2
"""Ways without our edits that are timed again, beside the program as it is: the fastest."""
MAX_LEFT_OUT = 4
"""Rewrites that are left out one after the other until the program computes what it did."""
NOT_COMPILED = "torch.compile was not timed: the setting torch_compile says that it cannot be used"
EPS = {"bfloat16": 2.0**-7, "float16": 2.0**-10, None: 2.0**-23}
"""By autocast's dtype: how far one rounding moves a value."""


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
    run_s: float = 300.0
    """For one run."""
    budget: int = 8
    fresh: bool = False
    may_compile: bool = True
    """False: its user cannot run torch.compile, and nothing is compared with it."""
    marked: tuple[str, str] | None = None
    """Module and name of the function that is a step; None: it is found."""


class ProgramBench:
    """The program's runs: one copy of the workspace per variant, which is removed in the end."""

    def __init__(
        self, plan: ProgramPlan, clock: Clock, recorded: ProgramRecording, report: Report
    ) -> None:
        self.plan, self.clock, self.recorded = plan, clock, recorded
        self.kept = KeptRuns(recorded.folder, fresh=plan.fresh)
        self.shares: Shares | None = None
        self.measured = MeasuredWays()
        self.variants: dict[str, ProgramVariant] = {}
        self.agreements: dict[str, Agreement] = {}
        self.taken: dict[str, tuple[int, int]] = {}
        self.notes: list[str] = []
        self.is_broken = False
        """The program as it is does not run to its end: its step cannot be compared with
        anything."""
        place = store.place_of(plan.root, plan.folder, plan.command)
        self._workspace = Workspace(root=plan.root, place=place)
        self._report = report
        self._stack = ExitStack()
        self._mirrors: dict[str | None, Mirror] = {}
        self._texts: dict[Path, str] = {}
        """Files of the workspace that the program imports."""
        self._optimizers: frozenset[str] = frozenset()
        self._originals: list[StepRun] = []
        self._undrawn: list[StepRun] = []
        """The program as it is without dropout, and the same with parameters moved."""
        self._redrawn: list[StepRun] = []
        """The first step of the program as it is, with other draws each."""
        self.draws = False
        """It draws random numbers in its step."""
        self.tokens: float | None = None
        """That a step takes; None: it is no language model's, or they cannot be told."""
        self._modules = frozenset(
            (str(way["module"]), str(way["class"]))
            for way in recorded.ways
            if way.get("kind") == "module" and way.get("class")
        )
        autocast = (way["setting"].get("autocast") for way in recorded.ways if way.get("setting"))
        self._eps = EPS.get(next(autocast, None), EPS[None])

    def __enter__(self) -> ProgramBench:
        self._mirrors[None] = self._stack.enter_context(Mirror.of(self.plan.root, {}))
        return self

    def __exit__(self, *failure: Any) -> None:
        self._stack.close()

    @property
    def has_fused_optimizer(self) -> bool:
        """Whether an optimizer of the program has a fused implementation that it does not use;
        known after `profile`."""
        return composing.fuse_optimizers(self._texts, self._optimizers) is not None

    # --- one run

    def _start(self, way: ProgramWay, number: int = 0, **more: Any) -> StepRun:
        """``number``: of the run among those that are alike."""
        more.setdefault("steps", self.plan.steps)
        texts = self.variants[way.variant].texts if way.variant is not None else {}
        changed = {str(path): text for path, text in {**self._texts, **texts}.items()}
        key = [way, number, self.clock, self.plan.command, more, changed]
        # Before the profile nobody knows what the program imports: that run lists it itself.
        may_count = self._texts or "profiled" in more
        if may_count and (found := self.kept.find(key)) is not None:
            return found
        run = stepping.run(
            self._mirrors[way.variant],
            self.plan.command,
            self.plan.folder,
            way,
            self.clock,
            timeout_s=self.plan.run_s,
            # Texts of installed files: these are never written, not even in a copy.
            served={path: text for path, text in texts.items() if not is_own(path, self.plan.root)},
            **more,
        )
        self.kept.keep(key, run)
        return run

    def _add(self, variant: ProgramVariant) -> ProgramWay:
        """Make room for runs with these edits."""
        own = {path: text for path, text in variant.texts.items() if is_own(path, self.plan.root)}
        self.variants[variant.name] = variant
        self._mirrors[variant.name] = self._stack.enter_context(Mirror.of(self.plan.root, own))
        return ProgramWay(name=variant.name, variant=variant.name)

    def _say(self, text: str) -> None:
        self._report(Progress(phase="measure", message=text))

    # --- 2

    def profile(self) -> None:
        """What of the step belongs to which target, which roots there are, and what the program
        imports."""
        self._say("profiling one step")
        run = self._profiled_run()
        if run.failed is None and run.profile is not None:
            self.shares = Shares.of(run.profile, run.step_ms)
            self.clock = _clock(self.clock, self.shares, self._modules)
        else:
            self.notes.append(
                f"the step could not be profiled: {run.failed or 'it ended too early'}"
            )
        self.tokens, self.draws = run.tokens, run.draws
        self.is_broken = run.failed is not None and not run.is_cut_off
        own = (path for path in map(Path, run.files) if is_own(path, self.plan.root))
        self._texts |= {
            path: read_source(path).text for path in own if path.suffix == ".py" and path.is_file()
        }
        self._optimizers = frozenset(
            str(one["kind"])
            for one in run.optimizers
            if one["fused"] is None and one["foreach"] is None
        )

    def _profiled_run(self) -> StepRun:
        """Again, and shorter, where the program has fewer steps than were asked for."""
        names = sorted({one.name for one in targets.rank_targets(self.recorded, None)})
        profiled = [list(name) for name in names]
        run = self._start(AS_IS, steps=PROFILED_STEPS, profiled=profiled)
        if run.failed is None and run.profile is None and run.steps_ms:
            return self._start(AS_IS, steps=len(run.steps_ms) + 1, profiled=profiled)
        return run

    # --- 3

    def time_first(self) -> None:
        """What needs no target and begins within seconds, once. What pays at once is told at
        once."""
        if self.is_broken:
            return
        ways = [AS_IS]
        variant = composing.fuse_optimizers(self._texts, self._optimizers)
        is_noticed = self.shares is None or self.shares.would_notice_optimizers(targets.MIN_SHARE)
        if variant is not None and is_noticed:
            if self._agrees(self._add(variant)):
                ways.append(ProgramWay(name=variant.name, variant=variant.name))
                ways += self._compiled(variant, None)
            else:
                self._drop(variant.name)
        if not self.plan.may_compile:
            self.notes.append(NOT_COMPILED)
        plain = [way for way in self._plain if way != SLOWEST]
        ways[1:1] = plain[:1]
        ways += plain[1:]
        measuring.measure(
            self.measured, ways, self._start, self._say, FIRST, after_round=self._tell_gain
        )

    @property
    def _plain(self) -> list[ProgramWay]:
        """What torch.compile alone can do with the program."""
        # of functions alone there is no module to compile
        if not self.plan.may_compile or not self.clock.roots:
            return []
        return [way for way in COMPILED if not way.regional or self.clock.region]

    def _compiled(self, variant: ProgramVariant, mode: str | None) -> list[ProgramWay]:
        """The variant and torch.compile of the root together: as a line of the program where there
        is a place for it, else called on the module from outside."""
        if not self.clock.roots or not self.plan.may_compile:
            return []
        name, texts = self.clock.roots[0], self._texts
        if (
            len(self.clock.roots) == 1
            and (line := composing.compile_outermost(variant, name, texts, mode)) is not None
        ):
            return [self._add(line)]
        words = f"{variant.name}, {composing.mode_words(mode)}"
        return [ProgramWay(name=words, variant=variant.name, mode=mode or "default")]

    def _tell_gain(self) -> None:
        best, other = self.measured.best_edited, self.measured.best_plain
        if best is not None and other is not None:
            before, after = self.measured.step_ms(other), self.measured.step_ms(best)
            if before and after and before / after > 1.0:
                self._say(f"{best.name}: {before / after:.2f}x against {other.name}, measured once")

    # --- 5 and 6

    def time_later(self, looked: Sequence[ProgramTarget]) -> None:
        """What targets gave, beside what still has a chance."""
        if self.is_broken:
            self.notes.append(
                "the program's step is not measured; its recorded targets were looked at all "
                "the same"
            )
            return
        # Five minutes on an H100 to the first step of twelve layers: targets have gained by then.
        slow = [way for way in self._plain if way == SLOWEST]
        measuring.measure(self.measured, slow, self._start, self._say, FIRST)
        measuring.measure_doubtful(self.measured, self._start, self._say)
        ways = self.measured.worth_more(MAX_PLAIN)
        ways += self._composed(looked, [way for way in ways if not way.is_edited])
        if len(ways) > 1:  # else there is nothing to compare it with
            measuring.measure(self.measured, ways, self._start, self._say, LATER)
        # The fastest is what may be offered: a compiler too must leave what the program computes.
        while (best := self.measured.best_edited) is not None and not self._is_right(best):
            del self.measured.runs[best]
        for way in self.measured.unfinished:
            self.notes.append(
                f"not judged: {way.name} did not finish a step within {self.plan.run_s:g} s, and "
                f"may be the"
                " fastest; give each run more time with --run-seconds"
            )

    def _composed(
        self, looked: Sequence[ProgramTarget], plain: Sequence[ProgramWay]
    ) -> list[ProgramWay]:
        """Our edits, by themselves and in the mode of the fastest of ``plain``."""
        begun = self.variants.get(composing.OPTIMIZER)
        best = self.measured.best(plain)
        mode = best.mode if best is not None and not best.regional else None
        ways = list[ProgramWay]()
        if begun is not None and mode not in (None, "default"):
            ways += self._compiled(begun, mode)
        for variant in composing.with_targets(looked, begun, self.shares, self._workspace):
            self.notes += variant.notes
            kept = self._verified(variant, begun) if variant.composed else None
            if kept is not None:
                ways.append(ProgramWay(name=kept.name, variant=kept.name))
                if kept.name == composing.KERNELS and mode is not None:
                    ways += self._compiled(kept, mode)
        return ways

    def _is_right(self, way: ProgramWay) -> bool:
        if way.name not in self.agreements:
            self._agrees(way)
        return self.agreements[way.name].right

    def _verified(
        self, variant: ProgramVariant, begun: ProgramVariant | None
    ) -> ProgramVariant | None:
        """The variant, without the rewrites with which it computes something else."""
        for _ in range(MAX_LEFT_OUT):
            if self._agrees(self._add(variant)):
                return variant
            less = composing.without_last(variant, begun, self._workspace)
            if less is None:
                break
            variant = less
        self._drop(variant.name)
        return None

    def _drop(self, name: str) -> None:
        found = self.agreements.get(name)
        self.notes.append(
            f"{name}: left out, it computes something else ({found.detail if found else 'failed'})"
        )
        del self.variants[name]

    def _agrees(self, way: ProgramWay) -> bool:
        """Whether the program computes with these edits what it computed, step by step."""
        self._say(f"checking what the program computes with {way.name}")
        checking: dict[str, Any] = {"check": True, "steps": CHECKED_STEPS}
        if not self._originals:
            self._originals = [
                self._start(AS_IS, 0, **checking),
                self._start(AS_IS, 1, **checking),
                self._start(AS_IS, nudge=self._eps, **checking),
            ]
        edited = [list(one.name) for one in self.variants[way.variant or ""].composed]
        run = self._start(way, edited=edited, **checking)
        self.taken |= run.taken
        failed = next((one.failed for one in (*self._originals, run) if one.failed), None)
        if failed:
            found = Agreement(right=False, steps=(), detail=failed)
        else:
            found = measuring.agreement(*self._originals, edited=run)
            if not found.right and self.draws:
                found = self._agree_by_distribution(way, edited)
        self.agreements[way.name] = found
        return found.right

    def _agree_by_distribution(self, way: ProgramWay, edited: list[list[str]]) -> Agreement:
        """Of a program that draws, with edits that may draw otherwise: number by number without
        dropout, and by distribution with it."""
        self._say(
            f"{way.name} may draw other random numbers: comparing without, and by distribution"
        )
        undrawn: dict[str, Any] = {"check": True, "steps": CHECKED_STEPS, "undrawn": True}
        if not self._undrawn:
            self._undrawn = [
                self._start(AS_IS, **undrawn), self._start(AS_IS, nudge=self._eps, **undrawn)
            ]  # fmt: skip
        ours = self._start(way, edited=edited, **undrawn)
        if any(not_fast == calls for calls, not_fast in ours.taken.values()):
            return Agreement(right=False, steps=(), detail="without dropout it takes another path")
        first, moved = self._undrawn
        without = measuring.agreement(first, first, moved, edited=ours)
        if not without.right:
            return replace(without, detail=f"without dropout {without.detail}")
        numbers = range(1, measuring.DRAWS + 1)
        redrawn: dict[str, Any] = {"check": True, "steps": 1}
        if not self._redrawn:
            self._redrawn = [self._start(AS_IS, redraw=n, **redrawn) for n in numbers]
        theirs = [self._start(way, edited=edited, redraw=n, **redrawn) for n in numbers]
        found = measuring.alike_by_distribution(self._redrawn, theirs)
        return replace(found, detail=f"{found.detail}; without dropout {without.detail}")


def _clock(known: Clock, shares: Shares, modules: Collection[ShareName]) -> Clock:
    """The clock, with roots and the repeated block as the profile shows them. Functions that the
    program calls itself are none: nothing waits for their instances."""
    roots = tuple(one for one in shares.roots() if one in modules) or known.roots
    region = shares.repeated(roots[0], modules) if roots else None
    return replace(known, roots=roots, region=region or known.region)
