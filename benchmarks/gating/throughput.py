"""Parts about cost: candidates judged per minute, cost against fresh processes, the next after a
fault."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.gating import leftovers
from benchmarks.gating.faults import TASK, WRONG, Fault, faults
from benchmarks.gating.mix import Sent, stream
from benchmarks.gating.running import Bench, GatePart, GateRow, Judged
from kernel_lsp.evaluator import EvaluationRequest, Gate
from kernel_lsp.records import EvalStatus, Evaluation

PER_MINUTE, CHEAPER, NEXT_S = 60, 5.0, 5.0
COMPILED_SHARE = 0.4
"""Of the time box of `rate`: the same with torch.compile."""
COMPILE_S = 45.0
COSTED = {"cuda": 6, "cpu": 4}
"""Candidates one at a time. Side by side there are two for each worker: with one, all of them begin
and end together, and what is measured is how long one takes and not how many can be judged."""


# --- rate -----------------------------------------------------------------------------------


async def rate(bench: Bench, seconds: float) -> GatePart:
    """Candidates judged per minute, warm: the references have been met once before the clock
    starts."""
    await bench.judge_all(_mixed(bench, stream(bench.device, start=10_000), 8), seconds / 4)
    plain = await _per_minute(bench, seconds * (1 - COMPILED_SHARE), 20_000, compile_s=0)
    compiled = await _per_minute(bench, seconds * COMPILED_SHARE, 30_000, compile_s=COMPILE_S)
    wrong = [j for j in plain[1] + compiled[1] if not j.key.right(j.status)]
    mixture = "half Triton kernels" if bench.device == "cuda" else "no Triton kernels on a CPU"
    return GatePart(
        rows=[
            GateRow(
                what=f"candidates judged per minute ({mixture}, {bench.at_once} at a time)",
                bar=f"{PER_MINUTE} on an H200",
                measured=f"{plain[0]:.1f} ({len(plain[1])} judged)",
                met=plain[0] >= PER_MINUTE if bench.device == "cuda" else None,
            ),
            GateRow(
                what="the same with torch.compile as a baseline",
                bar="",
                measured=f"{compiled[0]:.1f} ({len(compiled[1])} judged)",
                met=None,
            ),
            GateRow(
                what="verdicts that are true",
                bar="all",
                measured=f"{len(plain[1] + compiled[1]) - len(wrong)} of "
                f"{len(plain[1] + compiled[1])}",
                met=not wrong,
            ),
        ],
        notes=[_mistaken(j) for j in wrong],
        data=[_line(j, "eager") for j in plain[1]] + [_line(j, "compile") for j in compiled[1]],
    )


async def _per_minute(
    bench: Bench, seconds: float, start: int, compile_s: float
) -> tuple[float, list[Judged[Sent]]]:
    begin = time.monotonic()
    jobs = _mixed(bench, stream(bench.device, start=start), compile_s=compile_s)
    done = await bench.judge_all(jobs, seconds)
    return 60 * len(done) / (time.monotonic() - begin), done


def _mixed(
    bench: Bench, sent: Iterator[Sent], count: int | None = None, compile_s: float = 0
) -> Iterator[tuple[Sent, EvaluationRequest]]:
    for one in itertools.islice(sent, count):
        yield one, bench.request(one.task.reference, one.text, compile_s=compile_s)


def _mistaken(judged: Judged[Sent]) -> str:
    kind = "Triton" if judged.key.triton else "plain"
    status_text = judged.status.value if judged.status else "not judged"
    what = f"{judged.key.task.name} ({kind}, {judged.key.outcome})"
    return f"{what} was {status_text}: {judged.detail[:160]}"


def _line(judged: Judged[Sent], baseline: str) -> dict[str, object]:
    return {
        "task": judged.key.task.name,
        "triton": judged.key.triton,
        "outcome": judged.key.outcome,
        "baseline": baseline,
        "status": judged.status.value if judged.status else None,
        "detail": judged.detail,
        "seconds": round(judged.seconds, 3),
    }


# --- cost -----------------------------------------------------------------------------------


async def cost(bench: Bench, seconds: float) -> GatePart:
    """The same candidates with fresh Python processes for each of them and through the warm gate.

    One at a time first (what one candidate costs), then as many at a time as the machine has cores.
    Texts differ in a number between the two, or caches would answer.
    """
    rows, data = [], list[dict[str, object]]()
    for at_once in dict.fromkeys((1, bench.at_once)):
        count = COSTED[bench.device] if at_once == 1 else 2 * at_once
        took: dict[str, float | None] = {}
        for name, evaluate, start in (
            ("fresh", in_fresh_processes, 40_000),
            ("warm", bench.evaluate, 50_000),
        ):
            one = replace(bench, evaluate=evaluate, at_once=at_once)
            begin = time.monotonic()
            jobs = _mixed(one, stream(bench.device, start=start + 1000 * at_once), count)
            done = await one.judge_all(jobs, seconds / 4)
            took[name] = (time.monotonic() - begin) / len(done) if done else None
            data += [{**_line(j, "eager"), "processes": name, "lanes": at_once} for j in done]
        rows.append(_ratio_of_costs(took["fresh"], took["warm"], at_once))
    return GatePart(rows=rows, data=data)


def _ratio_of_costs(fresh: float | None, warm: float | None, at_once: int) -> GateRow:
    """Seconds a candidate; None when none was judged in its time box."""
    what, bar = f"fresh processes / warm gate, {at_once} at a time", f"{CHEAPER:.0f} times"
    if fresh is None or warm is None:
        return GateRow(what=what, bar=bar, measured="too slow for its time box", met=None)
    measured = f"{fresh:.2f} s / {warm:.2f} s a candidate = {fresh / warm:.1f}"
    return GateRow(what=what, bar=bar, measured=measured, met=fresh / warm >= CHEAPER)


async def in_fresh_processes(request: EvaluationRequest) -> Evaluation:
    """Judged by three Python processes that are started for it, as where no zygote can be had."""
    async with Gate() as gate:
        pool = gate._pool
        pool.start = pool.start_afresh  # type: ignore[method-assign]
        return await gate.evaluate(request)


# --- faults ---------------------------------------------------------------------------------


async def after_faults(bench: Bench, seconds: float, folder: Path) -> GatePart:
    """After each fault a right and a wrong candidate at once; counted from the faulty verdict to
    theirs."""
    end, rows, notes, data = (
        time.monotonic() + seconds,
        list[GateRow](),
        list[str](),
        list[dict[str, object]](),
    )
    await _next(bench, "before")
    for fault in faults(bench.device):
        if time.monotonic() > end:
            notes.append(f"{fault.name}: not run in its time box")
            continue
        faulty = await bench.judge(fault.name, _faulty(bench, fault))
        start = time.monotonic()
        next_two = await _next(bench, fault.name)
        took = time.monotonic() - start
        right = [j.status for j in next_two] == [EvalStatus.PASSED, EvalStatus.WRONG_RESULT]
        survived = faulty.status is EvalStatus.PASSED
        verdict = ("right" if right else "WRONG") + (", and the fault passed" if survived else "")
        rows.append(
            GateRow(
                what=f"after {fault.name}: next two candidates",
                bar=f"right within {NEXT_S:.0f} s",
                measured=f"{verdict}, {took:.1f} s",
                met=right and took <= NEXT_S and not survived,
            )
        )
        notes += _fault_notes(faulty, next_two if not right else [])
        data.append(
            {
                "fault": fault.name,
                "status": faulty.status.value if faulty.status else None,
                "detail": faulty.detail,
                "fault_seconds": round(faulty.seconds, 3),
                "next_seconds": round(took, 3),
                "next_right": right,
                "processes": len(leftovers.processes(folder)),
                "device_mib": leftovers.device_mib(),
            }
        )
    return GatePart(rows=rows, notes=notes, data=data)


def _fault_notes(faulty: Judged[str], wrong: list[Judged[bool]]) -> list[str]:
    status_text = faulty.status.value if faulty.status else "not judged"
    notes = [f"{faulty.key}: {status_text} after {faulty.seconds:.1f} s: {faulty.detail[:140]}"]
    if faulty.detail.startswith("the candidate line "):
        notes.append(
            "  refused by the static guards before it ran: this shows nothing about the next one"
        )
    return notes + [f"  next: {j.status}: {j.detail[:140]}" for j in wrong]


def _faulty(bench: Bench, fault: Fault) -> EvaluationRequest:
    budget = {"call_s": fault.call_s, "memory_bytes": fault.memory_bytes}
    return bench.request(TASK.reference, fault.text, **budget)


async def _next(bench: Bench, after: str) -> list[Judged[bool]]:
    """A right and a wrong candidate, sent together."""
    texts = (TASK.candidate, replace(TASK, other=WRONG).candidate)
    jobs = [
        (n == 0, bench.request(TASK.reference, f"{text}\nAFTER = '{after}'\n"))
        for n, text in enumerate(texts)
    ]
    both = replace(bench, at_once=2)
    return sorted(await both.judge_all(iter(jobs), 60), key=lambda judged: not judged.key)
