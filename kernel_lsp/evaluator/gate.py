"""The order of an evaluation: static guards, trials, ahead-of-time compilation, timing, verdict.

    judge   open -> trial -> compare -> ... -> sealed -> compare (timed outputs) -> close
    worker  load -> run -> ... -> finish                      (no reference, no expected output)
    timer   prepare -> load -> time -> burst                  (a fresh process)

The parent holds the verdict and a clock of its own. No torch here.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from kernel_lsp import wire
from kernel_lsp.errors import EvaluationError, WorkerLost
from kernel_lsp.evaluator import guards, stats
from kernel_lsp.evaluator.request import EvaluationRequest
from kernel_lsp.evaluator.sandbox import Party, Sandbox, ask_judge
from kernel_lsp.records import (
    Check,
    CompiledKernel,
    EvalStatus,
    Evaluation,
    Interval,
    Numerics,
    Progress,
    TargetKind,
    Timing,
)

Report = Callable[[Progress], None]
SETS, CHECKED_ROUNDS = 4, 5
MIN_INFORMATIVE = 2
BURST_MS = 200.0
"""How long the parent watches each provider with its own clock."""
OVERHEAD_MS = 0.05
IMPOSSIBLE = 2.0
"""How far the parent's clock may disagree with the worker's before it is called a lie."""
SABOTAGE = 1.5
ATTEMPTS = 3
MAX_NOTES = 5


class Rejected(Exception):
    """The verdict is in, and it is no."""

    def __init__(self, status: EvalStatus, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


@dataclass
class Findings:
    """What is known so far; turned into an Evaluation at any point."""

    checks: list[Check] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    families: list[str] = field(default_factory=list)
    timings: tuple[Timing, ...] = ()
    speedups: dict[str, Interval] = field(default_factory=dict)
    kernels: tuple[CompiledKernel, ...] = ()
    peak_bytes: dict[str, int] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)

    def check(self, name: str, passed: bool | None, detail: str = "") -> None:
        self.checks.append(Check(name=name, passed=passed, detail=detail))


async def evaluate(request: EvaluationRequest, report: Report | None = None) -> Evaluation:
    """Judge one candidate. Cancelling the task ends judge and worker.

    Raises EvaluationError when the *reference* cannot be judged by (it crashes, is random in a way
    no seed controls, has no inputs …); whatever a candidate does is a result.
    """
    start = time.monotonic()
    found = Findings()
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
    return _evaluation(request, found, status, detail, time.monotonic() - start)


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
    judge, worker = await sandbox.judge(), await sandbox.worker("worker")
    opened, init = await ask_judge(
        judge,
        "open",
        request.budget.load_s,
        program=request.reference,
        workload=request.workload,
        device=request.device,
        seed=request.seed,
        precision=request.precision,
    )
    found.environment.update(opened["environment"])
    loading = {
        "source": request.candidate_source,
        "entry": request.candidate_entry,
        "init": opened["init"],
        "training": request.workload.training,
    }
    timed = request.require_speed and request.device != "interpreter"
    async with _background(_prepare(request, sandbox, judge, opened, init) if timed else None) as timer:
        await _candidate(worker, "load", request.budget.load_s, init, **loading)
        await _trials(request, judge, worker, opened, found, report)
        finished, _ = await _candidate(worker, "finish", request.budget.call_s)
        _guard_notes(finished["notes"], found)
        await worker.child.kill()  # its memory and cores belong to the timing now
        if request.device == "interpreter":
            await _compile_kernels(request, sandbox, finished["kernels"], found, report)
        closed, _ = await ask_judge(judge, "close", request.budget.call_s)
        _note_closing(closed, found)
        if timer and not closed["degenerate"]:
            report(Progress(phase="evaluate", message="preparing baselines"))
            await _time(request, await timer, judge, init, loading, found, report)


@contextlib.asynccontextmanager
async def _background(work: Coroutine[Any, Any, Party] | None) -> AsyncIterator[asyncio.Task[Party] | None]:
    """Run ``work`` beside the block; ended with it, its failure seen only by who awaits it."""
    task = asyncio.create_task(work) if work else None
    try:
        yield task
    finally:
        if task:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


# --- asking the worker ---------------------------------------------------------------------


async def _candidate(
    worker: Party, do: str, timeout_s: float, blobs: list[bytes] | None = None, **fields: Any
) -> tuple[dict[str, Any], list[bytes]]:
    """Ask the worker; raises Rejected for everything a candidate can do to the process."""
    start = time.monotonic()
    try:
        reply, answer = await worker.ask(do, timeout_s, blobs, **fields)
    except WorkerLost as error:
        if time.monotonic() - start >= timeout_s:
            where = "loading" if do == "load" else "running"
            detail = f"{where} the candidate took longer than {timeout_s:.0f} s"
            raise Rejected(EvalStatus.TIMED_OUT, f"{detail}; it was ended") from error
        raise Rejected(EvalStatus.RUNTIME_ERROR, f"the candidate's process died: {error}") from error
    if not isinstance(reply, dict):
        raise Rejected(EvalStatus.CHEATED, "the worker answered with something that is no message of ours")
    if "error" in reply and do != "run":
        raise Rejected(_kind(reply), str(reply["error"]))
    return reply, answer


def _kind(reply: dict[str, Any]) -> EvalStatus:
    """What sort of failure a worker reports; only failures, whatever it writes."""
    named = str(reply.get("kind"))
    failures = (EvalStatus.COMPILE_ERROR, EvalStatus.RUNTIME_ERROR, EvalStatus.WRONG_RESULT)
    return EvalStatus(named) if named in failures else EvalStatus.RUNTIME_ERROR


# --- correctness ---------------------------------------------------------------------------


async def _trials(
    request: EvaluationRequest,
    judge: Party,
    worker: Party,
    opened: dict[str, Any],
    found: Findings,
    report: Report,
) -> None:
    families = opened["families"]
    shared = {name: opened[name] for name in ("changed", "grad", "aliases")}
    informative = 0
    for number, family in enumerate(families, start=1):
        report(
            Progress(phase="evaluate", message=f"checking values: {family}", done=number, total=len(families))
        )
        drawn, blobs = await ask_judge(judge, "trial", request.budget.call_s, number=number, family=family)
        reply, outputs = await _candidate(worker, "run", request.budget.call_s, blobs, **drawn, **shared)
        if "error" not in reply:
            _guard_notes(reply["notes"], found)
        told = {key: reply.get(key) for key in ("outputs", "state", "error")}
        verdict, _ = await ask_judge(judge, "compare", request.budget.call_s, outputs, number=number, **told)
        if "skip" in verdict:
            continue
        _settle(verdict, reply, opened, found)
        found.families.append(family)
        informative += bool(verdict["informative"])
    if informative < min(MIN_INFORMATIVE, len(families)):
        raise EvaluationError(
            "could not judge: the reference fails or is never finite on nearly all inputs",
            "give a workload whose inputs lie where the reference is defined",
        )
    if not all(entry["same_strides"] for entry in found.errors):
        found.check("strides", None, "the output has another memory layout than the reference's")
    if opened["grad"]:
        found.check("gradients", None, "the output carries gradients; their values were not compared")
    found.check("values", True, f"{len(found.errors)} trials against a float64 oracle")


def _settle(verdict: dict[str, Any], reply: dict[str, Any], opened: dict[str, Any], found: Findings) -> None:
    """Take one comparison into account; raises Rejected when it failed."""
    if "candidate_error" in verdict:
        found.errors.append(verdict)
    if verdict["ok"]:
        return
    if opened["random"] and "error" not in reply:
        detail = "could not judge: random output (the candidate draws another stream than the reference)"
        raise Rejected(EvalStatus.NOT_RUN, detail)
    found.check("values", False, verdict["detail"])
    raise Rejected(_kind(reply) if "error" in reply else EvalStatus.WRONG_RESULT, verdict["detail"])


def _guard_notes(notes: list[dict[str, str]], found: Findings) -> None:
    if not notes:
        return
    for note in notes[:MAX_NOTES]:
        found.check(str(note["name"]), False, str(note["detail"])[:300])
    raise Rejected(EvalStatus.CHEATED, "; ".join(str(note["detail"])[:300] for note in notes[:MAX_NOTES]))


def _note_closing(closed: dict[str, Any], found: Findings) -> None:
    found.check("run-time-guards", True)
    if closed["oracle_note"]:
        found.check("float64-oracle", None, closed["oracle_note"])
    dull = closed["degenerate"]
    found.check("degenerate", not dull, f"{dull}: no claim of speed can be made" if dull else "")


# --- ahead of time -------------------------------------------------------------------------


async def _compile_kernels(
    request: EvaluationRequest,
    sandbox: Sandbox,
    kernels: list[dict[str, Any]],
    found: Findings,
    report: Report,
) -> None:
    if request.uses_triton:
        found.check("kernels-launched", bool(kernels), ", ".join(k["name"] for k in kernels))
    if not kernels:
        if request.uses_triton:
            raise Rejected(EvalStatus.CHEATED, "the candidate defines Triton kernels and launches none")
        return
    report(Progress(phase="evaluate", message="compiling kernels for sm_80 and sm_90"))
    compiler = await sandbox.compiler()
    reply, _ = await _candidate(
        compiler, "compile", request.budget.load_s + 30 * len(kernels), kernels=kernels,
        source=request.candidate_source,
    )  # fmt: skip
    found.kernels = tuple(wire.from_json(CompiledKernel, kernel) for kernel in reply["kernels"])


# --- timing --------------------------------------------------------------------------------


async def _time(
    request: EvaluationRequest,
    timer: Party,
    judge: Party,
    init: list[bytes],
    loading: dict[str, Any],
    found: Findings,
    report: Report,
) -> None:
    """Measure in a fresh process, check timed outputs, veto with the parent's clock."""
    budget = request.budget
    clean = await _baseline(timer, budget.call_s)
    for note in timer.notes:
        found.check("compile-baseline", None, note)
    await _candidate(timer, "load", budget.load_s, init, **loading, timing=True)
    report(Progress(phase="evaluate", message="timing"))
    measured, outputs = await _candidate(
        timer, "time", budget.call_s + 4 * budget.timing_s, timing_s=budget.timing_s, checks=CHECKED_ROUNDS
    )
    _guard_notes(measured["notes"], found)
    await _check_timed(request, judge, measured, outputs, found)
    times = measured["times_ms"]
    _record_times(times, found)
    found.peak_bytes = measured["peak_bytes"]
    await _veto_sabotage(judge, clean, times["eager"], budget.call_s, found)
    await _veto_clock(timer, times, budget.call_s, found)


async def _baseline(timer: Party, timeout_s: float) -> list[float]:
    """Times of eager (ms) before a candidate is loaded, on a machine that no trial uses any more."""
    try:
        reply, _ = await timer.ask("baseline", timeout_s)
    except WorkerLost as error:
        raise EvaluationError(f"could not judge: timing the reference failed: {error.cause}") from error
    return list(reply["clean_ms"])


async def _prepare(
    request: EvaluationRequest, sandbox: Sandbox, judge: Party, opened: dict[str, Any], init: list[bytes]
) -> Party:
    """A process with everything that timing needs except the candidate. Raises EvaluationError."""
    timer = await sandbox.worker("timer")
    sealed, blobs = await ask_judge(judge, "sealed", request.budget.call_s, count=SETS)
    # Two encoded values travel in one frame: the second's blob numbers follow the first's.
    joined = _shift({"init": opened["init"]}, 0) | _shift(sealed, len(init))
    try:
        reply, _ = await timer.ask(
            "prepare",
            request.budget.load_s + request.budget.compile_s + 30,
            [*init, *blobs],
            program=request.reference,
            workload=request.workload,
            grad=opened["grad"],
            compile_s=request.budget.compile_s,
            **joined,
        )
    except WorkerLost as error:
        raise EvaluationError(f"could not judge: timing the reference failed: {error.cause}") from error
    timer.notes = reply["notes"]
    return timer


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


async def _check_timed(
    request: EvaluationRequest,
    judge: Party,
    measured: dict[str, Any],
    outputs: list[bytes],
    found: Findings,
) -> None:
    """The outputs of random timed rounds, judged like any other."""
    for item in measured["checks"]:
        verdict, _ = await ask_judge(judge, "compare", request.budget.call_s, outputs, **item)
        if "skip" not in verdict and not verdict["ok"]:
            found.check("timed-outputs", False, verdict["detail"])
            raise Rejected(EvalStatus.CHEATED, f"right when checked, wrong when timed: {verdict['detail']}")
    done = len(measured["checks"]) == CHECKED_ROUNDS
    found.check("timed-outputs", done, f"{len(measured['checks'])} outputs of timed rounds")
    if not done:
        raise Rejected(EvalStatus.CHEATED, "outputs of timed rounds are missing")


def _record_times(times: dict[str, list[float]], found: Findings) -> None:
    found.timings = tuple(
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
    found.speedups = {
        name: stats.paired_speedup(values, times["candidate"])
        for name, values in times.items()
        if name != "candidate"
    }


async def _veto_sabotage(
    judge: Party, clean: list[float], mixed: list[float], timeout_s: float, found: Findings
) -> None:
    """A baseline that is slower only where the candidate lives counts as it is elsewhere.

    A busy machine slows it everywhere, so a suspicion is settled by timing the reference in the
    judge, now. The claim is lowered and the candidate not condemned: this is a measurement.
    """
    before, after = _typical(clean), stats.quantile(mixed, 0.5)
    if after > SABOTAGE * before:
        again, _ = await ask_judge(judge, "baseline", timeout_s)
        before = max(before, _typical(again["clean_ms"]))
    slower = after > SABOTAGE * before
    detail = f"eager takes {before:.3g} ms without the candidate and {after:.3g} ms in its process"
    found.check("baseline-undisturbed", not slower, detail if slower else "")
    if slower:
        found.speedups = {name: stats.scaled(i, before / after) for name, i in found.speedups.items()}


def _typical(warm_up: list[float]) -> float:
    """Median of the settled half of a warm-up."""
    return stats.quantile(warm_up[-max(3, len(warm_up) // 2) :], 0.5)


async def _veto_clock(timer: Party, times: dict[str, list[float]], timeout_s: float, found: Findings) -> None:
    """The parent's clock over many launches of both: a speedup that only the worker's clock sees is a lie."""
    claimed = {name: stats.quantile(times[name], 0.5) for name in ("eager", "candidate")}
    for _ in range(ATTEMPTS):  # the machine may be busy once, not in the same moment every time
        seen = {name: await _burst(timer, name, claimed[name], timeout_s) for name in claimed}
        believable = seen["candidate"] <= IMPOSSIBLE * claimed["candidate"] + OVERHEAD_MS
        ratio, promised = seen["eager"] / seen["candidate"], claimed["eager"] / claimed["candidate"]
        if believable or IMPOSSIBLE * ratio >= promised:
            found.check("outside-clock", True, f"{seen['candidate']:.4g} ms a call, caches warm")
            return
    detail = (
        f"{claimed['candidate']:.4g} ms claimed and {promised:.3g} times faster than eager; "
        f"{seen['candidate']:.4g} ms and {ratio:.3g} times seen from outside"
    )
    found.check("outside-clock", False, detail)
    raise Rejected(EvalStatus.CHEATED, f"the times cannot be true: {detail}")


async def _burst(timer: Party, provider: str, expected_ms: float, timeout_s: float) -> float:
    """Milliseconds a call by the parent's clock, over about BURST_MS of calls."""
    count = max(5, min(1000, int(BURST_MS / max(expected_ms, 0.001))))
    start = time.perf_counter()
    await _candidate(timer, "burst", timeout_s, provider=provider, count=count)
    return (time.perf_counter() - start) * 1e3 / count
