"""Guard: kernels that are claimed must run, and the result must need them.

Covers: a kernel that is defined and never launched; whose launch always fails and falls back to
torch; that runs on one element, or in full, while the result comes from elsewhere. Once all trials
are done, the candidate is called again with every launch doing nothing; in poisoned memory a
result that needs its kernels changes. A candidate that then crashes, hangs or raises does need
them. Does not cover: a kernel whose result is multiplied by zero; one that does a hundredth of the
work. No torch here."""

from __future__ import annotations

from typing import Any

from kernel_lsp.errors import WorkerLost
from kernel_lsp.evaluator.findings import PartialEvaluation, Rejected
from kernel_lsp.evaluator.processes.sandbox import Party
from kernel_lsp.evaluator.request import EvaluationRequest
from kernel_lsp.records import EvalStatus

MIN_SHARE = 0.01
"""Share of the output's elements that must change when no kernel runs."""


async def check_kernels(
    request: EvaluationRequest, worker: Party, launched: list[str], found: PartialEvaluation
) -> None:
    """Asks whether the kernels that ran do the work. Raises Rejected for a decoy. The worker has
    finished: nothing that it does here is a finding."""
    if not request.uses_triton:
        return
    found.check("kernels-launched", bool(launched), ", ".join(map(str, launched)))
    if not launched:
        raise Rejected(EvalStatus.CHEATED, "the candidate defines Triton kernels and launches none")
    share = _share(await _knock_out(worker, request.budget.call_s))
    needed = share is None or share >= MIN_SHARE
    text = (
        "" if share is None else f"{share:.2%} of the output's elements change when no kernel runs"
    )
    found.check("kernels-needed", needed, text)
    if not needed:
        raise Rejected(
            EvalStatus.CHEATED, f"the result does not come from the candidate's kernels: {text}"
        )


async def _knock_out(worker: Party, timeout_s: float) -> dict[str, Any]:
    try:
        reply, _ = await worker.ask("knock_out", timeout_s)
    except WorkerLost:
        return {}
    return reply


def _share(reply: dict[str, Any]) -> float | None:
    share = reply.get("changed")
    return float(share) if isinstance(share, (int, float)) else None
