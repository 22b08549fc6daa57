"""The part about candidates written by hand: every wrong one is refused, every honest one accepted.

All have the same weight; which of them the gate judges wrongly is listed by name."""

from __future__ import annotations

import random
from dataclasses import replace

from benchmarks.gating.blind import BlindCase, cases
from benchmarks.gating.running import Bench, GatePart, GateRow, Judged
from kernel_lsp.evaluator import EvaluationBudget, EvaluationRequest
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.records import EvalStatus


async def judge(bench: Bench, seconds: float, *, seed: int, limit: int | None) -> GatePart:
    """``seed``: of the order, and of the inputs; ``limit``: so many of them."""
    asked = list(cases())
    asked = random.Random(seed).sample(asked, len(asked))[:limit]
    asked.sort(key=lambda case: case.reference)  # one judge serves all of a reference
    jobs = ((case, _request(bench, case, seed)) for case in asked)
    return summed(await bench.judge_all(jobs, seconds), len(asked))


def summed(found: list[Judged[BlindCase]], asked: int) -> GatePart:
    """The bars, and what was judged wrongly."""
    judged = [one for one in found if one.status is not None]
    wrong = [one for one in judged if one.key.is_wrong]
    half = sum(one.key.dtype != "float32" for one in wrong)
    return GatePart(
        rows=[
            _bar("wrong candidates accepted", wrong),
            _bar("honest candidates refused", [one for one in judged if one not in wrong]),
            GateRow(what="of the wrong, in 16 bits", bar="half", measured=f"{half} of {len(wrong)}",
                met=2 * half >= len(wrong) if wrong else None),
            GateRow(what="judged", bar="all", measured=f"{len(judged)} of {asked}", met=None),
        ],
        notes=[_in_words(one) for one in found if not _is_right(one)],
        data=[_row(one) for one in found],
    )  # fmt: skip


def _is_right(judged: Judged[BlindCase]) -> bool:
    passed = judged.status is EvalStatus.PASSED
    return judged.status is not None and passed != judged.key.is_wrong


def _in_words(judged: Judged[BlindCase]) -> str:
    if judged.status is None:
        return f"not judged: {judged.key.key}: {judged.detail[:160]}"
    if judged.key.is_wrong:
        return f"accepted: {judged.key.key}"
    return f"refused: {judged.key.key}: {judged.detail[:160]}"


def _bar(what: str, judged: list[Judged[BlindCase]]) -> GateRow:
    bad = sum(not _is_right(one) for one in judged)
    measured = f"{bad} of {len(judged)}"
    return GateRow(what=what, bar="0", measured=measured, met=not bad if judged else None)


def _row(one: Judged[BlindCase]) -> dict[str, object]:
    return {
        "key": one.key.key,
        "status": one.status.value if one.status else None,
        "detail": one.detail[:200],
        "seconds": round(one.seconds, 2),
    }


def _request(bench: Bench, case: BlindCase, seed: int) -> EvaluationRequest:
    """Correctness alone; nobody says inference, so gradients belong to the result."""
    cuda = bench.device == "cuda"
    made = request_from_files(case.reference, case.candidate, device=bench.device, has_cuda=cuda)
    budget = EvaluationBudget(compile_s=0, call_s=60)
    return replace(made, require_speed=False, budget=budget, seed=seed)
