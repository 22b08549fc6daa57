"""The way of a whole program: recorded, profiled, its targets rewritten from the top, its own step
measured.

    outcome = await optimize(pipeline, plan, data_dir, report)

1. The command runs once as it is, for a few steps, recorded. A recording that is newer than every
   file of the workspace is used again, and what was judged lies in the cache: an interrupted run
   goes on.
2. One step is profiled, which says what of its device time belongs to which target.
3. The program as it is, and what needs no target (program_edits.py), are timed; where that seems to pay,
   beside torch.compile and until it is sure.
4. Targets are optimized where they live, those with the most of the step first; on a GPU several at
   a time, because most of their time is compiling on the processor.
5. What was verified is composed, across files, in a copy of the workspace. It must compute what the
   program did; edits with which it does not are left out, the last composed first.
6. All ways run in fresh processes, side by side (measuring.py), torch.compile and its modes among
   them, its slowest last.

All of it ends within a time (timetable.py): what was not reached then is said, and what was done
is kept, so that the same command goes on.

Not covered: functions and data preparation as targets; several machines.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kernel_lsp.errors import KernelLspError, WorkloadError
from kernel_lsp.files import read_source
from kernel_lsp.pipeline import Pipeline
from kernel_lsp.programs import composing, recording, targets
from kernel_lsp.programs.bench import ProgramBench
from kernel_lsp.programs.comparing import Agreement
from kernel_lsp.programs.composing import ProgramVariant
from kernel_lsp.programs.measuring import MeasuredWays
from kernel_lsp.programs.runs import ProgramPlan
from kernel_lsp.programs.shares import ShareName, Shares
from kernel_lsp.programs.stepping import Clock, ProgramWay
from kernel_lsp.programs.targets import ProgramTarget
from kernel_lsp.programs.timetable import Timetable, words_of_seconds
from kernel_lsp.records import Job, Outcome, Progress, Proposal, Report, rank
from kernel_lsp.snapshots import store
from kernel_lsp.snapshots.store import ProgramRecording
from kernel_lsp.workloads import running

MIN_STEPS = 2
"""Of an optimizer or a loader, from which its steps may be the program's."""
RECORDED = 1 / 6
"""Share of the time for all, after which a recording ends with its step, when it has seen a few:
what it sees from then on is mostly the same again. After half of the time it ends in any case."""
INTERRUPTED = 128 + signal.SIGINT
"""How a program ends that takes Ctrl-C as Python does, or not at all."""
MAX_BESIDE = 3
"""Targets at once: each keeps a judge, a worker and a timer in the device's memory."""
CORES_PER_TARGET = 4
"""A target compiles its baselines while another is timed."""
ALIKE = 0.7
"""Share of the largest share from which a module may be the outermost one."""


NO_TARGETS = (
    "the program calls torch's own modules alone: there is nothing of it to rewrite; its step is "
    "timed as it is, by torch.compile, and with a fused optimizer where its own files make one"
)
NO_STEP = (
    "no step was found: no optimizer stepped twice, no module was called and no loader was read; "
    "name the function that is one: --step train_step, or --step package.module:Trainer.step"
)


@dataclass(frozen=True, kw_only=True)
class ProgramOutcome:
    """What was found for one program."""

    recording: ProgramRecording
    targets: tuple[ProgramTarget, ...]
    """In the order in which they were looked at."""
    shares: Shares | None = None
    """Where the step's device time goes; None: it could not be profiled."""
    variants: Mapping[str, ProgramVariant] = field(default_factory=dict)
    """By name: what was timed with edits of ours, and computes what the program does."""
    clock: Clock | None = None
    """What a step is; None: none was found."""
    tokens: float | None = None
    """That a step takes, of a language model; None: they are unknown."""
    measured: MeasuredWays | None = None
    agreements: Mapping[str, Agreement] = field(default_factory=dict)
    """By name of the variant."""
    taken: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Edited class -> calls, and those of them that went the original way."""
    notes: tuple[str, ...] = ()
    """Why something was not measured or is not offered."""

    @property
    def without(self) -> ProgramWay | None:
        """The fastest way without our edits."""
        return (
            self.measured.best(way for way in self.measured.runs if not way.is_edited)
            if self.measured
            else None
        )

    @property
    def best(self) -> ProgramWay | None:
        """The fastest way with our edits of which a gain is sure; where there is none, the fastest
        with any."""
        if self.measured is None:
            return None
        edited = [way for way in self.measured.runs if way.is_edited]
        sure = [way for way in edited if self.beaten_by(way) is not None]
        return self.measured.best(sure or edited)

    def beaten_by(self, way: ProgramWay) -> ProgramWay | None:
        """The fastest way without our edits that this one surely beats, computing the same; None
        where there is none, and where a way did not finish, which may be the fastest."""
        if self.measured is None or self.measured.unfinished:
            return None
        agreement = self.agreements.get(way.name)
        is_right = agreement is not None and agreement.right
        return self.measured.surely_beaten(way) if is_right else None

    @property
    def covered(self) -> float | None:
        """Share of the step's device time that was opened and timed."""
        if self.shares is None:
            return None
        return targets.covered_share(
            self.targets, self.shares, has_optimizer=composing.OPTIMIZER in self.variants
        )


async def optimize(
    pipeline: Pipeline, plan: ProgramPlan, data_dir: Path, report: Report
) -> ProgramOutcome:
    """Raises KernelLspError when the program cannot be recorded."""
    timetable = Timetable(time.monotonic() + plan.within_s)
    recorded = _last_recording(plan, data_dir) or _record(plan, data_dir, report)
    clock = clock_of(recorded)
    if clock is None:
        return ProgramOutcome(recording=recorded, targets=(), notes=(NO_STEP,))
    report(Progress(phase="record", message=clock.words))
    with ProgramBench(plan, clock, recorded, report, timetable) as bench:
        bench.profile()
        bench.time_first()
        seconds = timetable.seconds_for_targets(60 * plan.minutes, bench.later_ways)
        looking = TargetsAtWork(pipeline, plan, recorded, bench.shares, report, seconds)
        looked = await looking.run()
        bench.time_later(looked)
        return ProgramOutcome(
            recording=recorded,
            targets=tuple(looked),
            shares=bench.shares,
            clock=bench.runs.clock,
            tokens=bench.tokens,
            variants=bench.runs.variants,
            measured=bench.measured,
            agreements=bench.compared.agreements,
            taken=bench.compared.taken,
            notes=(*bench.notes, *(() if looked else (NO_TARGETS,))),
        )


# --- 1: recording ---------------------------------------------------------------------------------


def _last_recording(plan: ProgramPlan, data_dir: Path) -> ProgramRecording | None:
    """The last recording of this command, while no file of the workspace is newer."""
    if plan.fresh:
        return None
    for one in store.recordings(data_dir, plan.root):
        if one.ways and one.command == plan.command and _function(one) == plan.marked:
            begun = one.folder.stat().st_mtime
            files = (plan.root / str(way["target"]).partition("::")[0] for way in one.ways)
            if all(path.is_file() and path.stat().st_mtime <= begun for path in files):
                return one
    return None


def _record(plan: ProgramPlan, data_dir: Path, report: Report) -> ProgramRecording:
    seconds = RECORDED * plan.within_s
    words = f"for {plan.steps} steps, or {words_of_seconds(seconds)}"
    report(Progress(phase="record", message=f"running {' '.join(plan.command)} {words}"))
    out = running.default_path(plan.root, plan.command)
    known = {one.folder for one in store.recordings(data_dir, plan.root)}
    done = recording.record(
        plan.root,
        plan.command,
        out,
        data_dir,
        steps=plan.steps,
        seconds=seconds,
        marked=plan.marked,
        to_stderr=True,
    )
    found = [one for one in store.recordings(data_dir, plan.root) if one.command == plan.command]
    if not found or found[0].folder in known:
        raise _nothing_recorded(done.status)
    return found[0]


def _nothing_recorded(status: int) -> WorkloadError:
    """``status``: with which the program ended."""
    if status == 0:
        return WorkloadError(
            "the program ran to its end, and nothing of this workspace that uses torch was called",
            "run what trains or computes, where its code is; python -I and -E keep the recorder "
            "out",
        )
    if status == INTERRUPTED:
        return WorkloadError(
            "the program was interrupted before it called anything of this workspace, or its time "
            "was over",
            "let it run for some steps: it is ended by itself after --steps N; --within M gives "
            "it more minutes",
        )
    return WorkloadError(
        f"the program ended with {status} before it called anything of this workspace; its own "
        "last words are above",
        "run the command by itself first: it must ask nothing at a terminal, and have what it "
        "loads from the network in its cache",
    )


# --- 4: targets -----------------------------------------------------------------------------------


class TargetsAtWork:
    """The targets of one program, from the top; on a GPU several at a time."""

    def __init__(
        self,
        pipeline: Pipeline,
        plan: ProgramPlan,
        recorded: ProgramRecording,
        shares: Shares | None,
        report: Report,
        seconds: float,
    ) -> None:
        """``seconds``: how long all may take."""
        self._pipeline, self._plan, self._shares = pipeline, plan, shares
        self._report, self._seconds = report, seconds
        self._end = time.monotonic() + seconds
        self._ranked = targets.rank_targets(recorded, shares)
        self._found: dict[int, ProgramTarget] = {}
        on_gpu = shares is not None and shares.device == "cuda" and plan.device != "cpu"
        cores = len(os.sched_getaffinity(0))
        self._beside = max(1, min(MAX_BESIDE, cores // CORES_PER_TARGET)) if on_gpu else 1

    async def run(self) -> list[ProgramTarget]:
        """Works on all targets; each with what was found, or why it was not looked at."""
        waiting = iter(range(len(self._ranked)))

        async def work() -> None:
            for place in waiting:
                self._found[place] = await self._look_at(place)

        workers = [asyncio.create_task(work()) for _ in range(self._beside)]
        try:
            await asyncio.gather(*workers)
        finally:  # a failure of one, or a cancellation, ends all
            for task in workers:
                task.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return [self._found[place] for place in range(len(self._ranked))]

    async def _look_at(self, place: int) -> ProgramTarget:
        one, left = self._ranked[place], self._end - time.monotonic()
        before = [self._found[other] for other in sorted(self._found)]
        if (reason := targets.skip_reason(one, before, self._shares)) is not None:
            return targets.not_opened(one, reason)
        over = f"{words_of_seconds(self._seconds)} were over: the same command goes on from here"
        if self._seconds <= 0:
            over = "no time was left for it: the same command goes on from here"
        if left <= 0:
            return targets.not_opened(one, over)
        verified = list[Proposal]()
        try:
            async with asyncio.timeout(left):
                return await self._optimize(one, verified)
        except TimeoutError:
            return _cut_off(one, verified, f"cut off when {over}")

    async def _optimize(self, one: ProgramTarget, verified: list[Proposal]) -> ProgramTarget:
        """``verified`` receives what is verified on the way."""
        left = max(0.0, self._end - time.monotonic())

        def report_target(progress: Progress) -> None:
            if progress.proposal is not None:
                verified.append(progress.proposal)
            done, total = len(self._found), len(self._ranked)
            words = f"{one.qualname} ({one.share:.0%}): {progress.message}"
            self._report(replace(progress, message=words, done=done, total=total))

        report_target(
            Progress(phase="capture", message=f"opened with {words_of_seconds(left)} left for all")
        )
        plan = self._plan
        try:
            job = Job(
                text=read_source(one.path).text,
                path=str(one.path),
                qualname=one.qualname,
                folder=str(plan.root),
                device=plan.device,
                budget=plan.budget,
            )
            return replace(one, outcome=await self._pipeline.optimize(job, report_target))
        except (KernelLspError, OSError, SyntaxError, UnicodeDecodeError) as error:
            return targets.not_opened(one, str(error))


def _cut_off(one: ProgramTarget, verified: Sequence[Proposal], note: str) -> ProgramTarget:
    """The target with what was verified before its time was over."""
    if not verified:
        return targets.not_opened(one, note)
    proposals = tuple(sorted(verified, key=rank))
    return replace(one, outcome=Outcome(qualname=one.qualname, proposals=proposals, note=note))


def clock_of(recorded: ProgramRecording) -> Clock | None:
    """What a step of the program is: what its user has said; else the steps of an optimizer, calls
    of the outermost module, or batches of a loader, whichever is there first. None: nothing is."""
    root, region = _root_of(recorded)
    clock = Clock(roots=(root,) if root else (), kind="calls", region=region)
    steps = recorded.steps
    if marked := _function(recorded):
        return replace(clock, kind="function", marked=marked)
    stepped = [int(one["steps"]) for one in steps.get("optimizers", ())]
    if stepped and max(stepped) >= MIN_STEPS:
        # Of two optimizers the one that steps less often: its step holds those of the other.
        count = min(count for count in stepped if count >= MIN_STEPS)
        return replace(clock, kind="optimizer", optimizer=stepped.index(count))
    # One step alone: the recording ended when its time was over.
    if (stepped or not steps) and root is not None and _is_trained(recorded, root):
        return replace(clock, kind="optimizer")
    if root is not None:
        return clock
    return replace(clock, kind="loader") if steps.get("batches", 0) >= MIN_STEPS else None


def _function(recorded: ProgramRecording) -> tuple[str, str] | None:
    named = recorded.steps.get("function")
    return (str(named[0]), str(named[1])) if named else None


def _root_of(recorded: ProgramRecording) -> tuple[ShareName | None, ShareName | None]:
    """The outermost module, and the one that is called several times at each of its calls."""
    modules = [way for way in recorded.ways if way.get("kind") == "module" and way.get("class")]
    if not modules:
        return None, None
    shares = {str(one["target"]): float(one.get("share") or 0.0) for one in recorded.seen}
    calls = {str(one["target"]): int(one.get("calls") or 0) for one in recorded.seen}
    root = _outermost(modules, shares, calls, recorded.steps.get("outermost"))
    repeated = [
        way for way in modules if calls[str(way["target"])] >= 2 * calls[str(root["target"])]
    ]
    block = max(repeated, key=lambda way: shares.get(str(way["target"]), 0.0), default=None)
    return _name(root), _name(block) if block else None


def _outermost(
    modules: Sequence[Mapping[str, Any]],
    shares: Mapping[str, float],
    calls: Mapping[str, int],
    first: str | None,
) -> Mapping[str, Any]:
    """The way of the module that holds the others. ``first``: the target that was called first."""
    most = max(shares.get(str(way["target"]), 0.0) for way in modules)
    outer = [way for way in modules if shares.get(str(way["target"]), 0.0) >= ALIKE * most]
    # A recording that ends within a call has one more of the whole than of its parts.
    most_calls = 1 + min(calls[str(way["target"])] for way in outer)

    def order(way: Mapping[str, Any]) -> tuple[bool, float]:
        """Times of a whole and its part scatter: which came first tells them apart."""
        return way["target"] != first, -shares.get(str(way["target"]), 0.0)

    return min((way for way in outer if calls[str(way["target"])] <= most_calls), key=order)


def _is_trained(recorded: ProgramRecording, root: ShareName) -> bool:
    """Of a recording that counted no steps: whether the module looks trained."""
    ways = [way for way in recorded.ways if way.get("class") and _name(way) == root]
    return any(way.get("training") and way["setting"].get("gradients") for way in ways)


def _name(way: Mapping[str, Any]) -> ShareName:
    return str(way["module"]), str(way["class"])
