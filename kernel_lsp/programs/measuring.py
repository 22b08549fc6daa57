"""A program's own step, timed in several ways side by side.

Every run is a fresh process. Rounds alternate: each way once per round, in an order that reverses,
so that a machine that drifts hits all of them. A ratio is that of two ways' steady medians in one
round; its interval is Student's over rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from kernel_lsp.programs.stepping import ProgramWay, StepRun
from kernel_lsp.records import Interval

AS_IS = ProgramWay(name="as it is")
COMPILED = (
    ProgramWay(name="torch.compile", mode="default"),
    ProgramWay(name="torch.compile of the repeated block", mode="default", regional=True),
    ProgramWay(name="torch.compile, reduce-overhead", mode="reduce-overhead"),
    ProgramWay(name="torch.compile, max-autotune-no-cudagraphs", mode="max-autotune-no-cudagraphs"),
)
"""What a user can have without us."""
SLOWEST = COMPILED[-1]
"""It takes minutes to its first step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundNumbers:
    """Which rounds belong to which part of a measurement. Two ways are compared in the rounds that
    both have, so no two parts share a number; a number does not say when its round runs."""

    first: range = range(1)
    """Each way once."""
    compared: range = range(1, 4)
    """All ways that have a chance after their first round, side by side."""
    doubtful: range = range(4, 5)
    """Edits that their first round would drop, once more beside the fastest way."""
    slowest: range = range(5, 8)
    """`SLOWEST`, which is timed last, beside the fastest ways until then."""
    composed: range = range(8, 9)
    """The first round of edits of targets, beside the fastest way until then."""
    sure: tuple[range, ...] = (range(9, 12), range(12, 16))
    """The fastest edits beside the fastest way without, as soon as they seem to pay: with the first
    round four, of which Student's t gives an interval (with two it would be 64 deviations wide),
    and four more where one of these was disturbed (of 1.12x, 1.07x, 1.00x and 1.09x on an H200
    nobody knows whether they pay). Looking twice at 99 % may be wrong twice as often."""
    sure_early: tuple[range, ...] = (range(23, 26),)
    """The same beside the program as it is, where no compiler has run yet."""
    sure_later: tuple[range, ...] = (range(16, 19), range(19, 23))
    """The same beside a compiler's other mode, where that is the fastest way when it was timed."""


ROUNDS = RoundNumbers()
HOPELESS = 1.15
"""Times as fast as our edits is the fastest way, in each of two rounds: they are not run again."""
FAR_BEHIND = 1.5
"""The same of a way without our edits. It is more, because edits must beat the best of these, and
one run may have been disturbed."""
WORTH = 1.01
"""Ratio of the step's times from which edits are offered; its interval's lower bound must be above
1."""
EARLY = 1.03
"""Gain in the first round from which edits are made sure before targets are looked at. Of 1.01x
nothing was known after seven more rounds on an H200; they took 150 of 246 s, and targets had 2 s."""
FEW = 4
"""Rounds together below which an interval says little: 10 deviations of the mean with three."""
T_99 = {1: 63.66, 2: 9.92, 3: 5.84, 4: 4.60, 5: 4.03, 6: 3.71, 7: 3.50}
"""Student's t for 99 %, by degrees of freedom. With 95 % five of 200 programs would be called
faster than themselves (`benchmarks/step_aa.py`), and the best of several ways is looked at."""


@dataclass
class MeasuredWays:
    """Runs of each way by round; a failed one ends a way."""

    runs: dict[ProgramWay, dict[int, StepRun]] = field(default_factory=dict)

    def step_ms(self, way: ProgramWay) -> float | None:
        """Mean over rounds of the steady median."""
        found = [run.step_ms for run in self.runs.get(way, {}).values() if run.step_ms is not None]
        return fmean(found) if found else None

    def failed(self, way: ProgramWay) -> str | None:
        """Why a run of this way failed; None where none did."""
        return next((run.failed for run in self.runs.get(way, {}).values() if run.failed), None)

    @property
    def unfinished(self) -> list[ProgramWay]:
        """Ways of which nobody knows how fast they are, because they took too long."""
        return [
            way for way, runs in self.runs.items() if any(run.is_cut_off for run in runs.values())
        ]

    def ratio(self, before: ProgramWay, after: ProgramWay) -> Interval | None:
        """How many times as fast ``after`` is; None where no round has both."""
        first, second = self.runs.get(before, {}), self.runs.get(after, {})
        pairs = [
            (first[number].step_ms, second[number].step_ms) for number in first if number in second
        ]
        logs = [math.log(one / other) for one, other in pairs if one and other]
        if not logs:
            return None
        middle = fmean(logs)
        half = (
            T_99[min(len(logs) - 1, 7)] * stdev(logs) / math.sqrt(len(logs))
            if len(logs) > 1
            else math.inf
        )
        return Interval(
            low=math.exp(middle - half),
            mid=math.exp(middle),
            high=_exp(middle + half),
            confidence=0.99,
        )

    def rounds_together(self, one: ProgramWay, other: ProgramWay) -> int:
        """How many rounds have times of both."""
        first, second = self.runs.get(one, {}), self.runs.get(other, {})
        return sum(bool(first[n].step_ms and second[n].step_ms) for n in first if n in second)

    def surely_beaten(self, mine: ProgramWay) -> ProgramWay | None:
        """The fastest way without our edits that ``mine`` surely beats; None where there is none.

        Faster ways, by their own few rounds, must be behind ``mine`` in these: a compiler's mode
        that was timed once, at the end, takes nothing from what is sure against the others. With
        `FEW` rounds and more it does."""
        plain = [way for way in self.runs if not way.is_edited and self.speed(way) is not None]
        for way in sorted(plain, key=lambda one: -(self.speed(one) or 0.0)):
            ratio = self.ratio(way, mine)
            if ratio is None or ratio.mid < WORTH:
                return None
            if pays(ratio):
                return way
            if self.rounds_together(way, mine) >= FEW:
                return None
        return None

    def speed(self, way: ProgramWay) -> float | None:
        """How many times as fast as the program as it is, in the rounds that have both."""
        ratio = None if self.failed(way) else self.ratio(AS_IS, way)
        return ratio.mid if ratio else None

    def best(self, ways: Iterable[ProgramWay]) -> ProgramWay | None:
        """The way with the largest `speed`; None where none was measured."""
        return max(
            (way for way in ways if self.speed(way) is not None),
            key=lambda way: self.speed(way) or 0.0,
            default=None,
        )

    @property
    def best_plain(self) -> ProgramWay | None:
        """The fastest without our edits."""
        return self.best(way for way in self.runs if not way.is_edited)

    @property
    def best_edited(self) -> ProgramWay | None:
        """The fastest with our edits."""
        return self.best(way for way in self.runs if way.is_edited)

    def promising(self, least: float = WORTH) -> tuple[ProgramWay, ProgramWay] | None:
        """The fastest way without our edits and the fastest with, where the second is at least
        ``least`` times as fast."""
        before, after = self.best_plain, self.best_edited
        if before is None or after is None:
            return None
        speed, other = self.speed(after), self.speed(before)
        return (before, after) if speed and other and speed >= least * other else None

    def worth_more(self, plain: int) -> list[ProgramWay]:
        """The program as it is, as many of its fastest ways, and our edits, where they are not far
        behind."""
        speeds = {way: speed for way in self.runs if (speed := self.speed(way)) is not None}
        timed = sorted(speeds, key=lambda way: -speeds[way])
        others = [way for way in timed if not way.is_edited]
        known = [
            way for way in others if way != AS_IS and FAR_BEHIND * speeds[way] >= speeds[others[0]]
        ][:plain]
        behind = self.far_behind()
        edited = [way for way in timed if way.is_edited and way not in behind]
        return [AS_IS, *known, *edited]

    def far_behind(self) -> list[ProgramWay]:
        """Our edits that are hopeless in every round that they have with the fastest way."""
        best = self.best(self.runs)
        if best is None:
            return []
        return [way for way in self.runs if way.is_edited and self._is_hopeless(way, best)]

    def _is_hopeless(self, way: ProgramWay, best: ProgramWay) -> bool:
        fastest, mine = self.runs[best], self.runs[way]
        pairs = [(fastest[n].step_ms, mine[n].step_ms) for n in fastest if n in mine]
        slow = [HOPELESS * one < other for one, other in pairs if one and other]
        return bool(slow) and all(slow)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def pays(ratio: Interval) -> bool:
    """Whether a program is surely faster, and by something that is worth an edit."""
    return ratio.mid >= WORTH and ratio.low > 1.0


def measure(
    measured: MeasuredWays,
    ways: Sequence[ProgramWay],
    start: Callable[[ProgramWay, int], StepRun],
    report: Callable[[str], None],
    rounds: Iterable[int],
    *,
    schedule: RunSchedule | None = None,
) -> bool:
    """Runs each way once a round, in alternating order, and adds its times to ``measured``; ways
    that have failed are left out. ``start`` runs the program once in one way, in the round with
    that number. False: the time was over before all were run."""
    schedule = schedule or RunSchedule()
    planned = [
        (way, number)
        for number in rounds
        for way in (ways if number % 2 == 0 else [*reversed(ways)])
    ]
    for place, (way, number) in enumerate(planned):
        if measured.failed(way):
            continue
        hopeful = [one for one in planned[place:] if not measured.failed(one[0])]
        if not schedule.may_run(way, number):
            return False
        ran = len(measured.runs.get(way, {}))  # numbers of rounds say when they come, not how many
        report(f"timing the step, run {ran + 1}: {way.name}{schedule.words(hopeful)}")
        if len(hopeful) > 1:
            schedule.begin(*hopeful[1])
        run = start(way, number)
        if schedule.has_ended(run):
            return False
        measured.runs.setdefault(way, {})[number] = run
        schedule.after_run()
    return True


class RunSchedule:
    """What is known of runs before they begin. This one: nothing."""

    def may_run(self, way: ProgramWay, number: int) -> bool:
        """Whether there is time for it."""
        return True

    def has_ended(self, run: StepRun) -> bool:
        """Whether the time was over before the run was, which therefore says nothing."""
        return False

    def words(self, planned: Sequence[tuple[ProgramWay, int]]) -> str:
        """How long these take, for people."""
        return ""

    def begin(self, way: ProgramWay, number: int) -> None:
        """Called before a run whose turn is next: what needs no device may begin."""

    def after_run(self) -> None:
        """Called after each run."""


def measure_doubtful(
    measured: MeasuredWays,
    start: Callable[[ProgramWay, int], StepRun],
    report: Callable[[str], None],
    schedule: RunSchedule | None = None,
) -> None:
    """Time edits that are far behind once more, beside the fastest way: one disturbed run drops
    none."""
    best, behind = measured.best(measured.runs), measured.far_behind()
    if best is not None and behind:
        measure(measured, [best, *behind], start, report, ROUNDS.doubtful, schedule=schedule)
