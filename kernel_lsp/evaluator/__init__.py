"""The gate: is a candidate right, and is it faster? The only part that runs candidate code.

    evaluation = await evaluate(EvaluationRequest(...), report)

The parent side (gate, measure, findings, sandbox, guards, stats, verify) imports no torch. Judge and
worker are child processes in the project's interpreter: the judge never sees the candidate, the
worker never sees an expected output.
"""

from kernel_lsp.evaluator.gate import Gate, evaluate
from kernel_lsp.evaluator.request import Budget, EvaluationRequest, Precision

__all__ = ["Budget", "EvaluationRequest", "Gate", "Precision", "evaluate"]
