"""The runs of one program: profiled, checked and timed, as it is and with our edits.

    with ProgramBench(plan, clock, recorded, report, timetable) as bench:
        bench.profile()                 bench.shares: where the step's device time goes
        bench.time_first()              what needs no target
        bench.time_later(looked)        with the rewrites of targets, and torch.compile
        bench.measured

A variant of the edits (composing.py) is timed only when the program computes with it what it did
(comparing.py)."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from kernel_lsp.patching import store
from kernel_lsp.patching.store import is_own
from kernel_lsp.programs import composing, elsewhere, measuring, targets
from kernel_lsp.programs.comparing import ComparedWays
from kernel_lsp.programs.composing import ProgramVariant, Workspace
from kernel_lsp.programs.measuring import (
    AS_IS,
    COMPILED,
    ROUNDS,
    SLOWEST,
    MeasuredWays,
    RunSchedule,
)
from kernel_lsp.programs.pace import pace_of
from kernel_lsp.programs.resuming import KeptRuns
from kernel_lsp.programs.runs import PROFILED_LATEST, PROFILED_SHARE, ProgramPlan, ProgramRuns
from kernel_lsp.programs.shares import ShareName, Shares
from kernel_lsp.programs.stepping import Clock, ProgramWay, StepRun
from kernel_lsp.programs.targets import ProgramTarget
from kernel_lsp.programs.timetable import SURE_EARLY, TARGETS, Timetable, words_of_seconds
from kernel_lsp.records import Progress, Report
from kernel_lsp.snapshots.store import ProgramRecording

PROFILED_STEPS, MIN_PROFILED = 6, 3
"""Fewer where steps are slow; the last is profiled."""
PROFILE_MARGIN = 1.5
"""Times as long as when it was recorded a step may take that is profiled: 1.2 was seen, on a
machine that had become busy."""
MAX_PLAIN = 2
"""Ways without our edits that are timed again, beside the program as it is: the fastest."""
MIN_WAYS = 4
"""The program as it is, the best without edits of ours, the best with, and edits of targets."""
MAX_LEFT_OUT = 4
"""Rewrites that are left out one after the other until the program computes what it did."""
CHECKS = 4
"""Runs by which it is found out whether edits leave what the program computes."""
NOT_COMPILED = "torch.compile was not timed: the setting torch_compile says that it cannot be used"


class ProgramBench:
    """What is found about one program: where its step's time goes, and which ways are faster."""

    def __init__(
        self,
        plan: ProgramPlan,
        clock: Clock,
        recorded: ProgramRecording,
        report: Report,
        timetable: Timetable,
    ) -> None:
        self.plan, self.timetable, self._recorded = plan, timetable, recorded
        self.shares: Shares | None = None
        self.measured = MeasuredWays()
        kept = KeptRuns(recorded.folder, fresh=plan.fresh)
        self.runs = ProgramRuns(plan, clock, kept, timetable, self.measured)
        autocast = (way["setting"].get("autocast") for way in recorded.ways if way.get("setting"))
        self.compared = ComparedWays(self.runs, next(autocast, None), self._say)
        self.notes: list[str] = []
        self.is_broken = False
        """The program as it is does not run to its end: its step cannot be compared with
        anything."""
        self.tokens: float | None = None
        """That a step takes; None: it is no language model's, or they are unknown."""
        place = store.place_of(plan.root, plan.folder, plan.command)
        self._pace = pace_of(recorded, clock)
        """None: unknown."""
        self._workspace = Workspace(root=plan.root, place=place)
        self._report = report
        self._last_words: str | None = None
        """Of a gain, not to be repeated."""
        self._optimizers: frozenset[str] = frozenset()
        self._first_compiled: list[ProgramWay] = []
        """torch.compile, and with it the fused optimizer."""
        self._kernels_to_compile: ProgramVariant | None = None
        """Rewrites of targets that go with torch.compile."""
        self._modules = frozenset(
            (str(way["module"]), str(way["class"]))
            for way in recorded.ways
            if way.get("kind") == "module" and way.get("class")
        )

    def __enter__(self) -> ProgramBench:
        self.runs.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        self.runs.__exit__(*failure)

    @property
    def has_fused_optimizer(self) -> bool:
        """Whether an optimizer of the program has a fused implementation that it does not use;
        known after `profile`."""
        return composing.fuse_optimizers(self.runs.texts, self._optimizers) is not None

    def _say(self, text: str) -> None:
        self._report(Progress(phase="measure", message=text))

    # --- 2

    def profile(self) -> None:
        """What of the step belongs to which target, which roots there are, and what the program
        imports."""
        if (needed := self._profile_s) > PROFILED_LATEST * self.timetable.left_s:
            self._do_without_profile(needed)
            return
        self._say("profiling one step")
        run = self._profiled_run()
        if run.failed is None and run.profile is not None:
            self.shares = Shares.of(run.profile, run.step_ms)
            clock = _clock(self.runs.clock, self.shares, self._modules)
            if not clock.roots and run.outermost is not None:  # of torch's own modules alone
                clock = replace(clock, roots=(run.outermost,))
            self.runs.clock = clock
        else:
            self.notes.append(
                f"the step could not be profiled: {run.failed or 'it ended too early'}"
            )
        self.tokens, self.compared.draws = run.tokens, run.draws
        self.is_broken = run.failed is not None and not run.is_cut_off
        self.runs.learn(run, on_gpu=self.shares is not None and self.shares.device == "cuda")
        self._saw_optimizers(run.optimizers)

    def _saw_optimizers(self, optimizers: Sequence[dict[str, Any]]) -> None:
        self._optimizers = frozenset(
            str(one["kind"])
            for one in optimizers
            if one["fused"] is None and one["foreach"] is None
        )
        if self._notices_optimizers:
            self.notes += elsewhere.advice_on(optimizers, lambda path: is_own(path, self.plan.root))

    @property
    def _notices_optimizers(self) -> bool:
        """Whether a faster optimizer may change the step's time."""
        return self.shares is None or self.shares.would_notice_optimizers(targets.MIN_SHARE)

    def _profiled_run(self) -> StepRun:
        """Again, and shorter, where the program has fewer steps than were asked for."""
        names = sorted({one.name for one in targets.rank_targets(self._recorded, None)})
        profiled = [list(name) for name in names]
        run = self.runs.start(AS_IS, steps=self._profiled_steps, profiled=profiled)
        if run.failed is None and run.profile is None and run.steps_ms:
            return self.runs.start(AS_IS, steps=len(run.steps_ms) + 1, profiled=profiled)
        return run

    @property
    def _profiled_steps(self) -> int:
        """As many as fit, by those that were recorded."""
        if self._pace is None:
            return PROFILED_STEPS
        fitting = self._pace.steps_within(PROFILED_SHARE * self.plan.within_s / PROFILE_MARGIN)
        return max(MIN_PROFILED, min(PROFILED_STEPS, fitting))

    @property
    def _profile_s(self) -> float:
        """Seconds that the profiled run takes, about; 0 where nobody knows."""
        return self._pace.seconds_of(self._profiled_steps) if self._pace is not None else 0.0

    def _do_without_profile(self, needed_s: float) -> None:
        """``needed_s``: what it would take."""
        assert self._pace is not None
        self.notes.append(
            f"no step was profiled: the {MIN_PROFILED} steps that it needs take about "
            f"{words_of_seconds(needed_s)}, and {words_of_seconds(self.timetable.left_s)} were "
            "left; targets are ordered by their recorded time. --within gives it more"
        )
        self.runs.fit(self._pace.first_s, self._pace.step_s)

    # --- 3

    def time_first(self) -> None:
        """The program as it is and what needs no target. Targets come next, and compilers after
        them, unless a fused optimizer may be a gain by itself: that is known within minutes. Where
        compilers take too long for that, its gain over the program as it is is made sure."""
        if self.is_broken:
            return
        ways = [AS_IS]
        variant = composing.fuse_optimizers(self.runs.texts, self._optimizers)
        is_noticed = self._notices_optimizers
        if variant is not None and is_noticed:
            ways.append(self.runs.add(variant))
        if not self.plan.may_compile:
            self.notes.append(NOT_COMPILED)
        if self.timetable.estimate_s(AS_IS) > (1 - TARGETS) * self.timetable.left_s:
            self._note_time([AS_IS])  # targets need no times of the step
            return
        self._measure(ways, ROUNDS.first)
        if variant is None or not is_noticed:
            return
        if self._is_early_enough(self._compiled_s(variant)):
            self._time_compiled(variant)
            self._make_sure(ROUNDS.sure[:1], least=measuring.EARLY)
            return
        needed_s = BenchSchedule(self).seconds(ways, ROUNDS.sure_early[0])
        needed_s += self.timetable.total_s([AS_IS] * CHECKS)
        if self._is_early_enough(needed_s):
            self._make_sure(ROUNDS.sure_early, least=measuring.EARLY)

    def _compiled_s(self, begun: ProgramVariant) -> float:
        """Seconds until it is sure whether the edit ``begun`` pays together with torch.compile."""
        schedule, compiled = BenchSchedule(self), self._compiled_first(begun)
        needed_s = schedule.seconds(compiled, ROUNDS.first)
        return needed_s + schedule.seconds(compiled[-2:], ROUNDS.sure[0])

    def _is_early_enough(self, seconds: float) -> bool:
        """Whether so many seconds may go by before targets are looked at."""
        return seconds <= SURE_EARLY * self.timetable.left_s

    def _compiled_first(self, begun: ProgramVariant | None) -> list[ProgramWay]:
        """torch.compile, and with it the edit ``begun``."""
        if not self._first_compiled:
            self._first_compiled = [*self._plain[:1]]
            if begun is not None:
                self._first_compiled += self._compiled(begun, None)
        return self._first_compiled

    def _time_compiled(self, begun: ProgramVariant | None) -> None:
        """torch.compile, and with it the fused optimizer ``begun``, once."""
        wrong = self.compared.wrong
        ways = [way for way in self._compiled_first(begun) if way.name not in wrong]
        self._measure(ways, ROUNDS.first)

    def _make_sure(self, tries: Sequence[range], *, least: float = measuring.WORTH) -> None:
        """Time the edits that seem to pay beside the fastest way without them, until an interval is
        known; those with which the program computes something else are none. ``tries``: the rounds
        of each time. ``least``: from what gain they seem to."""
        while (pair := self.measured.promising(least)) is not None:
            before, after = pair
            if self.compared.is_right(after):
                break
            self._discard(after)
        else:
            return
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
            self.measured, ways, self.runs.start, self._say, rounds, schedule=schedule
        )
        if not done:
            self._note_time(ways)
        return done

    def _note_time(self, ways: Sequence[ProgramWay]) -> None:
        """Says once that there was no time for one of these ways."""
        begun = f"not everything was timed: what was left of {self.plan.within:g} minutes was "
        if not any(note.startswith(begun) for note in self.notes):
            takes = words_of_seconds(max(map(self.timetable.estimate_s, ways)))
            self.notes.append(
                f"{begun}too little for the next run, of up to {takes}; the same command goes on "
                "from here, --within gives it more at once"
            )

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
        checks, first = [AS_IS] * CHECKS, [way for way in plain if way not in self.measured.runs]
        return [*checks, *first, *ours, *rounds * chosen]

    @property
    def _plain(self) -> list[ProgramWay]:
        """What torch.compile alone can do with the program, its slowest mode apart."""
        # of functions alone there is no module to compile
        if not self.plan.may_compile or not self.runs.clock.roots:
            return []
        return [
            way
            for way in COMPILED
            if way != SLOWEST and (not way.regional or self.runs.clock.region)
        ]

    def _compiled(self, variant: ProgramVariant, mode: str | None) -> list[ProgramWay]:
        """The variant and torch.compile of the root together: as a line of the program where there
        is a place for it, else called on the module from outside."""
        if not self.runs.clock.roots or not self.plan.may_compile:
            return []
        name, texts = self.runs.clock.roots[0], self.runs.texts
        if (
            len(self.runs.clock.roots) == 1
            and (line := composing.compile_outermost(variant, name, texts, mode)) is not None
        ):
            return [self.runs.add(line)]
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
                if best.name not in self.compared.agreements:
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
        if begun is not None and self._compiled_s(begun) > self.timetable.left_s:
            self._make_sure(ROUNDS.sure_early)
        self._time_compiled(begun)
        composed = self._composed(looked, begun)
        if composed:
            fastest = [way for way in (AS_IS, self.measured.best_plain) if way is not None]
            self._measure([*dict.fromkeys(fastest), *composed], ROUNDS.composed)
        self._make_sure(ROUNDS.sure)
        self._measure(self._plain[1:], ROUNDS.first)
        self._make_sure(ROUNDS.sure_later)
        schedule = BenchSchedule(self)
        measuring.measure_doubtful(self.measured, self.runs.start, self._say, schedule)
        # Before the rounds, which take all the time there is: unchecked edits are not offered.
        self._leave_out_wrong()
        ways = self.measured.worth_more(MAX_PLAIN)
        ways += self._in_best_mode([way for way in ways if not way.is_edited])
        # else there is nothing to compare it with
        is_done = len(ways) < 2 or self._measure(self._fitting(ways), ROUNDS.compared)
        if is_done and any(way in self.measured.runs for way in self._plain):
            self._time_slowest()
        self._leave_out_wrong()
        for way in self.measured.unfinished:
            self.notes.append(
                f"not judged: {way.name} may be the fastest ({self.measured.failed(way)}); give "
                "each run more time with --run-seconds"
            )

    def _leave_out_wrong(self) -> None:
        """The fastest is what may be offered: a compiler too must leave what the program
        computes."""
        while (best := self.measured.best_edited) is not None and not self.compared.is_right(best):
            self._discard(best)

    def _discard(self, way: ProgramWay) -> None:
        """Leave out a way that computes something else, or of which that is unknown."""
        found = self.compared.agreements[way.name]
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
        begun = self.runs.variants[mine.variant] if mine.variant is not None else None
        if begun is not None and begun.compiled is None and mine.mode is None:
            ways += self._compiled(begun, SLOWEST.mode)
        self._measure(ways, ROUNDS.slowest)

    def _begun_right(self) -> ProgramVariant | None:
        """The fused optimizer, when the program computes with it what it did."""
        variant = self.runs.variants.get(composing.OPTIMIZER)
        way = ProgramWay(name=composing.OPTIMIZER, variant=composing.OPTIMIZER)
        if variant is None or self.compared.is_right(way):
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
        if not self.runs.clock.roots or not self.plan.may_compile:
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
            self.runs.add(less)
        return self._compiled(less, None)

    def _in_best_mode(self, plain: Sequence[ProgramWay]) -> list[ProgramWay]:
        """Our edits in the mode of the fastest of ``plain``, where that is not the default one."""
        best = self.measured.best(plain)
        if best is None or best.regional or best.mode in (None, "default"):
            return []
        found = (self.runs.variants.get(composing.OPTIMIZER), self._kernels_to_compile)
        return [way for one in found if one is not None for way in self._compiled(one, best.mode)]

    def _verified(
        self, variant: ProgramVariant, begun: ProgramVariant | None
    ) -> ProgramVariant | None:
        """The variant, without the rewrites with which it computes something else."""
        for _ in range(MAX_LEFT_OUT):
            if self.compared.compare(self.runs.add(variant)):
                return variant
            if not self.compared.agreements[variant.name].is_known:
                break
            less = composing.without_last(variant, begun, self._workspace)
            if less is None:
                break
            variant = less
        self._drop(variant.name)
        return None

    def _drop(self, name: str) -> None:
        found = self.compared.agreements[name]
        words = f"left out, it computes something else ({found.detail})"
        if not found.is_known:
            words = found.detail
        self.notes.append(f"{name}: {words}")
        del self.runs.variants[name]


class BenchSchedule(RunSchedule):
    """Runs of a bench, within its time."""

    def __init__(self, bench: ProgramBench) -> None:
        self._bench, self._runs, self._timetable = bench, bench.runs, bench.timetable

    def may_run(self, way: ProgramWay, number: int) -> bool:
        """Whether it ends in time, as far as is known. What was run before takes none."""
        is_kept = self._runs.is_kept(way, number)
        return is_kept or self._timetable.estimate_s(way) <= self._timetable.left_s

    def has_ended(self, run: StepRun) -> bool:
        """Whether it was cut off when the time for all was over."""
        return self._runs.is_late([run])

    def seconds(self, ways: Sequence[ProgramWay], rounds: range) -> float:
        """That these rounds take."""
        return self._timetable.total_s(
            way for way in ways for number in rounds if not self._runs.is_kept(way, number)
        )

    def words(self, planned: Sequence[tuple[ProgramWay, int]]) -> str:
        """ " (3 runs left, about 2 min)", of those planned; empty where at most one is left."""
        left = [way for way, number in planned if not self._runs.is_kept(way, number)]
        seconds = words_of_seconds(self._timetable.total_s(left))
        return f" ({len(left)} runs left, about {seconds})" if len(left) > 1 else ""

    def begin(self, way: ProgramWay, number: int) -> None:
        """Start the run early, held before it computes, where the bench looks ahead."""
        if self._runs.looks_ahead:
            self._runs.start_early(way, number, held=True)

    def after_run(self) -> None:
        """Say what our edits gain so far, where that is news."""
        self._bench.tell_gain()


def _clock(known: Clock, shares: Shares, modules: Collection[ShareName]) -> Clock:
    """The clock, with roots and the repeated block as the profile shows them. Functions that the
    program calls itself are none: nothing waits for their instances."""
    roots = tuple(one for one in shares.roots() if one in modules) or known.roots
    region = shares.repeated(roots[0], modules) if roots else None
    return replace(known, roots=roots, region=region or known.region)
