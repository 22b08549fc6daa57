"""The correctness half of an evaluation, seen from the parent: one trial after another, then the verdict.

The parent passes raw bytes between judge and worker and decides nothing about values itself. No torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator.findings import Findings, Rejected, candidate, failure_kind, guard_notes
from kernel_lsp.evaluator.request import EvaluationRequest
from kernel_lsp.evaluator.sandbox import Party, ask_judge
from kernel_lsp.records import EvalStatus, Progress

Report = Callable[[Progress], None]
MIN_INFORMATIVE = 2


async def run_trials(
    request: EvaluationRequest,
    judge: Party,
    worker: Party,
    opened: dict[str, Any],
    found: Findings,
    report: Report,
) -> None:
    plan = opened["trials"]
    shared = {name: opened[name] for name in ("changed", "grad", "aliases")}
    informative = 0
    for trial in plan:
        number, family = trial["number"], trial["family"]
        report(Progress(phase="evaluate", message=f"checking values: {family}", done=number, total=len(plan)))
        drawn, blobs = await ask_judge(judge, "trial", request.budget.call_s, number=number)
        reply, outputs = await candidate(worker, "run", request.budget.call_s, blobs, **drawn, **shared)
        if "error" not in reply:
            guard_notes(reply["notes"], found)
        told = {key: reply.get(key) for key in ("outputs", "state", "error")}
        verdict, _ = await ask_judge(judge, "compare", request.budget.call_s, outputs, number=number, **told)
        if "skip" in verdict:
            continue
        _settle(verdict, reply, opened, found)
        found.families.append(family)
        informative += bool(verdict["informative"])
    if informative < min(MIN_INFORMATIVE, len(plan)):
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
    raise Rejected(failure_kind(reply) if "error" in reply else EvalStatus.WRONG_RESULT, verdict["detail"])


def note_closing(closed: dict[str, Any], found: Findings) -> None:
    found.check("run-time-guards", True)
    if closed["oracle_note"]:
        found.check("float64-oracle", None, closed["oracle_note"])
    dull = closed["degenerate"]
    found.check("degenerate", not dull, f"{dull}: no claim of speed can be made" if dull else "")
