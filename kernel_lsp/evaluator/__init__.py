"""The gate: is a candidate right, and is it faster? The only part that runs candidate code.

    async with Gate() as gate:
        evaluation = await gate.evaluate(EvaluationRequest(...), report)

The parent side (gate, cascade, measure, findings, sandbox, guards, stats, verify) imports no
torch. Judge and worker are child processes in the project's interpreter: the judge never sees the
candidate, the worker never sees an expected output."""

from typing import TYPE_CHECKING, Any

from kernel_lsp.evaluator.request import EvaluationBudget, EvaluationRequest, Precision

if TYPE_CHECKING:
    from kernel_lsp.evaluator.gate import COMPILED, Gate, evaluate
    from kernel_lsp.evaluator.remote.remote_gate import open_gate

__all__ = [
    "COMPILED",
    "EvaluationBudget",
    "EvaluationRequest",
    "Gate",
    "Precision",
    "evaluate",
    "open_gate",
]


def __getattr__(name: str) -> Any:
    """The parent's side only when it is asked for: children import this package too, in an
    interpreter that has torch and perhaps nothing else of what the parent needs."""
    if name in ("COMPILED", "Gate", "evaluate"):
        from kernel_lsp.evaluator import gate

        return getattr(gate, name)
    if name == "open_gate":
        from kernel_lsp.evaluator.remote import remote_gate

        return remote_gate.open_gate
    raise AttributeError(name)
