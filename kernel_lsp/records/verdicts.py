"""Verdicts of the gate, small enough for the editor and its cache: evaluate.

What a verdict rests on, sample by sample, is in evidence.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from kernel_lsp.records.common import Json


class EvalStatus(StrEnum):
    PASSED = "passed"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    WRONG_RESULT = "wrong_result"
    TIMED_OUT = "timed_out"
    CHEATED = "cheated"
    NOT_RUN = "not_run"
    """Could not be judged: ``detail`` says why."""


class SpeedAnswer(StrEnum):
    """Whether a right candidate is faster."""

    FASTER = "faster"
    NOT_FASTER = "not_faster"
    NOT_SURE = "not_sure"
    """The machine was too busy to tell, or nothing was timed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    name: str
    passed: bool | None
    """None: did not run."""
    detail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    provider: str
    """eager, eager_tf32, compile or candidate."""
    median_ms: float
    p20_ms: float
    p80_ms: float
    num_reps: int
    cold_cache: bool
    """Caches were flushed (or inputs rotated past them) before each rep."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """Point estimate with a bootstrap confidence interval."""

    low: float
    mid: float
    high: float
    confidence: float = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Numerics:
    """Worst trial. Errors are against a float64 oracle, relative to the oracle's RMS."""

    candidate_error: float
    reference_error: float
    tolerance: float
    """What candidate_error had to stay below in that trial."""
    num_trials: int
    distributions: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class CompiledKernel:
    """One Triton kernel compiled ahead of time; needs no GPU."""

    name: str
    arch: str
    """sm_80, sm_90 …"""
    registers: int | None
    spill_bytes: int | None
    shared_bytes: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelTime:
    """One kernel (on a CPU: one operator) within one call."""

    name: str
    count: float
    us: float
    """Microseconds of all its launches; on a CPU without those of operators that it calls."""
    own: bool
    """A Triton kernel that the candidate's source defines."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Where the time of one call goes. Seen by a profiler, which makes calls longer: no claim is
    made on it."""

    provider: str
    """eager or candidate."""
    kernels: tuple[KernelTime, ...]
    """The longest first, 20 at most."""
    us: float
    """Of all of them together."""
    busy_us: float | None
    """While any of them ran; None on a CPU."""
    gaps_us: float | None
    """Between them; None on a CPU."""
    operations: float | None = None
    """Floating-point operations of one call, estimated; None: not counted, or kernels of its own
    do them, which nobody can count."""
    moved_bytes: float | None = None
    """Bytes of the tensors that its operators and kernels read and write, estimated likewise."""

    def longest(self, count: int = 3) -> str:
        """The kernels that take longest, as ``aten::addmm 62 %, aten::tanh 20 %``: of the time of
        all of them; empty where none ran."""
        if not self.us:
            return ""
        return ", ".join(f"{row.name} {row.us / self.us:.0%}" for row in self.kernels[:count])


EAGER, COMPILE = "eager", "compile"
TIE = 0.97, 1.03


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """The gate's verdict on one candidate, workload and device."""

    status: EvalStatus
    device: str
    """cuda, cpu or interpreter."""
    detail: str = ""
    device_name: str | None = None
    checks: tuple[Check, ...] = ()
    timings: tuple[Timing, ...] = ()
    speedups: dict[str, Interval] = field(default_factory=dict)
    """baseline provider -> baseline time / candidate time, of calls: claims are made on these."""
    device_timings: tuple[Timing, ...] = ()
    """The same without any launch cost: CUDA graphs, for the providers that can be recorded."""
    device_speedups: dict[str, Interval] = field(default_factory=dict)
    numerics: Numerics | None = None
    kernels: tuple[CompiledKernel, ...] = ()
    peak_bytes: dict[str, int] = field(default_factory=dict)
    """provider -> device memory that a call takes beyond its inputs and parameters; where it can
    be read."""
    environment: Json = field(default_factory=dict)
    """Versions, threads, clocks, driver, date, sandbox."""
    seconds: float | None = None
    runs_as: str = "eager"
    """How the program runs the target now: eager or compile."""
    least_ms: float | None = None
    """What moving the workload's bytes takes at least on this device; None: unknown, or judged
    quickly."""
    shapes: tuple[tuple[str, ...], ...] = ()
    """What the verdict stands for: types and sizes of the arguments' tensors in every call that
    was compared, the workload's own first. Speed: the first alone."""
    unsure: str = ""
    """Why times say too little: what disturbed them; empty where nothing did. See
    `speed_answer`."""
    profiles: tuple[Profile, ...] = ()
    """Of eager and of the candidate; empty: not profiled."""
    coverage: float | None = None
    """Share of the device time of a call that is spent in kernels of the candidate's own, 0..1, as
    a profiler saw it; None: it was not profiled."""

    @property
    def profile(self) -> Profile | None:
        """The candidate's own."""
        return next((one for one in self.profiles if one.provider == "candidate"), None)

    @property
    def roofline_share(self) -> float | None:
        """``least_ms`` over the candidate's device time, else its call time; None unless it
        passed."""
        found = {t.provider: t.median_ms for t in (*self.timings, *self.device_timings)}
        if (
            self.status is not EvalStatus.PASSED
            or self.least_ms is None
            or "candidate" not in found
        ):
            return None
        return self.least_ms / found["candidate"]

    @property
    def baseline(self) -> str | None:
        """The provider that a claim is made against: how the target runs now. None: nothing was
        timed."""
        known = [self.runs_as, EAGER, *self.speedups]
        return next((name for name in known if name in self.speedups), None)

    @property
    def speedup(self) -> Interval | None:
        """The speedup over how the target runs now; None unless correct and timed."""
        if self.status is not EvalStatus.PASSED or self.baseline is None:
            return None
        return self.speedups[self.baseline]

    @property
    def over_best(self) -> Interval | None:
        """The speedup over the best baseline; None unless correct and timed."""
        if self.status is not EvalStatus.PASSED or not self.speedups:
            return None
        return min(self.speedups.values(), key=lambda interval: interval.mid)

    @property
    def beaten_by_compile(self) -> Interval | None:
        """The speedup over torch.compile, where that alone is why a gain is not claimed."""
        compiled = self.speedups.get(COMPILE)
        gains = compiled is not None and self.faster(may_compile=False)
        return compiled if gains and not self.faster() else None

    def speed_answer(
        self, threshold: float = 1.05, *, compiles: bool = False, may_compile: bool = True
    ) -> SpeedAnswer | None:
        """Faster, not faster, or not sure: what was disturbed denies a gain only where its
        interval does. None: it is not right."""
        if self.status is not EvalStatus.PASSED:
            return None
        if self.faster(threshold, compiles=compiles, may_compile=may_compile):
            return SpeedAnswer.FASTER
        speedup = self.speedup
        open_above = speedup is None or (bool(self.unsure) and speedup.high >= threshold)
        return SpeedAnswer.NOT_SURE if open_above else SpeedAnswer.NOT_FASTER

    @property
    def disturbed(self) -> bool:
        """Whether it was timed and the answer is not sure, because of the machine."""
        return bool(self.unsure) and self.speed_answer() is SpeedAnswer.NOT_SURE

    def faster(
        self, threshold: float = 1.05, *, compiles: bool = False, may_compile: bool = True
    ) -> bool:
        """A claim of speed: the interval's lower bound clears the threshold against how the target
        runs now, and torch.compile is not faster where it can be used. ``compiles``: the candidate
        is torch.compile."""
        speedup, compiled = self.speedup, self.speedups.get(COMPILE)
        if speedup is None or speedup.low < threshold:
            return False
        if compiles or not may_compile:
            return may_compile or not compiles
        return compiled is None or compiled.mid >= 1.0 or is_tie(compiled)


QUIET_REMEDY = "judge it again when the machine is quiet, or by a workload that takes longer"
"""What helps where the answer is that it is not sure."""


def is_tie(interval: Interval) -> bool:
    """Whether both are too close to tell apart: the simpler edit is the better one then."""
    return TIE[0] <= interval.low and interval.high <= TIE[1]
