"""The runs of one program: profiled, checked and timed, as it is and with our edits.

    with ProgramBench(plan, clock, recorded, report, timetable) as bench:
        bench.profile()                 bench.shares: where the step's device time goes
        bench.time_first()              what needs no target
        bench.time_later(looked)        with the rewrites of targets, and torch.compile
        bench.measured

Every variant of the edits (composing.py) has a copy of the workspace, which is removed in the end,
and is timed only when the program computes with it what it did. On a GPU runs whose times do not
count go side by side, and a timed run imports its libraries while the one before it is timed."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernel_lsp.files import read_source
from kernel_lsp.patching import store
from kernel_lsp.patching.store import is_own
from kernel_lsp.programs import composing, elsewhere, measuring, resuming, targets
from kernel_lsp.programs.composing import ProgramVariant, Workspace
from kernel_lsp.programs.measuring import (
    AS_IS,
    COMPILED,
    ROUNDS,
    SLOWEST,
    Agreement,
    MeasuredWays,
    RunSchedule,
)
from kernel_lsp.programs.mirror import Mirror
from kernel_lsp.programs.resuming import KeptRuns
from kernel_lsp.programs.shares import ShareName, Shares
from kernel_lsp.programs.stepping import Clock, ProgramWay, StartedRun, StepRun
from kernel_lsp.programs.targets import ProgramTarget
from kernel_lsp.programs.timetable import TARGETS, Timetable, words_of_seconds
from kernel_lsp.records import Progress, Report
from kernel_lsp.snapshots.store import ProgramRecording

CHECKED_STEPS = 4
PROFILED_STEPS = 6
MAX_PLAIN = 2
"""Ways without our edits that are timed again, beside the program as it is: the fastest."""
MIN_WAYS = 4
"""The program as it is, the best without edits of ours, the best with, and edits of targets."""
MAX_LEFT_OUT = 4
"""Rewrites that are left out one after the other until the program computes what it did."""
MAX_BESIDE = 4
"""Runs at once whose times do not count."""
CORES_BESIDE = 4
"""Of the processor, for each of them."""
MEMORY_SLACK, CONTEXT_BYTES = 1.5, 2**30
"""Of a run beside others: times its peak (what the allocator keeps), and what CUDA itself takes."""
AskedRun = tuple[ProgramWay, int, dict[str, Any]]
"""Way, number among those that are alike, and what else the run is to do."""
NOT_COMPILED = "torch.compile was not timed: the setting torch_compile says that it cannot be used"
TOO_LONG = "took longer than what was left of the time"
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


class ProgramBench:
    """The program's runs: one copy of the workspace per variant, which is removed in the end."""

    def __init__(
        self,
        plan: ProgramPlan,
        clock: Clock,
        recorded: ProgramRecording,
        report: Report,
        timetable: Timetable,
    ) -> None:
        self.plan, self.clock, self.recorded = plan, clock, recorded
        self.timetable = timetable
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
        self._begun: dict[str, StartedRun] = {}
        """Runs that have begun and whose end nobody has waited for, by their key."""
        self._last_words: str | None = None
        """Of a gain, not to be repeated."""
        self._beside = 1
        """How many runs at once there is room for, where their times do not count."""
        self._optimizers: frozenset[str] = frozenset()
        self._first_compiled: list[ProgramWay] = []
        """torch.compile, and with it the fused optimizer."""
        self._kernels_to_compile: ProgramVariant | None = None
        """Rewrites of targets that go with torch.compile."""
        self._checked: dict[str, StepRun] = {}
        """Runs whose times do not count, by their key, those that failed too."""
        self.draws = False
        """It draws random numbers in its step."""
        self.tokens: float | None = None
        """That a step takes; None: it is no language model's, or they are unknown."""
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
        for run in self._begun.values():
            run.end()
        self._stack.close()

    @property
    def has_fused_optimizer(self) -> bool:
        """Whether an optimizer of the program has a fused implementation that it does not use;
        known after `profile`."""
        return composing.fuse_optimizers(self._texts, self._optimizers) is not None

    # --- one run

    def _start(self, way: ProgramWay, number: int = 0, **more: Any) -> StepRun:
        """``number``: of the run among those that are alike."""
        key = self._key(way, number, more)
        place = resuming.digest(key)
        if (found := self._find_kept(key, more)) is not None:
            if not more:
                self.timetable.saw(way, found.took_s)
            return found
        begun = self._begun.pop(place, None) or self._begin(way, more)
        begin = time.monotonic()
        beside = [] if more else [*self._begun.values()]
        # The program as it is: everything else rests on its profile and its time.
        is_needed = way == AS_IS and not more.get("check")
        run_s = self.plan.run_s
        run = begun.finish(run_s if is_needed else min(run_s, self.timetable.left_s), beside)
        self._mirrors[way.variant].check_linked()
        if more:
            self._checked[place] = run
        else:
            self.timetable.saw(way, time.monotonic() - begin)
        self.kept.keep(key, run)
        return run

    def start_early(
        self, way: ProgramWay, number: int = 0, *, held: bool = False, **more: Any
    ) -> None:
        """Let it begin, for `_start` to wait for."""
        key = self._key(way, number, more)
        place = resuming.digest(key)
        if place not in self._begun and self._find_kept(key, more) is None:
            self._begun[place] = self._begin(way, more, held=held)

    def is_kept(self, way: ProgramWay, number: int) -> bool:
        """A timed run that needs no time any more."""
        return self._find_kept(self._key(way, number, {}), {}) is not None

    def _key(self, way: ProgramWay, number: int, more: dict[str, Any]) -> Any:
        texts = self.variants[way.variant].texts if way.variant is not None else {}
        changed = {str(path): text for path, text in {**self._texts, **texts}.items()}
        asked = {"steps": self.plan.steps, **more}
        return [way, number, self.clock, self.plan.command, asked, changed]

    def _find_kept(self, key: Any, more: dict[str, Any]) -> StepRun | None:
        if more and (found := self._checked.get(resuming.digest(key))) is not None:
            return found
        # Before the profile nobody knows what the program imports: that run lists it itself.
        may_count = self._texts or "profiled" in more
        return self.kept.find(key) if may_count else None

    def _begin(self, way: ProgramWay, more: dict[str, Any], *, held: bool = False) -> StartedRun:
        texts = self.variants[way.variant].texts if way.variant is not None else {}
        asked = {"steps": self.plan.steps, **more}
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

    def _seconds_of(self, asked: Sequence[AskedRun]) -> float:
        """That these runs take, about: what was run before takes none."""
        new = [
            self._seconds_of_steps(way, more["steps"])
            for way, number, more in asked
            if self._find_kept(self._key(way, number, more), more) is None
        ]
        return sum(new) / self._beside

    def _seconds_of_steps(self, way: ProgramWay, steps: int) -> float:
        """A check has fewer steps than the timed run that it is estimated by."""
        run = next(iter(self.measured.runs.get(way, {}).values()), None)
        if run is None or run.first_s is None or run.step_ms is None:
            return self.timetable.estimate_s(way)
        return run.first_s + steps * run.step_ms / 1e3

    def _start_together(self, asked: Sequence[AskedRun]) -> list[StepRun]:
        """Runs whose times do not count, side by side where there is room; each ends when the time
        for all is over."""
        found = []
        for place, (way, number, more) in enumerate(asked):
            for other, other_number, other_more in asked[place : place + self._beside]:
                if self._beside > 1:
                    self.start_early(other, other_number, **other_more)
            found.append(self._start(way, number, **more))
        return found

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
            if not self.clock.roots and run.outermost is not None:  # of torch's own modules alone
                self.clock = replace(self.clock, roots=(run.outermost,))
        else:
            self.notes.append(
                f"the step could not be profiled: {run.failed or 'it ended too early'}"
            )
        self.tokens, self.draws, self._beside = run.tokens, run.draws, self._room_for(run)
        self.is_broken = run.failed is not None and not run.is_cut_off
        own = (path for path in map(Path, run.files) if is_own(path, self.plan.root))
        self._texts |= {
            path: read_source(path).text for path in own if path.suffix == ".py" and path.is_file()
        }
        self._saw_optimizers(run.optimizers)

    def _saw_optimizers(self, optimizers: Sequence[dict[str, Any]]) -> None:
        self._optimizers = frozenset(
            str(one["kind"])
            for one in optimizers
            if one["fused"] is None and one["foreach"] is None
        )
        if self._notices_optimizers:
            self.notes += elsewhere.advice_on(optimizers, self._is_edited)

    @property
    def _notices_optimizers(self) -> bool:
        """Whether a faster optimizer may change the step's time."""
        return self.shares is None or self.shares.would_notice_optimizers(targets.MIN_SHARE)

    def _is_edited(self, path: Path) -> bool:
        return is_own(path, self.plan.root)

    @property
    def looks_ahead(self) -> bool:
        """Whether a run may import its libraries while another is timed."""
        return self.shares is not None and self.shares.device == "cuda" and _cores() >= CORES_BESIDE

    def _room_for(self, run: StepRun) -> int:
        """Runs at once. Without a GPU they would take each other's cores."""
        if not self.looks_ahead or not run.room_bytes:
            return 1
        need = MEMORY_SLACK * (run.peak_bytes or 0) + CONTEXT_BYTES
        return max(1, min(MAX_BESIDE, _cores() // CORES_BESIDE, int(run.room_bytes // need)))

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
        """The program as it is and what needs no target. Targets come next, and compilers after
        them, unless a fused optimizer may be a gain by itself: that is known within minutes."""
        if self.is_broken:
            return
        ways = [AS_IS]
        variant = composing.fuse_optimizers(self._texts, self._optimizers)
        is_noticed = self._notices_optimizers
        if variant is not None and is_noticed:
            ways.append(self._add(variant))
        if not self.plan.may_compile:
            self.notes.append(NOT_COMPILED)
        self._measure(ways, ROUNDS.first)
        if variant is not None and is_noticed and self._leaves_time_for_targets(variant):
            self._time_compiled(variant)
            self._make_sure(ROUNDS.sure)

    def _leaves_time_for_targets(self, begun: ProgramVariant) -> bool:
        """Whether the edit ``begun`` and torch.compile can be timed until it is sure, and targets
        still have their share of the time."""
        schedule, ways = BenchSchedule(self), self._compiled_first(begun)
        needed = schedule.seconds(ways, ROUNDS.first) + schedule.seconds(ways[-2:], ROUNDS.sure[0])
        return needed <= (1 - TARGETS) * self.timetable.left_s

    def _compiled_first(self, begun: ProgramVariant | None) -> list[ProgramWay]:
        """torch.compile, and with it the edit ``begun``."""
        if not self._first_compiled:
            self._first_compiled = [*self._plain[:1]]
            if begun is not None:
                self._first_compiled += self._compiled(begun, None)
        return self._first_compiled

    def _time_compiled(self, begun: ProgramVariant | None) -> None:
        """torch.compile, and with it the fused optimizer ``begun``, once."""
        wrong = {name for name, found in self.agreements.items() if not found.right}
        ways = [way for way in self._compiled_first(begun) if way.name not in wrong]
        self._measure(ways, ROUNDS.first)

    def _make_sure(self, tries: Sequence[range]) -> None:
        """Time the edits that seem to pay beside the fastest way without them, until an interval is
        known; those with which the program computes something else are none. ``tries``: the rounds
        of each time."""
        while (pair := self.measured.promising) is not None and not self._is_right(pair[1]):
            self._discard(pair[1])
        if pair is None:
            return
        before, after = pair
        if self.measured.surely_beaten(after) == before:
            return
        for rounds in tries:
            is_done = self._measure(pair, rounds)
            ratio = self.measured.ratio(before, after)
            if not is_done or ratio is None or ratio.mid < measuring.WORTH:
                return
            if measuring.pays(ratio):
                self._say(
                    f"{after.name}: {ratio.mid:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}] against "
                    f"{before.name}, and it computes what the program does"
                )
                return

    def _measure(self, ways: Sequence[ProgramWay], rounds: range) -> bool:
        """False: the time was over before all were run, which is noted."""
        schedule = BenchSchedule(self)
        done = measuring.measure(
            self.measured, ways, self._start, self._say, rounds, schedule=schedule
        )
        if not done:
            self._note_time()
        return done

    def _note_time(self) -> None:
        words = (
            f"not everything was timed: what was left of {self.plan.within:g} minutes was too "
            "little for the next run; the same command goes on from here, --within gives it more "
            "at once"
        )
        if words not in self.notes:
            self.notes.append(words)

    @property
    def later_ways(self) -> list[ProgramWay]:
        """What runs after the targets, about: a check, torch.compile in each mode once, and three
        rounds of what has a chance, edits of targets among them."""
        plain, rounds = self._plain, len(ROUNDS.compared)
        ours = [ProgramWay(name=composing.KERNELS, variant=composing.KERNELS)]
        if plain:
            ours.append(replace(ours[0], name="our kernels, torch.compile", mode="default"))
        known = [way for way in self.measured.runs if way != AS_IS]
        chosen = [AS_IS, *plain[:MAX_PLAIN], *(way for way in known if way.is_edited), *ours]
        checks, first = [AS_IS] * 4, [way for way in plain if way not in self.measured.runs]
        return [*checks, *first, *ours, *rounds * chosen]

    @property
    def _plain(self) -> list[ProgramWay]:
        """What torch.compile alone can do with the program, its slowest mode apart."""
        # of functions alone there is no module to compile
        if not self.plan.may_compile or not self.clock.roots:
            return []
        return [
            way for way in COMPILED if way != SLOWEST and (not way.regional or self.clock.region)
        ]

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

    def tell_gain(self) -> None:
        """Reports what our edits gain over the fastest that is known, when their first run has
        ended."""
        best, other = self.measured.best_edited, self.measured.best_plain
        if best is not None and other is not None and len(self.measured.runs[best]) == 1:
            before, after = self.measured.step_ms(other), self.measured.step_ms(best)
            if before and after and before / after > 1.0:
                words = f"{best.name}: {before / after:.2f}x against {other.name}, measured once"
                if best.name not in self.agreements:
                    words += "; what it computes is compared later"
                if words != self._last_words:
                    self._say(words)
                self._last_words = words

    # --- 5 and 6

    def time_later(self, looked: Sequence[ProgramTarget]) -> None:
        """What targets gave, beside what still has a chance."""
        if self.is_broken:
            self.notes.append(
                "the program's step is not measured; its recorded targets were looked at all "
                "the same"
            )
            return
        begun = self._begun_right()
        self._time_compiled(begun)
        composed = self._composed(looked, begun)
        if composed:
            fastest = [way for way in (AS_IS, self.measured.best_plain) if way is not None]
            self._measure([*dict.fromkeys(fastest), *composed], ROUNDS.composed)
        self._make_sure(ROUNDS.sure)
        self._measure(self._plain[1:], ROUNDS.first)
        self._make_sure(ROUNDS.sure_later)
        schedule = BenchSchedule(self)
        measuring.measure_doubtful(self.measured, self._start, self._say, schedule)
        # Before the rounds, which take all the time there is: unchecked edits are not offered.
        self._leave_out_wrong()
        ways = self.measured.worth_more(MAX_PLAIN)
        ways += self._in_best_mode([way for way in ways if not way.is_edited])
        # else there is nothing to compare it with
        is_done = len(ways) < 2 or self._measure(self._fitting(ways), ROUNDS.compared)
        if is_done and self.plan.may_compile and self.clock.roots:
            self._time_slowest()
        self._leave_out_wrong()
        for way in self.measured.unfinished:
            self.notes.append(
                f"not judged: {way.name} did not finish a step within {self.plan.run_s:g} s, and "
                "may be the fastest; give each run more time with --run-seconds"
            )

    def _leave_out_wrong(self) -> None:
        """The fastest is what may be offered: a compiler too must leave what the program
        computes."""
        while (best := self.measured.best_edited) is not None and not self._is_right(best):
            self._discard(best)

    def _discard(self, way: ProgramWay) -> None:
        """Leave out a way that computes something else, or of which that is unknown."""
        found = self.agreements[way.name]
        if not found.is_known:
            self.notes.append(f"{way.name}: {found.detail}")
        del self.measured.runs[way]

    def _fitting(self, ways: Sequence[ProgramWay]) -> list[ProgramWay]:
        """Of the ways those for whose rounds there is time: few that are compared in every round
        say more than all in one. At least the program as it is and the fastest, with edits of ours
        and without."""

        def importance(way: ProgramWay) -> float:
            speed = self.measured.speed(way)
            # the edits of targets have not run before
            return math.inf if speed is None or way in first else speed

        first = {AS_IS, self.measured.best_plain, self.measured.best_edited}
        kept = sorted(ways, key=importance, reverse=True)
        schedule = BenchSchedule(self)
        while (
            len(kept) > MIN_WAYS and schedule.seconds(kept, ROUNDS.compared) > self.timetable.left_s
        ):
            kept.pop()
        left_out = [way.name for way in ways if way not in kept]
        if left_out:
            self.notes.append(f"timed once alone, for lack of time: {', '.join(left_out)}")
        return [way for way in ways if way in kept]

    def _time_slowest(self) -> None:
        """torch.compile's slowest mode comes when everything else is known: its first step takes
        minutes (4 on an H200 for 12 layers, which gained nothing there)."""
        if not BenchSchedule(self).may_run(SLOWEST, 0):
            needed = words_of_seconds(self.timetable.estimate_s(SLOWEST))
            self.notes.append(
                f"{SLOWEST.name} was not timed: it may take {needed} to its first step; the same "
                "command goes on with it, --within gives it more at once"
            )
            return
        self._measure([SLOWEST], ROUNDS.first)
        fastest, mine = self.measured.best_plain, self.measured.best_edited
        speed, other = self.measured.speed(SLOWEST), self.measured.best(self.measured.runs)
        best = self.measured.speed(other) if other is not None else None
        if mine is None or not speed or not best or measuring.HOPELESS * speed < best:
            return
        ways = [AS_IS, *([fastest] if fastest not in (None, AS_IS, SLOWEST) else []), SLOWEST, mine]
        begun = self.variants[mine.variant] if mine.variant is not None else None
        if begun is not None and begun.compiled is None and mine.mode is None:
            ways += self._compiled(begun, SLOWEST.mode)
        self._measure(ways, ROUNDS.slowest)

    def _begun_right(self) -> ProgramVariant | None:
        """The fused optimizer, when the program computes with it what it did."""
        variant = self.variants.get(composing.OPTIMIZER)
        way = ProgramWay(name=composing.OPTIMIZER, variant=composing.OPTIMIZER)
        if variant is None or self._is_right(way):
            return variant
        self._drop(variant.name)
        self.measured.runs.pop(way, None)
        return None

    def _composed(
        self, looked: Sequence[ProgramTarget], begun: ProgramVariant | None
    ) -> list[ProgramWay]:
        """Our edits of targets, by themselves and compiled."""
        ways = list[ProgramWay]()
        for variant in composing.with_targets(looked, begun, self.shares, self._workspace):
            self.notes += variant.notes
            kept = self._verified(variant, begun) if variant.composed else None
            if kept is not None:
                ways.append(ProgramWay(name=kept.name, variant=kept.name))
                if kept.name == composing.KERNELS:
                    ways += self._compiled_kernels(kept, begun)
        return ways

    def _compiled_kernels(
        self, kernels: ProgramVariant, begun: ProgramVariant | None
    ) -> list[ProgramWay]:
        """Rewrites of ours and torch.compile together, without those that it matches."""
        if not self.clock.roots or not self.plan.may_compile:
            return []
        less = self._kernels_to_compile = composing.unmatched(kernels, begun, self._workspace)
        kept = less.composed if less is not None else ()
        left_out = [one.qualname for one in kernels.composed if one not in kept]
        if left_out:
            self.notes.append(
                f"not together with torch.compile, whose own kernels are as fast there and are "
                f"fused with what stands beside them: {', '.join(left_out)}"
            )
        if less is None:
            return []
        if less is not kernels:
            self._add(less)
        return self._compiled(less, None)

    def _in_best_mode(self, plain: Sequence[ProgramWay]) -> list[ProgramWay]:
        """Our edits in the mode of the fastest of ``plain``, where that is not the default one."""
        best = self.measured.best(plain)
        if best is None or best.regional or best.mode in (None, "default"):
            return []
        found = (self.variants.get(composing.OPTIMIZER), self._kernels_to_compile)
        return [way for one in found if one is not None for way in self._compiled(one, best.mode)]

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
            if not self.agreements[variant.name].is_known:
                break
            less = composing.without_last(variant, begun, self._workspace)
            if less is None:
                break
            variant = less
        self._drop(variant.name)
        return None

    def _drop(self, name: str) -> None:
        found = self.agreements.get(name)
        words = f"left out, it computes something else ({found.detail if found else 'failed'})"
        if found is not None and not found.is_known:
            words = found.detail
        self.notes.append(f"{name}: {words}")
        del self.variants[name]

    def _agrees(self, way: ProgramWay) -> bool:
        """Whether the program computes with these edits what it computed, step by step."""
        checking: dict[str, Any] = {"check": True, "steps": CHECKED_STEPS}
        edited = [list(one.name) for one in self.variants[way.variant or ""].composed]
        asked: list[AskedRun] = [
            (AS_IS, 0, checking),
            (AS_IS, 1, checking),
            (AS_IS, 0, {**checking, "nudge": self._eps}),
            (way, 0, {**checking, "edited": edited}),
        ]
        if (needed := self._seconds_of(asked)) > self.timetable.left_s:
            self.agreements[way.name] = _not_compared(f"would take {words_of_seconds(needed)}")
            return False
        self._say(f"checking what the program computes with {way.name}")
        *originals, run = self._start_together(asked)
        self.taken |= run.taken
        failed = next((one.failed for one in (*originals, run) if one.failed), None)
        if self.is_late([*originals, run]):
            found = _not_compared(TOO_LONG)
        elif failed:
            found = Agreement(right=False, steps=(), detail=failed)
        else:
            found = measuring.agreement(*originals, edited=run)
            if not found.right and self.draws:
                found = self._agree_by_distribution(way, edited)
        self.agreements[way.name] = found
        return found.right

    def is_late(self, runs: Sequence[StepRun]) -> bool:
        """Whether one was ended because the time for all was over."""
        return not self.timetable.left_s and any(run.is_cut_off for run in runs)

    def _agree_by_distribution(self, way: ProgramWay, edited: list[list[str]]) -> Agreement:
        """Of a program that draws, with edits that may draw otherwise: number by number without
        dropout, and by distribution with it."""
        undrawn: dict[str, Any] = {"check": True, "steps": CHECKED_STEPS, "undrawn": True}
        without_draws: list[AskedRun] = [
            (AS_IS, 0, undrawn),
            (AS_IS, 0, {**undrawn, "nudge": self._eps}),
            (way, 0, {**undrawn, "edited": edited}),
        ]
        numbers = range(1, measuring.DRAWS + 1)
        redrawn: dict[str, Any] = {"check": True, "steps": 1}
        draws: list[AskedRun] = [(AS_IS, 0, {**redrawn, "redraw": n}) for n in numbers]
        draws += [(way, 0, {**redrawn, "redraw": n, "edited": edited}) for n in numbers]
        if (needed := self._seconds_of([*without_draws, *draws])) > self.timetable.left_s:
            return _not_compared(
                f"would take {words_of_seconds(needed)}: it may draw other random numbers"
            )
        self._say(
            f"{way.name} may draw other random numbers: comparing without, and by distribution"
        )
        first, moved, ours = self._start_together(without_draws)
        if self.is_late([first, moved, ours]):
            return _not_compared(TOO_LONG)
        if any(not_fast == calls for calls, not_fast in ours.taken.values()):
            return Agreement(right=False, steps=(), detail="without dropout it takes another path")
        without = measuring.agreement(first, first, moved, edited=ours)
        if not without.right:
            return replace(without, detail=f"without dropout {without.detail}")
        runs = self._start_together(draws)
        if self.is_late(runs):
            return _not_compared(TOO_LONG)
        found = measuring.alike_by_distribution(runs[: len(numbers)], runs[len(numbers) :])
        return replace(found, detail=f"{found.detail}; without dropout {without.detail}")


class BenchSchedule(RunSchedule):
    """Runs of a bench, within its time."""

    def __init__(self, bench: ProgramBench) -> None:
        self._bench, self._timetable = bench, bench.timetable

    def may_run(self, way: ProgramWay, number: int) -> bool:
        """Whether it ends in time, as far as is known. What was run before takes none."""
        is_kept = self._bench.is_kept(way, number)
        return is_kept or self._timetable.estimate_s(way) <= self._timetable.left_s

    def has_ended(self, run: StepRun) -> bool:
        """Whether it was cut off when the time for all was over."""
        return self._bench.is_late([run])

    def seconds(self, ways: Sequence[ProgramWay], rounds: range) -> float:
        """That these rounds take."""
        return self._timetable.total_s(
            way for way in ways for number in rounds if not self._bench.is_kept(way, number)
        )

    def words(self, planned: Sequence[tuple[ProgramWay, int]]) -> str:
        """ " (3 runs left, about 2 min)", of those planned; empty where at most one is left."""
        left = [way for way, number in planned if not self._bench.is_kept(way, number)]
        seconds = words_of_seconds(self._timetable.total_s(left))
        return f" ({len(left)} runs left, about {seconds})" if len(left) > 1 else ""

    def begin(self, way: ProgramWay, number: int) -> None:
        """Start the run early, held before it computes, where the bench looks ahead."""
        if self._bench.looks_ahead:
            self._bench.start_early(way, number, held=True)

    def after_run(self) -> None:
        """Say what our edits gain so far, where that is news."""
        self._bench.tell_gain()


def _not_compared(why: str) -> Agreement:
    """``why``: what the comparison took, or would take."""
    detail = (
        f"left out, comparing what the program computes with it {why}; the same command goes on "
        "with it, --within gives it more at once"
    )
    return Agreement(right=False, steps=(), detail=detail, is_known=False)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _clock(known: Clock, shares: Shares, modules: Collection[ShareName]) -> Clock:
    """The clock, with roots and the repeated block as the profile shows them. Functions that the
    program calls itself are none: nothing waits for their instances."""
    roots = tuple(one for one in shares.roots() if one in modules) or known.roots
    region = shares.repeated(roots[0], modules) if roots else None
    return replace(known, roots=roots, region=region or known.region)
