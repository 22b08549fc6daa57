"""The way of a whole program: recorded, its targets rewritten from the top, its own step measured.

    outcome = await optimize(pipeline, plan, settings, report)

1. The command runs once as it is, for a few steps, recorded. A recording that is newer than every file of the
   workspace is used again, and what was judged lies in the cache: an interrupted run goes on.
2. Targets are optimized where they live, the one with the largest share of the step first.
3. What was verified is composed, across files, in a copy of the workspace.
4. The program runs there in fresh processes, in all ways side by side (measuring.py), and must compute
what it did. Edits with which it does not are left out one after the other, the last composed first.

Not covered: functions, optimizers and data preparation as targets; several machines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernel_lsp import analysis
from kernel_lsp.errors import KernelLspError, RewriteError, WorkloadError
from kernel_lsp.files import read_source
from kernel_lsp.pipeline import Pipeline
from kernel_lsp.programs import measuring, recording, stepping
from kernel_lsp.programs.measuring import AS_IS, BOTH, COMPILED, EDITED, Agreement, Measured
from kernel_lsp.programs.mirror import Mirror
from kernel_lsp.programs.stepping import Clock, Run, Way
from kernel_lsp.records import Job, Outcome, Progress, Proposal, Report, Snapshot
from kernel_lsp.rewrite import edit
from kernel_lsp.snapshots import store
from kernel_lsp.snapshots.store import Recording
from kernel_lsp.workloads import running

LEAST_SHARE = 0.005
"""Of the step, below which nothing of a target could be noticed."""
ALIKE = 0.7
"""Share of the largest share from which a module may be the outermost one."""
CHECKED_STEPS = 4
EPS = {"bfloat16": 2.0**-7, "float16": 2.0**-10, None: 2.0**-23}
"""By autocast's dtype: how far one rounding moves a value."""


@dataclass(frozen=True, kw_only=True)
class Plan:
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


@dataclass(frozen=True, kw_only=True)
class Looked:
    """One target of the program."""

    path: Path
    qualname: str
    module: str
    share: float
    """Of the recorded time, what is called inside included."""
    calls: int
    outcome: Outcome | None = None
    """None: it was not opened."""
    why_not: str | None = None

    @property
    def proposal(self) -> Proposal | None:
        return self.outcome.best if self.outcome else None


@dataclass(frozen=True, kw_only=True)
class ProgramOutcome:
    """What was found for one program."""

    recording: Recording
    targets: tuple[Looked, ...]
    """The largest share first."""
    composed: tuple[Looked, ...] = ()
    """Whose rewrites are in `texts`."""
    texts: dict[Path, str] | None = None
    """Files as they would be; None: there is nothing to change."""
    measured: Measured | None = None
    agreement: Agreement | None = None
    taken: dict[str, tuple[int, int]] | None = None
    note: str | None = None
    """Why the step was not measured, or nothing is offered."""

    @property
    def best_without(self) -> Way | None:
        """The fastest way without our edits."""
        return self.measured.best([AS_IS, *COMPILED]) if self.measured else None

    @property
    def best_with(self) -> Way | None:
        return self.measured.best([EDITED, BOTH]) if self.measured else None


async def optimize(pipeline: Pipeline, plan: Plan, data_dir: Path, report: Report) -> ProgramOutcome:
    """Raises KernelLspError when the program cannot be recorded."""
    recorded = _known(plan, data_dir) or _recorded(plan, data_dir, report)
    targets = await _looked_at(pipeline, plan, recorded, report)
    clock = clock_of(recorded)
    composed, texts = compose(plan.root, targets)
    outcome = ProgramOutcome(
        recording=recorded, targets=tuple(targets), composed=tuple(composed), texts=texts or None
    )
    if clock is None:
        return replace(outcome, note="no step was found: no module was called from the program itself")
    return _measured(plan, recorded, clock, outcome, report)


# --- 1: recording -----------------------------------------------------------------------------------


def _known(plan: Plan, data_dir: Path) -> Recording | None:
    """The last recording of this command, while no file of the workspace is newer."""
    if plan.fresh:
        return None
    for one in store.recordings(data_dir, plan.root):
        if one.command == plan.command:
            begun = one.folder.stat().st_mtime
            files = (plan.root / str(way["target"]).partition("::")[0] for way in one.ways)
            if all(path.is_file() and path.stat().st_mtime <= begun for path in files):
                return one
    return None


def _recorded(plan: Plan, data_dir: Path, report: Report) -> Recording:
    report(Progress(phase="record", message=f"running {' '.join(plan.command)} for {plan.steps} steps"))
    out = running.default_path(plan.root, plan.command)
    done = recording.record(plan.root, plan.command, out, data_dir, steps=plan.steps)
    found = [one for one in store.recordings(data_dir, plan.root) if one.command == plan.command]
    if done.path is None or not found:
        raise WorkloadError(
            f"nothing was recorded (the program ended with {done.status})",
            "run the command by itself first; it must call torch modules of this workspace",
        )
    return found[0]


# --- 2: targets -------------------------------------------------------------------------------------


def ranked(recorded: Recording) -> list[Looked]:
    """The recording's modules, the largest share first."""
    found: dict[tuple[Path, str], Looked] = {}
    for way in recorded.ways:
        path, qualname = recorded.path_of(way), recorded.qualname_of(way)
        if way.get("kind") != "module" or (path, qualname) in found:
            continue
        seen = next((one for one in recorded.seen if one["target"] == way["target"]), way)
        found[path, qualname] = Looked(
            path=path,
            qualname=qualname,
            module=str(way.get("module", "")),
            share=float(seen.get("share") or 0.0),
            calls=int(seen.get("calls") or 0),
            why_not=way.get("not_kept") if recorded.snapshot(way) is None else None,
        )
    return sorted(found.values(), key=lambda one: -one.share)


async def _looked_at(pipeline: Pipeline, plan: Plan, recorded: Recording, report: Report) -> list[Looked]:
    end = time.monotonic() + 60 * plan.minutes
    found = []
    for one in ranked(recorded):
        if one.why_not is not None:
            found.append(one)
        elif one.share < LEAST_SHARE:
            found.append(replace(one, why_not=f"below {LEAST_SHARE:.1%} of the step"))
        elif time.monotonic() > end:
            found.append(replace(one, why_not=f"{plan.minutes:g} minutes were over"))
        else:
            found.append(await _optimized(pipeline, plan, one, report))
    return found


async def _optimized(pipeline: Pipeline, plan: Plan, one: Looked, report: Report) -> Looked:
    def told(progress: Progress) -> None:
        report(replace(progress, message=f"{one.qualname} ({one.share:.0%}): {progress.message}"))

    try:
        job = Job(
            text=read_source(one.path).text,
            path=str(one.path),
            qualname=one.qualname,
            folder=str(plan.root),
            device=plan.device,
            budget=plan.budget,
        )
        return replace(one, outcome=await pipeline.optimize(job, told))
    except (KernelLspError, OSError, SyntaxError, UnicodeDecodeError) as error:
        return replace(one, why_not=str(error))


# --- 3: composing -----------------------------------------------------------------------------------


def compose(root: Path, targets: Sequence[Looked]) -> tuple[list[Looked], dict[Path, str]]:
    """Every verified rewrite in its file; those whose target another edit has changed are left out."""
    texts: dict[Path, str] = {}
    composed = []
    for one in targets:
        proposal = one.proposal
        if proposal is None or proposal.candidate.edit is None:
            continue
        text = texts.get(one.path) or read_source(one.path).text
        snapshot = Snapshot(uri=one.path.as_uri(), text=text)
        target = analysis.find_target(analysis.analyze(snapshot), one.qualname)
        if target is None:
            continue
        try:
            texts[one.path] = edit.apply_edit(text, target.span, proposal.candidate.edit)
        except RewriteError:
            continue
        composed.append(one)
    return composed, texts


# --- 4: the step ------------------------------------------------------------------------------------


def clock_of(recorded: Recording) -> Clock | None:
    """A step ends with the optimizer where the outermost module is trained, else with its call."""
    modules = [way for way in recorded.ways if way.get("kind") == "module" and way.get("class")]
    if not modules:
        return None
    shares = {str(one["target"]): float(one.get("share") or 0.0) for one in recorded.seen}
    calls = {str(one["target"]): int(one.get("calls") or 0) for one in recorded.seen}
    most = max(shares.get(str(way["target"]), 0.0) for way in modules)
    outer = [way for way in modules if shares.get(str(way["target"]), 0.0) >= ALIKE * most]
    root = min(outer, key=lambda way: calls[str(way["target"])])  # times of a whole and its part scatter
    trained = bool(root.get("training")) and bool(root["setting"].get("gradients"))
    repeated = [way for way in modules if calls[str(way["target"])] >= 2 * calls[str(root["target"])]]
    block = max(repeated, key=lambda way: shares.get(str(way["target"]), 0.0), default=None)
    return Clock(
        root=(str(root["module"]), str(root["class"])),
        kind="optimizer" if trained else "calls",
        region=(str(block["module"]), str(block["class"])) if block else None,
    )


def _measured(
    plan: Plan, recorded: Recording, clock: Clock, outcome: ProgramOutcome, report: Report
) -> ProgramOutcome:
    texts = outcome.texts or {}
    own = {path: text for path, text in texts.items() if path.is_relative_to(plan.root)}
    served = {path: text for path, text in texts.items() if path not in own}
    with Mirror.of(plan.root, {}) as plain, Mirror.of(plan.root, own) as changed:

        def start(way: Way, **more: Any) -> Run:
            more.setdefault("steps", plan.steps)
            mirror = changed if way.edited else plain
            more["served"] = served if way.edited else None
            return stepping.run(mirror, plan.command, plan.folder, way, clock, timeout_s=plan.run_s, **more)

        agreement = taken = None
        if texts:
            report(Progress(phase="measure", message="checking what the edited program computes"))
            agreement, taken, failed = _agreement(recorded, outcome, start)
            if failed or agreement is None or not agreement.right:
                told = failed or f"the edited program computes something else: {_detail(agreement)}"
                outcome = replace(outcome, note=told, agreement=agreement, texts=None, composed=())
                texts = {}
        ways = [AS_IS, *(way for way in COMPILED if not way.regional or clock.region)]
        ways += [EDITED, BOTH] if texts else []
        say: Callable[[str], None] = lambda text: report(Progress(phase="measure", message=text))  # noqa: E731
        measured = measuring.measure(ways, start, say)
    return replace(outcome, measured=measured, agreement=agreement, taken=taken)


def _agreement(
    recorded: Recording, outcome: ProgramOutcome, start: Callable[..., Run]
) -> tuple[Agreement | None, dict[str, tuple[int, int]] | None, str | None]:
    """What the edited program computes beside the original; how often it took its fast paths; what failed."""
    autocast = next((way["setting"].get("autocast") for way in recorded.ways if way.get("setting")), None)
    checking = {"check": True, "steps": CHECKED_STEPS}
    edited = [[one.module, one.qualname] for one in outcome.composed]
    original = start(AS_IS, **checking)
    runs = [
        original,
        start(AS_IS, **checking),
        start(AS_IS, nudge=EPS.get(autocast, EPS[None]), **checking),
        start(EDITED, edited=edited, **checking),
    ]
    if failed := next((run.failed for run in runs if run.failed), None):
        return None, None, failed
    return measuring.agreement(*runs), runs[-1].taken, None


def _detail(agreement: Agreement | None) -> str:
    return agreement.detail if agreement else "nothing could be compared"
