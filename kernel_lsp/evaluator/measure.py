"""The timed half of an evaluation, seen from the parent: fresh process, checked outputs, vetoes.

`speedups` compare with providers of the reference's own precision: eager and torch.compile. On CUDA
`eager_tf32` (eager with TF32 matrix products) is timed beside them where it computes something else than
eager; it stands in `timings` only, because a faithful candidate does not buy speed with precision and
a user who would can see here what the switch alone brings.

Not covered: CUDA graphs, locked clocks, a roofline.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from kernel_lsp.errors import EvaluationError, WorkerLost
from kernel_lsp.evaluator import stats
from kernel_lsp.evaluator.findings import Findings, Rejected, candidate, guard_notes
from kernel_lsp.evaluator.request import EvaluationRequest
from kernel_lsp.evaluator.sandbox import Party, Sandbox, ask_judge
from kernel_lsp.records import EvalStatus, Timing

OTHER_PRECISION = "eager_tf32"
SETS, CHECKED_ROUNDS = 4, 5
BURST_MS = 100.0
"""How long the parent watches each provider with its own clock."""
OVERHEAD_MS = 0.05
IMPOSSIBLE = 2.0
"""How far the parent's clock may disagree with the worker's before it is called a lie."""
SABOTAGE = 1.5
ATTEMPTS = 3


async def measure(
    request: EvaluationRequest,
    timer: Party,
    judge: Party,
    init: list[bytes],
    loading: dict[str, Any],
    found: Findings,
) -> None:
    """Measure in a fresh process, check timed outputs, veto with the parent's clock."""
    budget = request.budget
    clean = list((await _ask_timer(timer, "baseline", budget.call_s))["clean_ms"])
    for note in timer.notes:
        found.check("compile-baseline", None, note)
    await candidate(timer, "load", budget.load_s, init, **loading, timing=True)
    measured, outputs = await candidate(
        timer, "time", budget.call_s + 4 * budget.timing_s, timing_s=budget.timing_s, checks=CHECKED_ROUNDS
    )
    guard_notes(measured["notes"], found)
    await _check_timed(request, judge, measured, outputs, found)
    times = measured["times_ms"]
    _record_times(times, found)
    found.peak_bytes = measured["peak_bytes"]
    await _veto_sabotage(judge, clean, times["eager"], budget.call_s, found)
    await _veto_clock(timer, times, budget.call_s, found)


async def prepare(
    request: EvaluationRequest,
    sandbox: Sandbox,
    judge: Party,
    opening: asyncio.Task[tuple[dict[str, Any], list[bytes]]] | None,
) -> Party:
    """A process with everything that timing needs except the candidate. Raises EvaluationError.

    It starts beside the judge: importing torch and its compiler takes as long as opening the reference.
    """
    assert opening is not None
    timer = await sandbox.timer()
    compiling = request.budget.compile_s > 0
    # Shielded: a refused reference is the gate's to tell.
    (opened, init), _ = await asyncio.gather(
        asyncio.shield(opening), _ask_timer(timer, "import", request.budget.load_s, compiler=compiling)
    )
    sealed, blobs = await ask_judge(judge, "sealed", request.budget.call_s, count=SETS)
    # Two encoded values travel in one frame: the second's blob numbers follow the first's.
    arguments = {key: sealed[key] for key in ("sets", "state")}
    joined = _shift({"init": opened["init"]}, 0) | _shift(arguments, len(init))
    reply = await _ask_timer(
        timer,
        "prepare",
        request.budget.load_s + request.budget.compile_s + 30,
        [*init, *blobs],
        program=request.reference,
        workload=request.workload,
        grad=opened["grad"],
        compile_s=request.budget.compile_s,
        seeds=sealed["seeds"],
        **joined,
    )
    timer.notes = reply["notes"]
    return timer


async def _ask_timer(
    timer: Party, do: str, timeout_s: float, blobs: list[bytes] | None = None, **fields: Any
) -> dict[str, Any]:
    """Ask before a candidate is loaded: a failure is the reference's or the machine's."""
    try:
        reply, _ = await timer.ask(do, timeout_s, blobs, **fields)
    except WorkerLost as error:
        raise EvaluationError(f"could not judge: timing the reference failed: {error.cause}") from error
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


async def _check_timed(
    request: EvaluationRequest,
    judge: Party,
    measured: dict[str, Any],
    outputs: list[bytes],
    found: Findings,
) -> None:
    """The outputs of random timed rounds, judged like any other."""
    checks = [{key: item[key] for key in ("set", "scale", "outputs")} for item in measured["checks"]]
    reply, _ = await ask_judge(judge, "timed", request.budget.call_s, outputs, checks=checks)
    for verdict in reply["verdicts"]:
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
        if name not in ("candidate", OTHER_PRECISION)
    }
    found.environment["baselines"] = list(found.speedups)


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
    await candidate(timer, "burst", timeout_s, provider=provider, count=count)
    return (time.perf_counter() - start) * 1e3 / count
