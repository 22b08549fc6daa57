"""Verdicts on candidates that must never pass: the same draws in every run, and no verdict that the
machine gave."""

import contextlib
import os
import zlib

from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator import EvaluationRequest, Gate
from kernel_lsp.records import EvalStatus, Evaluation


def seed_of(name: str) -> int | None:
    """The same in every run, as hypothesis has it (tests/conftest.py); None where others are
    looked for, KERNEL_LSP_EXAMPLES=10."""
    return None if "KERNEL_LSP_EXAMPLES" in os.environ else zlib.crc32(name.encode())


def has_crashed(evaluation: Evaluation) -> bool:
    return evaluation.status in (EvalStatus.RUNTIME_ERROR, EvalStatus.TIMED_OUT)


async def judge(
    gate: Gate,
    asked: EvaluationRequest,
    again: EvaluationRequest | None = None,
    *,
    ends_itself: bool = False,
) -> Evaluation:
    """The verdict. What says nothing about the candidate is asked once more (``again``, or the
    same): a gate that could not judge, as on a machine that pauses, and the end of one that does
    not end itself. What has passed is not asked again."""
    with contextlib.suppress(EvaluationError):
        evaluation = await gate.evaluate(asked)
        if ends_itself or not has_crashed(evaluation):
            return evaluation
    return await gate.evaluate(again or asked)
