"""One candidate from its source text to a verdict, in the order of what each step costs.

    static guards -> load -> trials -> ahead-of-time compilation -> timing (a fresh process)

    judge   begin -> trial -> compare -> ... -> sealed -> summary -> timed
    worker  load -> run -> ... -> finish                      (no reference, no expected output)
    timer   prepare -> load -> time -> burst                  (a fresh process)
    profiler  prepare -> load -> profile                      (a fresh process; decides nothing)

The parent holds the verdict and a clock of its own. No torch here; which processes there are
already is the gate's to know (gate.py)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from kernel_lsp import wire
from kernel_lsp.errors import EvaluationError, Withdrawn
from kernel_lsp.evaluator import blame, decoys, guards, measure, native, profiles, trials
from kernel_lsp.evaluator.findings import (
    MAX_NOTES,
    PartialEvaluation,
    Rejected,
    candidate,
    guard_notes,
)
from kernel_lsp.evaluator.judges import JudgeBench
from kernel_lsp.evaluator.processes import crashes
from kernel_lsp.evaluator.processes.sandbox import Party, Sandbox, ask_judge
from kernel_lsp.evaluator.request import MAX_SOURCE_BYTES, EvaluationRequest
from kernel_lsp.evaluator.timers import Loan
from kernel_lsp.evaluator.undisturbed import Alone
from kernel_lsp.records import CompiledKernel, EvalStatus, Progress, Report, TargetKind

T = TypeVar("T")
Begin = Callable[[dict[str, Any]], Awaitable[None]]


async def _at_once(opened: dict[str, Any]) -> None:
    """Nothing is waited for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationTurns:
    """The rights that one evaluation takes, as the gate gives them."""

    present: Callable[[], AbstractAsyncContextManager[None]]
    """To use the device beside our own others."""
    timing: Callable[[], AbstractAsyncContextManager[None]]
    """Around everything that is timed, on a device where nobody may be present then (a CPU)."""
    alone: Alone
    """To be the only child of ours that runs, for as long as one answer takes (a GPU)."""
    begin: Begin = _at_once
    """Called when judge and worker are ready, with what the judge said of the reference: waits for
    the memory that it needs, then the evaluation's own time begins."""


def refuse(request: EvaluationRequest) -> None:
    """What this gate cannot judge, said before anything is started."""
    if request.device not in ("cpu", "cuda", "interpreter"):
        raise EvaluationError(
            f"could not judge: unknown device {request.device!r}", "use cuda, cpu or interpreter"
        )
    if max(len(request.reference.source), len(request.candidate_source)) > MAX_SOURCE_BYTES:
        raise EvaluationError(
            f"could not judge: a program of more than {MAX_SOURCE_BYTES / 2**20:.0f} MiB",
            "cut it down to the target and what it uses",
        )
    if request.reference.kind is TargetKind.TRITON_KERNEL:
        raise EvaluationError(
            "could not judge: a Triton kernel alone has no inputs",
            "judge the function that launches it",
        )
    if request.reference.missing:
        names = ", ".join(request.reference.missing)
        raise EvaluationError(
            f"could not judge: the program does not define {names}", "define or import them"
        )
    if request.device == "cpu" and request.uses_triton:
        raise Rejected(
            EvalStatus.NOT_RUN,
            "could not judge: Triton kernels do not run on a CPU "
            "(use the interpreter, for correctness only, or a GPU)",
        )


def scan(request: EvaluationRequest, found: PartialEvaluation) -> None:
    """Asks the static guards; what the reference does itself is no suspicion against the
    candidate."""
    known = {item.what for item in guards.scan(request.reference.source)}
    suspicions = guards.scan(request.candidate_source, native=request.native)
    seen = [item for item in suspicions if item.what not in known]
    seen += guards.compare_interfaces(
        request.reference.source,
        request.reference.entry,
        request.candidate_source,
        request.candidate_entry,
    )
    detail = "; ".join(f"line {item.line} {item.what}" for item in seen[:MAX_NOTES])
    found.check("static-guards", not seen, detail)
    if seen:
        raise Rejected(EvalStatus.CHEATED, f"the candidate {detail}")


async def judge_candidate(
    request: EvaluationRequest,
    bench: JudgeBench,
    sandbox: Sandbox,
    turns: EvaluationTurns,
    found: PartialEvaluation,
    report: Report,
    wanted: Callable[[], bool],
) -> None:
    """Everything that runs the candidate. Raises Rejected, EvaluationError, Withdrawn."""
    async with turns.present(), Loan(bench.timers) as loan:
        tried = await _try_candidate(request, bench, sandbox, turns.begin, loan, found, report)
        if tried is None:
            return
        timed, session = tried
        if not wanted():
            raise Withdrawn("not timed: a better candidate is being judged")
        timers = loan.spend()
        sandbox.hand_kernels_on(timers)
        async with turns.timing():
            report(Progress(phase="evaluate", message="timing"))
            await measure.measure(request, timed, turns.alone, found)
            if request.budget.compile_s > 0:  # in full
                report(Progress(phase="evaluate", message="profiling"))
                await profiles.profile(request, timers, timed, session, turns.alone, found)


async def _try_candidate(
    request: EvaluationRequest,
    bench: JudgeBench,
    sandbox: Sandbox,
    begin: Begin,
    loan: Loan,
    found: PartialEvaluation,
    report: Report,
) -> tuple[measure.PreparedTiming, measure.JudgeSession] | None:
    """Load, trials and guards; what timing needs is made beside them. None: it is not to be
    timed."""
    report(Progress(phase="evaluate", message="starting judge and worker"))
    async with _background(sandbox.worker()) as starting:  # ended when the reference is refused
        session = await bench.begin(request)
        judge, opened, init = session
        assert starting is not None
        worker = await starting
    await begin(opened)
    found.environment.update(opened["environment"])
    found.environment["sandbox"] = worker.child.confined
    for inputs, cause in opened["crashed"].items():
        detail = f"the reference itself crashes by {cause} on {inputs}, so these are not compared"
        found.check("other-inputs", None, f"{detail}; {crashes.LIKELY}")
    timed = request.require_speed and request.device != "interpreter"
    begun = asyncio.Event()

    async def prepare() -> measure.Ready:
        """From the second trial on: most of what is wrong fails the first, and a context costs the
        driver
        0.2 s that others wait for."""
        await begun.wait()
        return await loan.take(request, session)

    async with _background(prepare() if timed else None) as timer:
        extensions, libraries = await native.build(sandbox, request, found, report)
        init = [*init, *libraries]
        loading = {
            "extensions": extensions,
            "program": replace(
                request.reference, source=request.candidate_source, entry=request.candidate_entry
            ),
            "reference": request.reference,
            "workload": request.workload,
            "init": opened["init"],
            "conduct": opened["conduct"],
        }
        await candidate(worker, "load", request.budget.load_s, init, **loading)
        original = blame.Original(request, sandbox, worker, loading, init)
        await trials.run_trials(request, judge, worker, opened, found, report, begun, original)
        await _finish(request, judge, worker, sandbox, found, report)
        closed, _ = await ask_judge(judge, "summary", request.budget.call_s)
        trials.note_closing(closed, found)
        if timer is None or closed["degenerate"]:
            return None
        report(Progress(phase="evaluate", message="preparing baselines"))
        ready = await timer
        prepared = measure.PreparedTiming(
            timer=ready.party, judge=judge, init=init, loading=loading, known=bench.known
        )
        return prepared, session


async def _finish(
    request: EvaluationRequest,
    judge: Party,
    worker: Party,
    sandbox: Sandbox,
    found: PartialEvaluation,
    report: Report,
) -> None:
    """What the worker has noticed and compiled; it is ended then."""
    finished, _ = await candidate(worker, "finish", 2 * request.budget.call_s)
    guard_notes(finished["notes"], found)
    await _refuse_growth(request, judge, finished["growth"], found)
    await decoys.check_kernels(request, worker, finished["launched"], found)
    await sandbox.end_worker(worker)
    if request.device == "cuda":
        found.kernels = tuple(wire.from_json(CompiledKernel, k) for k in finished["resources"])
    if request.device == "interpreter":
        if tuned := finished["tuned"]:
            found.check(
                "autotune",
                None,
                f"{'; '.join(map(str, tuned[:MAX_NOTES]))}: others were not judged",
            )
        await _compile_kernels(request, sandbox, finished["kernels"], found, report)


async def _refuse_growth(
    request: EvaluationRequest, judge: Party, kept: dict[str, int], found: PartialEvaluation
) -> None:
    """A candidate that keeps memory on every call, where its reference does not. Raises
    Rejected."""
    if any(kept.values()):
        theirs, _ = await ask_judge(judge, "growth", request.budget.call_s)
        if any(kept[what] > 2 * int(theirs[what]) for what in ("host", "device", "tensors")):
            size = max(int(kept["host"]), int(kept["device"]))
            what = f"{size} bytes" if size else f"{int(kept['tensors'])} tensors"
            detail = f"every call keeps {what} more, which the reference's does not"
            found.check("memory-growth", False, detail)
            raise Rejected(EvalStatus.WRONG_RESULT, f"memory grows without end: {detail}")
    found.check("memory-growth", True)


@contextlib.asynccontextmanager
async def _background(work: Coroutine[Any, Any, T] | None) -> AsyncIterator[asyncio.Task[T] | None]:
    """Run ``work`` beside the block; ended with it, its failure seen only by who awaits it."""
    task = asyncio.create_task(work) if work else None
    try:
        yield task
    finally:
        if task:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


# --- Triton kernels -------------------------------------------------------------------------


async def _compile_kernels(
    request: EvaluationRequest,
    sandbox: Sandbox,
    kernels: list[dict[str, Any]],
    found: PartialEvaluation,
    report: Report,
) -> None:
    if not kernels:
        return
    report(Progress(phase="evaluate", message="compiling kernels for sm_80 and sm_90"))
    compiler = await sandbox.compiler()
    reply, _ = await candidate(
        compiler, "compile", request.budget.load_s + 30 * len(kernels), kernels=kernels,
        source=request.candidate_source, alone=request.reference.home is not None,
    )  # fmt: skip
    found.kernels = tuple(wire.from_json(CompiledKernel, kernel) for kernel in reply["kernels"])
