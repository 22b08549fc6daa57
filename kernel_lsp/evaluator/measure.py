"""The timed half of an evaluation, seen from the parent: fresh process, checked outputs, claims,
vetoes.

Two measurements (timing.py says how each is taken). *Calls* are what a program feels that calls in
a row, whichever of Python and device is slower; `speedups`, and so every claim, are made on them.
*Device* times are those of CUDA graphs; they stand beside and are not claimed, and evidence says
so when they contradict.

`speedups` compare with providers of the reference's own precision: eager and torch.compile. On
CUDA `eager_tf32` (eager with TF32 matrix products) is timed beside them where it computes
something else than eager; it stands in `timings` only, because a faithful candidate does not buy
speed with precision and a user who would can see here what the switch alone brings.

The number of rounds depends on time and on the *width* of the interval, and on the ratio only where
it cannot make a claim of chance: see `_is_decided`. What a claim must survive besides is in
vetoes.py. Not covered: locked clocks (need root), more than one
shape."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kernel_lsp.errors import EvaluationError, WorkerLost
from kernel_lsp.evaluator import stats, vetoes
from kernel_lsp.evaluator.findings import PartialEvaluation, Rejected, candidate, guard_notes
from kernel_lsp.evaluator.processes import crashes
from kernel_lsp.evaluator.processes.sandbox import InSession, Party, Sandbox, ask_judge
from kernel_lsp.evaluator.request import EvaluationRequest
from kernel_lsp.evaluator.sharing.competing import CompetingLoad, Load
from kernel_lsp.evaluator.undisturbed import Alone, Undisturbed
from kernel_lsp.records import EvalStatus, Interval, Timing

OTHER_PRECISION = "eager_tf32"
SETS, CHECKED_ROUNDS = 4, 5
SERIES = 3
"""Series of rounds that share the time for rounds; an interval that is narrow after one needs no
other."""
DEVICE_SHARE = 0.3
"""Of the time for rounds, for the replay of graphs."""
CONTRADICTION = 1 / 1.02
CLEARLY_FASTER = 1.25
SURELY_SLOWER = 0.97
"""An upper bound below it against any baseline: nothing is claimed, and what graphs say of it (1
to 2 s in which everybody else stands still) changes nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedTiming:
    """What timing starts from, once a candidate has passed its trials."""

    timer: Party
    """Reference and baselines are ready there; no candidate has been."""
    judge: Party
    init: list[bytes]
    loading: dict[str, Any]
    """The request that loads the candidate."""
    known: dict[str, Any]
    """`Bench.known`."""


class JudgeSession(NamedTuple):
    """One candidate's session with the judge."""

    judge: InSession
    opened: dict[str, Any]
    """What the judge said of reference and session."""
    init: list[bytes]
    """The constructor's tensors."""


@dataclass(kw_only=True, slots=True)
class Ready:
    """A timing process with reference and baselines, and no candidate."""

    sandbox: Sandbox
    party: Party
    session: JudgeSession
    """Whose values it has."""
    complete: bool
    """Whether torch.compile is among the baselines, unless it failed."""

    async def close(self) -> None:
        """Ends the timing process and deletes its folder."""
        await self.sandbox.close()


class CompiledCrashed(EvaluationError):
    """What torch.compile made of the reference has ended a timing process."""


@dataclass
class TimedRounds:
    """All timed rounds of one candidate; lists have one entry per round."""

    times: dict[str, list[float]] = field(default_factory=dict)
    spans: dict[str, list[float]] = field(default_factory=dict)
    outside: dict[str, list[float]] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)

    def extend(self, reply: dict[str, Any]) -> None:
        """Adds the rounds of one reply of the timer. Raises ValueError where it has times that no
        clock shows."""
        for mine, theirs in (
            (self.times, reply["times_ms"]),
            (self.spans, reply["spans_ms"]),
            (self.outside, reply["outside_ms"]),
        ):
            for name, values in theirs.items():
                mine.setdefault(name, []).extend(map(float, values))
                if not all(0 < value < math.inf for value in mine[name]):
                    raise ValueError(f"{name} has times that no clock shows")
        for name, size in reply["peak_bytes"].items():
            self.peak_bytes[name] = max(int(size), self.peak_bytes.get(name, 0))

    def kept(self) -> tuple[dict[str, list[float]], list[int]]:
        """(times without outliers, numbers of the rounds that were dropped)."""
        keep = stats.kept_rounds(self.times)
        count = len(next(iter(self.times.values())))
        dropped = sorted(set(range(count)) - set(keep))
        return {name: [values[i] for i in keep] for name, values in self.times.items()}, dropped


async def measure(
    request: EvaluationRequest, prepared: PreparedTiming, alone: Alone, found: PartialEvaluation
) -> None:
    """Measure in a fresh process, check timed outputs, veto with clocks that the candidate cannot
    reach.

    The candidate is loaded (its kernels compiled) beside others; only what a clock sees runs
    ``alone``."""
    budget = request.budget
    timer, judge = Undisturbed(prepared.timer, alone), Undisturbed(prepared.judge, alone)
    clean = await _ask_timer(timer, "baseline", budget.call_s)
    for note in timer.notes:
        found.check("compile-baseline", None, note)
    for note in clean["notes"]:
        found.check("timing", None, note)
    loading = {**prepared.loading, "timing": True}
    await candidate(timer, "load", budget.load_s, prepared.init, **loading)
    load = CompetingLoad(prepared.timer.child.process.pid)
    rounds = await _measure_until_settled(request, timer, judge, found)
    _note_load(load.load(), rounds, found)
    floor = vetoes.Floor(request, judge, int(clean["given_bytes"]), found)
    if await floor.beaten(rounds.times["candidate"]):
        await _more(request, timer, judge, rounds, found)
        await floor.settle(rounds.times["candidate"])
    _record(rounds, found)
    vetoes.hidden_work(rounds.spans, rounds.outside, request.device, found)
    disturbance = vetoes.Disturbance(
        timer, judge, list(clean["clean_ms"]), budget.call_s, found, load
    )
    await disturbance.settle(stats.quantile(rounds.spans["eager"], 0.5))
    await vetoes.outside_clock(timer, _medians(found.timings), budget.call_s, found, load)
    if request.device == "cuda" and not _surely_slower(found.speedups):
        await _replay(request, timer, found)
    if request.budget.compile_s > 0:  # in full
        found.least_ms = await floor.least_ms(prepared.known)


async def prepare(
    request: EvaluationRequest, sandbox: Sandbox, get_session: Callable[[], Awaitable[JudgeSession]]
) -> Ready:
    """A process with everything that timing needs except the candidate, made beside the trials.

    ``get_session``: the session whose values it gets, which may still be opened while the process
    starts.
    Raises EvaluationError.
    """
    compile_s = request.budget.compile_s
    async with sandbox.making_baselines():
        try:
            timer, session = await _start_party(request, sandbox, get_session, compile_s)
        except CompiledCrashed as error:
            timer, session = await _start_party(request, sandbox, get_session, 0.0)
            timer.notes = [
                f"{crashes.COMPILED} ends its process and is no baseline here: {error.cause}"
            ]
        sandbox.keep_baselines()
    return Ready(sandbox=sandbox, party=timer, session=session, complete=compile_s > 0)


async def _start_party(
    request: EvaluationRequest,
    sandbox: Sandbox,
    get_session: Callable[[], Awaitable[JudgeSession]],
    compile_s: float,
) -> tuple[Party, JudgeSession]:
    timer = await sandbox.timer()
    await _ask_timer(timer, "import", request.budget.load_s, compiler=compile_s > 0)
    await _open_driver(request, sandbox, timer)
    session = await get_session()
    made = await make_baselines(request, timer, session, compile_s, header=sandbox.wants_header)
    timer.notes = list(made["notes"])
    await sandbox.keep_header(made["header"])
    return timer, session


async def _open_driver(request: EvaluationRequest, sandbox: Sandbox, timer: Party) -> None:
    """What is built once for a machine, kept by itself: nothing else has been compiled in the
    timer."""
    patience_s = request.budget.load_s + request.budget.compile_s
    if sandbox.needs_driver:
        await _ask_timer(timer, "open_driver", patience_s)
        sandbox.keep_driver()
    elif sandbox.wants_driver and request.device == "cpu":
        reply = await _ask_timer(timer, "open_driver", patience_s)
        if reply["built"]:
            sandbox.forget_driver()


async def make_baselines(
    request: EvaluationRequest,
    timer: Party,
    session: JudgeSession,
    compile_s: float,
    *,
    header: bool = False,
) -> dict[str, Any]:
    """Has the baselines made in the timing process and says what became of them. ``notes``: what
    could not be had, in words for the evidence; ``header``: whether one was compiled
    (compiling.py), which is only done where it is asked for."""
    sealed, blobs = await ask_judge(session.judge, "sealed", request.budget.call_s, count=SETS)
    # Two encoded values travel in one frame: the second's blob numbers follow the first's.
    arguments = {key: sealed[key] for key in ("sets", "state")}
    joined = _shift({"init": session.opened["init"]}, 0) | _shift(arguments, len(session.init))
    reply = await _ask_timer(
        timer,
        "prepare",
        request.budget.load_s + compile_s + 30,
        [*session.init, *blobs],
        program=request.reference,
        workload=request.workload,
        grad=session.opened["grad"],
        compile_s=compile_s,
        header=header,
        conduct=session.opened["conduct"],
        seeds=sealed["seeds"],
        **joined,
    )
    return reply


async def renew(request: EvaluationRequest, ready: Ready, session: JudgeSession) -> None:
    """Give a timer where no candidate was the values of another session. Raises EvaluationError."""
    budget = request.budget
    sealed, blobs = await ask_judge(session.judge, "sealed", budget.call_s, count=SETS)
    fields = {key: sealed[key] for key in ("sets", "state", "seeds")}
    await _ask_timer(
        ready.party,
        "renew",
        budget.load_s + budget.call_s,
        blobs,
        grad=session.opened["grad"],
        **fields,
    )
    ready.session = session


async def _ask_timer(
    timer: Party, do: str, timeout_s: float, blobs: list[bytes] | None = None, **fields: Any
) -> dict[str, Any]:
    """Ask before a candidate is loaded: a failure is the reference's or the machine's."""
    try:
        reply, _ = await timer.ask(do, timeout_s, blobs, **fields)
    except WorkerLost as error:
        log = timer.child.log
        if crashes.last_said(log) == crashes.COMPILED:
            raise CompiledCrashed(crashes.cause_of(error, log) or error.cause) from error
        cause = f"could not judge: timing the reference failed: {error.cause}"
        raise EvaluationError(cause, error.remedy) from error
    return reply


def _shift(value: Any, by: int) -> Any:
    """An encoded value whose blob numbers start at ``by``."""
    if isinstance(value, list):
        return [_shift(item, by) for item in value]
    if isinstance(value, dict):
        return {
            key: item + by if key == "blob" and isinstance(item, int) else _shift(item, by)
            for key, item in value.items()
        }
    return value


# --- rounds ---------------------------------------------------------------------------------


async def _measure_until_settled(
    request: EvaluationRequest, timer: Undisturbed, judge: Party, found: PartialEvaluation
) -> TimedRounds:
    """Rounds until every interval is narrow enough, or long enough."""
    rounds = TimedRounds()
    await _more(request, timer, judge, rounds, found)
    for _ in range(SERIES - 1):
        if _widest(rounds) <= stats.WIDE or _is_decided(rounds):
            break
        await _more(request, timer, judge, rounds, found)
    wide = _widest(rounds)
    if wide > stats.WIDE:
        text = (
            f"still {100 * wide:.0f} % wide after {len(rounds.times['candidate'])} rounds: a busy "
            f"machine"
        )
        found.check("narrow-interval", None, text)
    return rounds


def _note_load(load: Load, rounds: TimedRounds, found: PartialEvaluation) -> None:
    """Others' load while rounds were timed; intervals that are wide then say nothing for sure."""
    found.environment["others_load"] = round(load.others, 3)
    wide = _widest(rounds)
    if load.busy and wide > stats.WIDE:
        found.doubt(f"the interval is {wide:.0%} wide, while {load}")


def _is_decided(rounds: TimedRounds) -> bool:
    """Whether more rounds would change nothing but digits, by intervals of 99.9 %: surely slower
    than a baseline, for which nothing is claimed, or so far above each that no claim hangs on it.

    Looking at the ratio cannot choose lucky rounds so: the first makes no claim, and a program
    that is as fast as a baseline is never seen above CLEARLY_FASTER of it."""
    times = rounds.kept()[0]
    strict = _speedups(times, stats.STRICT_CONFIDENCE).values()
    if any(interval.high < SURELY_SLOWER for interval in strict):
        return True
    narrow = all(stats.width(interval) <= 2 * stats.WIDE for interval in _speedups(times).values())
    return narrow and all(interval.low > CLEARLY_FASTER for interval in strict)


def _widest(rounds: TimedRounds) -> float:
    return max(stats.width(interval) for interval in _speedups(rounds.kept()[0]).values())


async def _more(
    request: EvaluationRequest,
    timer: Party,
    judge: Party,
    rounds: TimedRounds,
    found: PartialEvaluation,
) -> None:
    """One more series of rounds, its outputs checked like any other."""
    budget, seconds = request.budget, request.budget.timing_s / SERIES
    measured, outputs = await candidate(
        timer, "time", budget.call_s + 4 * seconds, timing_s=seconds, checks=CHECKED_ROUNDS
    )
    guard_notes(measured["notes"], found)
    await _check_timed(request, judge, measured, outputs, found)
    try:
        rounds.extend(measured)
        stats.kept_rounds(rounds.times)
        _speedups(rounds.times)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise Rejected(
            EvalStatus.CHEATED, f"the timing process reports no usable times: {error}"
        ) from error


async def _check_timed(
    request: EvaluationRequest,
    judge: Party,
    measured: dict[str, Any],
    outputs: list[bytes],
    found: PartialEvaluation,
) -> None:
    """The outputs of random timed rounds, judged like any other."""
    checks = [
        {key: item[key] for key in ("set", "scale", "outputs")} for item in measured["checks"]
    ]
    reply, _ = await ask_judge(judge, "timed", request.budget.call_s, outputs, checks=checks)
    for verdict in reply["verdicts"]:
        if "skip" not in verdict and not verdict["ok"]:
            found.check("timed-outputs", False, verdict["detail"])
            raise Rejected(
                EvalStatus.CHEATED, f"right when checked, wrong when timed: {verdict['detail']}"
            )
    done = len(measured["checks"]) >= CHECKED_ROUNDS
    if not done or not any(check.name == "timed-outputs" for check in found.checks):
        found.check("timed-outputs", done, f"{len(measured['checks'])} outputs of timed rounds")
    if not done:
        raise Rejected(EvalStatus.CHEATED, "outputs of timed rounds are missing")


# --- claims ---------------------------------------------------------------------------------


def _record(rounds: TimedRounds, found: PartialEvaluation) -> None:
    times, dropped = rounds.kept()
    found.samples_ms = {
        name: {"call": values, "dropped": dropped} for name, values in rounds.times.items()
    }
    found.timings = _timings(times)
    found.speedups = _speedups(times)
    found.peak_bytes = rounds.peak_bytes
    found.environment["baselines"] = list(found.speedups)
    found.environment["rounds_dropped"] = len(dropped)


def _timings(times: dict[str, list[float]]) -> tuple[Timing, ...]:
    return tuple(
        Timing(
            provider=name,
            median_ms=stats.quantile(values, 0.5),
            p20_ms=stats.quantile(values, 0.2),
            p80_ms=stats.quantile(values, 0.8),
            num_reps=len(values),
            cold_cache=True,
        )
        for name, values in times.items()
    )


def _speedups(
    times: dict[str, list[float]], confidence: float = stats.CONFIDENCE
) -> dict[str, Interval]:
    return {
        name: stats.paired_speedup(values, times["candidate"], confidence)
        for name, values in times.items()
        if name not in ("candidate", OTHER_PRECISION)
    }


def _surely_slower(speedups: dict[str, Interval]) -> bool:
    return any(interval.high < SURELY_SLOWER for interval in speedups.values())


def _medians(timings: tuple[Timing, ...]) -> dict[str, float]:
    return {timing.provider: timing.median_ms for timing in timings}


# --- device times ---------------------------------------------------------------------------


async def _replay(request: EvaluationRequest, timer: Party, found: PartialEvaluation) -> None:
    """Times of graphs. The last thing that is asked: whatever fails here leaves the verdict as it
    is."""
    budget = request.budget
    try:
        reply, _ = await timer.ask("replay", budget.call_s, timing_s=DEVICE_SHARE * budget.timing_s)
        times = {
            str(name): [float(v) for v in values] for name, values in reply["times_ms"].items()
        }
        notes = [str(note) for note in reply["notes"]]
        kept = TimedRounds(times=times).kept()[0] if times else {}
        speedups = _speedups(kept) if "candidate" in kept else {}
    except (WorkerLost, ValueError, TypeError, KeyError, AttributeError) as error:
        found.check("device-time", None, f"none: {' '.join(str(error).split())[:200]}")
        return
    for note in notes[:5]:
        found.check("device-time", None, note[:300])
    found.device_timings, found.device_speedups = _timings(kept), speedups
    for name, values in times.items():
        found.samples_ms.setdefault(name, {})["device"] = values
    for name, interval in speedups.items():
        if interval.mid < CONTRADICTION and found.speedups[name].mid > 1:
            detail = (
                f"{interval.mid:.3g} times {name} without launch costs: the gain is in fewer "
                f"launches"
            )
            found.check("device-time", None, detail)
