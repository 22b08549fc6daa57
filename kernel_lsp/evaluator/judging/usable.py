"""What a reference may be made of: refusals that say what is missing, before anything is compared.

Runs in the judge. Covers the values that go in and come out (only strided tensors of dtypes with
arithmetic, numbers, strings and nestings of them can be sent, varied and compared) and slices that
write into their own inputs (a rewrite that does not would pass unnoticed; of a recorded call the
changed arguments are compared as well). Does not cover: values that a later trial alone brings
forth."""

from __future__ import annotations

from typing import Any

import torch

from kernel_lsp.errors import EvaluationError, boundary
from kernel_lsp.evaluator.judging.oracle import Reference, TrialInputs
from kernel_lsp.evaluator.tensors import PLAIN, leaves, map_tensors

WITHOUT_ARITHMETIC = ("float8_e8m0", "float4", "complex32", "quint", "qint", "bits")
MAX_DEPTH = 100


def refuse_arguments(given: Any) -> None:
    """Raises EvaluationError for arguments that cannot be varied and sent to a worker."""
    _refuse(given, "get_inputs() gives")


def first_call(reference: Reference, trial: TrialInputs) -> None:
    """Call the reference once and look at what goes in and out. Raises EvaluationError."""
    with boundary(EvaluationError, "could not judge: the reference fails on its own inputs"):
        reference.learn(map_tensors(reference.place, trial["arguments"]), trial["state"])
        result = reference.call(map_tensors(reference.place, trial["arguments"]), trial["state"])
    _refuse(result, "the reference returns")  # data classes are dictionaries already


def _refuse(value: Any, who: str) -> None:
    if _depth(value) > MAX_DEPTH:
        raise EvaluationError(
            f"could not judge: {who} a value that is nested without end",
            "return tensors, or a few of them",
        )
    for _, leaf in leaves(value):
        if isinstance(leaf, torch.Tensor):
            _refuse_tensor(leaf, who)
        elif not isinstance(leaf, (*PLAIN, torch.dtype, torch.device)):
            raise EvaluationError(
                f"could not judge: {who} a value of type {type(leaf).__name__}",
                "use tensors, numbers, strings, and lists, tuples or dictionaries of them",
            )
    if not all(isinstance(key, str) for key in _keys(value)):
        raise EvaluationError(
            f"could not judge: {who} a dictionary with keys that are not strings",
            "use strings as keys",
        )


def _refuse_tensor(tensor: torch.Tensor, who: str) -> None:
    kinds = {
        "sparse": tensor.layout is not torch.strided and not tensor.is_nested,
        "nested": tensor.is_nested,
        "quantized": tensor.is_quantized,
        "meta": tensor.is_meta,
    }
    for kind, found in kinds.items():
        if found:
            raise EvaluationError(
                f"could not judge: {who} a {kind} tensor", "use dense tensors that hold values"
            )
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype.startswith(WITHOUT_ARITHMETIC):
        raise EvaluationError(
            f"could not judge: {who} a tensor of dtype {dtype}, for which torch has no arithmetic",
            "convert at the edges of the target: take and return bfloat16, float16 or wider",
        )


def _depth(value: Any) -> int:
    """Nesting, looked at no deeper than is allowed: a list may contain itself."""
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        inner = (
            item.values() if isinstance(item, dict) else item for item in level if _is_nest(item)
        )
        level = [item for items in inner for item in items]
        depth += bool(level)
    return depth


def _is_nest(value: Any) -> bool:
    return isinstance(value, (list, tuple, dict))


def _keys(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *(key for item in value.values() for key in _keys(item))]
    return (
        [key for item in value for key in _keys(item)] if isinstance(value, (list, tuple)) else []
    )
