"""How far a result is from the truth, as numbers: of the judge's rule (judging/numerics.py), and of
the tuner's rough copy of it (running/bar.py)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

FACTOR = 2.0
"""Times the noise of the reference: what a candidate's error may be."""
FLOORS = {torch.float64: 16.0, torch.float32: 16.0, torch.float16: 1.0, torch.bfloat16: 1.0}
"""In eps of the type: what it may be besides."""
PIECE = 2**26
"""Elements up to which a whole tensor is compared at once: float64 copies of 8 GB of results do
not fit beside them."""


def rms(values: torch.Tensor) -> float:
    """The root of the mean square, summed in float64; 0 of an empty tensor."""
    if not values.numel():
        return 0.0
    return float(torch.linalg.vector_norm(values, dtype=torch.float64)) / math.sqrt(values.numel())


def relative_error(values: torch.Tensor, oracle: torch.Tensor) -> float:
    """RMS(values - oracle) / RMS(oracle); infinite when the oracle is zero and the values are
    not."""
    return deviations(values, oracle, rms(oracle))[0]


def deviations(values: torch.Tensor, oracle: torch.Tensor, scale: float) -> tuple[float, float]:
    """(relative error, largest deviation), both over ``scale``, the oracle's RMS."""
    squares = worst = 0.0
    for mine, true in pieces(values, oracle):
        difference = mine.double() - true
        squares += rms(difference) ** 2 * difference.numel()
        worst = max(worst, largest(difference))
    error = math.sqrt(squares / values.numel()) if values.numel() else 0.0
    return ratio(error, scale), ratio(worst, scale)


def pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """The same rows of tensors of one shape, few enough at a time that copies of them in float64
    are small beside the tensors."""
    first = tensors[0]
    if first.numel() <= PIECE or not first.dim():
        yield tensors
        return
    step = max(1, first.shape[0] * PIECE // first.numel())
    for start in range(0, first.shape[0], step):
        yield tuple(tensor[start : start + step] for tensor in tensors)


def largest(values: torch.Tensor) -> float:
    """The largest absolute value; 0 of an empty tensor."""
    return float(torch.linalg.vector_norm(values, ord=math.inf)) if values.numel() else 0.0


def ratio(part: float, whole: float) -> float:
    """``part`` over ``whole``; of a whole of zero, 0 where the part is zero too, else infinity."""
    return part / whole if whole > 0 else (0.0 if part == 0 else float("inf"))
