"""How inaccurate a variant may be before it is not worth judging: a rough copy of the judge's
rule.

The program in float64 on the tuner's own inputs is the truth; the program itself, and the program
in float64 with every input moved by half an eps, show what rounding does to it. A variant that is
clearly beyond twice that would be rejected on nearly any input, so the tuner looks for the fastest
of the others. Nothing is decided here: what passes is judged with the judge's own inputs and
oracle (judging/numerics.py has the rule)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernel_lsp.evaluator.callees import Callee
from kernel_lsp.evaluator.deviations import FACTOR, FLOORS, relative_error
from kernel_lsp.evaluator.tensors import map_tensors, tensor_leaves

MARGIN = 1.25
"""Times the judge's limit: other inputs than these are judged."""
FAR = 0.05
"""Difference from the program's own output, relative to its norm, that no rounding makes; where
float64 cannot be had, because the program names its dtypes, this alone decides."""
CallWith = Callable[[Callee, Any], Any]


class ExpectedResult:
    """What is expected of every variant of one program."""

    def __init__(
        self,
        callee: Callee,
        wide: Callee,
        arguments: Any,
        outputs: Sequence[torch.Tensor],
        call: CallWith,
    ) -> None:
        """``wide``: the same program in float64; ``call`` runs one on (positional, by name);
        ``outputs`` are the program's own."""
        self._outputs = [tensor.detach().clone() for tensor in outputs]
        self._limits: list[tuple[torch.Tensor, float] | None] = [None] * len(outputs)
        try:
            truth, moved = (self._wide(callee, wide, arguments, call, by) for by in (0.0, 0.5))
        except Exception:  # dtypes written into the program, or no memory: see FAR
            return
        if len(truth) == len(moved) == len(outputs):
            self._limits = list(map(_limit, self._outputs, truth, moved))

    def problem(self, found: Sequence[torch.Tensor]) -> str:
        """Why outputs cannot be right; "" when they may be."""
        if len(found) != len(self._outputs):
            return f"{len(found)} results instead of {len(self._outputs)}"
        for one, expected, limit in zip(found, self._outputs, self._limits, strict=True):
            if one.shape != expected.shape or one.dtype != expected.dtype:
                return "a result of another shape or dtype"
            if not expected.dtype.is_floating_point:
                continue  # whole numbers are compared by the judge
            if limit is None and not _near(one, expected):
                return "its values are far from the original's"
            if limit is not None and not (error := relative_error(one, limit[0])) <= limit[1]:
                return (
                    f"its values are far from the original's: error {error:.2g}, {limit[1]:.2g} "
                    f"at most"
                )
        return ""

    @staticmethod
    def _wide(
        callee: Callee, wide: Callee, arguments: Any, call: CallWith, by: float
    ) -> list[torch.Tensor]:
        """Outputs in float64, inputs and parameters moved by up to ``by`` eps of their dtype."""

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.dtype.is_floating_point:
                return tensor
            value, eps = tensor.detach().double(), torch.finfo(tensor.dtype).eps
            return value * (1 + by * eps * (2 * torch.rand_like(value) - 1)) if by else value

        if isinstance(wide.target, torch.nn.Module):
            state = callee.target.state_dict()
            wide.target.load_state_dict(
                {key: map_tensors(moved, value) for key, value in state.items()}
            )
        return [t.detach() for t in tensor_leaves(call(wide, map_tensors(moved, arguments)))]


def _limit(
    output: torch.Tensor, truth: torch.Tensor, moved: torch.Tensor
) -> tuple[torch.Tensor, float] | None:
    """(truth, error at most); None where it is not known."""
    if truth.shape != output.shape or truth.dtype != torch.float64 or not truth.isfinite().all():
        return None
    floor = FLOORS.get(output.dtype)
    noise = max(relative_error(output, truth), relative_error(moved, truth))
    if floor is None or not noise < FAR:  # chance, or a program that float64 takes elsewhere
        return None
    eps = torch.finfo(output.dtype).eps
    return truth, MARGIN * (FACTOR * noise + floor * eps)


def _near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    a, b = found.float().nan_to_num(), expected.float().nan_to_num()
    return float((a - b).norm()) <= FAR * float(b.norm())
