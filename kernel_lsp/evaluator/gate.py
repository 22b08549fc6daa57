"""The order of an evaluation: static guards, trials, ahead-of-time compilation, timing, verdict.

    judge   open -> begin -> trial -> compare -> ... -> sealed -> summary -> timed
    worker  load -> run -> ... -> finish                      (no reference, no expected output)
    timer   prepare -> load -> time -> burst                  (a fresh process)

The parent holds the verdict and a clock of its own. No torch here.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from kernel_lsp import wire
from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator import evidence, guards, measure, trials
from kernel_lsp.evaluator.findings import MAX_NOTES, Findings, Rejected, candidate, guard_notes
from kernel_lsp.evaluator.request import EvaluationRequest
from kernel_lsp.evaluator.sandbox import InSession, Party, Sandbox, ask_judge
from kernel_lsp.records import (
    CompiledKernel,
    EvalStatus,
    Evaluation,
    Numerics,
    Progress,
    TargetKind,
)

T = TypeVar("T")
Report = Callable[[Progress], None]


async def evaluate(
    request: EvaluationRequest, report: Report | None = None, keep: evidence.Keep | None = None
) -> Evaluation:
    """Judge one candidate. Cancelling the task ends judge and worker.

    ``keep`` receives everything the verdict rests on, once, before this returns.
    Raises EvaluationError when the *reference* cannot be judged by (it crashes, is random in a way
    no seed controls, has no inputs …); whatever a candidate does is a result.
    """
    start = time.monotonic()
    found = Findings()
    request = evidence.with_seed(request)
    status, detail = EvalStatus.PASSED, ""
    try:
        _refuse(request)
        _scan(request, found)
        async with Sandbox(request) as sandbox, asyncio.timeout(request.timeout_s):
            found.environment["sandbox"] = sandbox.note
            await _judge_candidate(request, sandbox, found, report or (lambda progress: None))
    except Rejected as rejection:
        status, detail = rejection.status, rejection.detail
    except TimeoutError:
        status = EvalStatus.TIMED_OUT
        detail = f"the evaluation took longer than {request.timeout_s:.0f} s (choose a smaller workload)"
    evaluation = _evaluation(request, found, status, detail, time.monotonic() - start)
    if keep:
        keep(evidence.gather(request, found, evaluation))
    return evaluation


def _evaluation(
    request: EvaluationRequest, found: Findings, status: EvalStatus, detail: str, seconds: float
) -> Evaluation:
    passed = status is EvalStatus.PASSED
    return Evaluation(
        status=status,
        device=request.device,
        detail=detail,
        device_name=found.environment.get("device_name"),
        checks=tuple(found.checks),
        timings=found.timings if passed else (),
        speedups=found.speedups if passed else {},
        numerics=_numerics(found),
        kernels=found.kernels,
        peak_bytes=found.peak_bytes if passed else {},
        environment=found.environment,
        seconds=round(seconds, 3),
    )


def _numerics(found: Findings) -> Numerics | None:
    if not found.errors:
        return None
    worst = max(found.errors, key=lambda e: e["candidate_error"] / max(e["tolerance"], 1e-300))
    return Numerics(
        candidate_error=worst["candidate_error"],
        reference_error=worst["reference_error"],
        tolerance=worst["tolerance"],
        num_trials=len(found.errors),
        distributions=tuple(dict.fromkeys(found.families)),
    )


def _refuse(request: EvaluationRequest) -> None:
    """What this gate cannot judge, said before anything is started."""
    if request.device not in ("cpu", "cuda", "interpreter"):
        raise EvaluationError(
            f"could not judge: unknown device {request.device!r}", "use cuda, cpu or interpreter"
        )
    if request.reference.kind is TargetKind.TRITON_KERNEL:
        raise EvaluationError(
            "could not judge: a Triton kernel alone has no inputs", "judge the function that launches it"
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


def _scan(request: EvaluationRequest, found: Findings) -> None:
    """Static guards; what the reference does itself is no suspicion against the candidate."""
    known = {item.what for item in guards.scan(request.reference.source)}
    seen = [item for item in guards.scan(request.candidate_source) if item.what not in known]
    detail = "; ".join(f"line {item.line} {item.what}" for item in seen[:MAX_NOTES])
    found.check("static-guards", not seen, detail)
    if seen:
        raise Rejected(EvalStatus.CHEATED, f"the candidate {detail}")


async def _judge_candidate(
    request: EvaluationRequest, sandbox: Sandbox, found: Findings, report: Report
) -> None:
    report(Progress(phase="evaluate", message="starting judge and worker"))
    judge, worker = InSession(await sandbox.judge(), 0), await sandbox.worker()
    timed = request.require_speed and request.device != "interpreter"
    async with (
        _background(_open(request, judge)) as opening,
        _background(measure.prepare(request, sandbox, judge, opening) if timed else None) as timer,
    ):
        assert opening is not None
        opened, init = await opening
        found.environment.update(opened["environment"])
        loading = {
            "source": request.candidate_source,
            "entry": request.candidate_entry,
            "init": opened["init"],
            "training": request.workload.training,
        }
        await candidate(worker, "load", request.budget.load_s, init, **loading)
        await trials.run_trials(request, judge, worker, opened, found, report)
        finished, _ = await candidate(worker, "finish", request.budget.call_s)
        guard_notes(finished["notes"], found)
        await worker.child.kill()  # its memory and cores belong to the timing now
        if request.device == "cuda":
            _note_launches(request, finished["launched"], found)
            found.kernels = tuple(wire.from_json(CompiledKernel, k) for k in finished["resources"])
        if request.device == "interpreter":
            _note_launches(request, finished["launched"], found)
            await _compile_kernels(request, sandbox, finished["kernels"], found, report)
        closed, _ = await ask_judge(judge, "summary", request.budget.call_s)
        trials.note_closing(closed, found)
        if timer and not closed["degenerate"]:
            report(Progress(phase="evaluate", message="preparing baselines"))
            await measure.measure(request, await timer, judge, init, loading, found)


async def _open(request: EvaluationRequest, judge: Party) -> tuple[dict[str, Any], list[bytes]]:
    """Open the reference and begin a session: both replies in one, and the constructor's tensors."""
    limit_s = request.budget.load_s
    opened, init = await ask_judge(
        judge,
        "open",
        limit_s,
        program=request.reference,
        workload=request.workload,
        device=request.device,
    )
    begun, _ = await ask_judge(judge, "begin", limit_s, seed=request.seed, precision=request.precision)
    return opened | begun, init


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


def _note_launches(request: EvaluationRequest, launched: list[str], found: Findings) -> None:
    """A candidate that brings Triton kernels must have launched one while its values were checked."""
    if not request.uses_triton:
        return
    found.check("kernels-launched", bool(launched), ", ".join(map(str, launched)))
    if not launched:
        raise Rejected(EvalStatus.CHEATED, "the candidate defines Triton kernels and launches none")


async def _compile_kernels(
    request: EvaluationRequest,
    sandbox: Sandbox,
    kernels: list[dict[str, Any]],
    found: Findings,
    report: Report,
) -> None:
    if not kernels:
        return
    report(Progress(phase="evaluate", message="compiling kernels for sm_80 and sm_90"))
    compiler = await sandbox.compiler()
    reply, _ = await candidate(
        compiler, "compile", request.budget.load_s + 30 * len(kernels), kernels=kernels,
        source=request.candidate_source,
    )  # fmt: skip
    found.kernels = tuple(wire.from_json(CompiledKernel, kernel) for kernel in reply["kernels"])
