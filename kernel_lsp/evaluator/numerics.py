"""Is the candidate as accurate as the reference? Error against a float64 oracle, never allclose.

Let o be the oracle, r the reference, c the candidate, eps the spacing of the output's dtype at 1.

    error(x)  = RMS(x - o) / RMS(o)          over the elements that are finite in o and r
    noise     = max(error(r), error of the oracle when every input is moved by at most half an eps)
    rule      = error(c) <= 2 * noise + floor * eps          (and the same for the largest deviation,
                                                              with 8 * noise and 64 * eps)

The factor 2 is the contract: no less accurate than eager by more than that. The moved oracle is
there because one run of the reference can be right by luck (a scalar that cancels); it measures what
the *problem* does to rounding, so an honest reassociation passes. The floor (16 eps = 1.9e-6 in
float32, 1 eps in half types whose own output rounding is already in error(r)) lets through
reorderings of sums that happen to be exact in the reference. TF32 rounds inputs to 2^-11, 4096 half
eps of float32: 2.8e-5 to 7e-4 of the norm on matrix products, always outside. NaN and infinity must
stand where the reference has them. Integers and booleans must agree with reference or oracle.

Not covered: errors confined to elements far below the RMS of their tensor (the value families
in inputs.py move which elements those are).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

FACTOR, MAX_FACTOR, MAX_FLOOR = 2.0, 8.0, 64.0
FLOORS = {torch.float64: 16.0, torch.float32: 16.0, torch.float16: 1.0, torch.bfloat16: 1.0}
CLASS_FLOOR = {"faithful": 0.0, "tf32": 2.0**-10, "low-precision": 2.0**-6}
"""Relative error that a class of precision may add whatever the reference does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One tensor of one trial."""

    passed: bool
    candidate_error: float
    reference_error: float
    tolerance: float
    detail: str = ""


def rms(values: torch.Tensor) -> float:
    if not values.numel():
        return 0.0
    return float(torch.linalg.vector_norm(values, dtype=torch.float64)) / math.sqrt(values.numel())


def relative_error(values: torch.Tensor, oracle: torch.Tensor) -> float:
    """RMS(values - oracle) / RMS(oracle); infinite when the oracle is zero and the values are not."""
    return _errors(values, oracle, rms(oracle))[0]


def max_error(values: torch.Tensor, oracle: torch.Tensor) -> float:
    """Largest deviation relative to the RMS of the oracle."""
    return _errors(values, oracle, rms(oracle))[1]


def _errors(values: torch.Tensor, oracle: torch.Tensor, scale: float) -> tuple[float, float]:
    """(relative error, largest deviation), both over ``scale``, the oracle's RMS."""
    difference = values.double() - oracle
    return _ratio(rms(difference), scale), _ratio(_largest(difference), scale)


def _largest(values: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(values, ord=math.inf)) if values.numel() else 0.0


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else (0.0 if part == 0 else float("inf"))


def compare(
    candidate: torch.Tensor,
    reference: torch.Tensor,
    oracle: torch.Tensor | None,
    moved: tuple[torch.Tensor, ...] = (),
    precision: str = "faithful",
) -> Comparison:
    """Judge one output tensor. Shapes and dtypes already agree; ``oracle`` None means there is none
    (the reference then stands in for it and four floors are allowed)."""
    if not (reference.dtype.is_floating_point or reference.dtype.is_complex):
        return compare_exact(candidate, reference, oracle)
    candidate, reference = real(candidate), real(reference)
    truth = reference.double() if oracle is None else real(oracle).double()
    special = compare_special(candidate, reference)
    if special is not None:
        return special
    keep = torch.isfinite(reference) & torch.isfinite(truth) & torch.isfinite(candidate)
    others = [real(m).double() for m in moved]
    c, r, o = candidate.double(), reference.double(), truth
    if not bool(keep.all()):  # selecting costs more than the rest of the comparison
        c, r, o, others = c[keep], r[keep], o[keep], [m[keep] for m in others]
    others = [m.nan_to_num(0.0) for m in others]
    return _verdict(c, r, o, others, candidate.dtype, precision, 4.0 if oracle is None else 1.0)


def _verdict(
    c: torch.Tensor,
    r: torch.Tensor,
    o: torch.Tensor,
    moved: list[torch.Tensor],
    dtype: torch.dtype,
    precision: str,
    slack: float,
) -> Comparison:
    eps = torch.finfo(dtype).eps
    floor = FLOORS.get(dtype, 1.0) * eps * slack + CLASS_FLOOR[precision]
    scale = rms(o)
    (reference_error, worst_noise), (error, worst) = _errors(r, o, scale), _errors(c, o, scale)
    noises = [_errors(m, o, scale) for m in moved]
    noise = max([reference_error, *(one[0] for one in noises)])
    worst_noise = max([worst_noise, *(one[1] for one in noises)])
    peak = _ratio(_largest(o), scale)
    tolerance = FACTOR * noise + floor
    worst_allowed = MAX_FACTOR * worst_noise + peak * (MAX_FLOOR * eps * slack + 8 * CLASS_FLOOR[precision])
    detail = ""
    if error > tolerance:
        detail = f"error {error:.2e} of the output's RMS; at most {tolerance:.2e} is allowed"
    elif worst > worst_allowed:
        detail = f"one element is off by {worst:.2e} of the RMS; at most {worst_allowed:.2e} is allowed"
    return Comparison(
        passed=not detail,
        candidate_error=error,
        reference_error=reference_error,
        tolerance=tolerance,
        detail=detail,
    )


def close_to_reference(candidate: torch.Tensor, reference: torch.Tensor) -> bool:
    """Whether the rule of :func:`compare` must hold whatever the oracle says; False decides nothing.

    Let d = RMS(c - r) and k = RMS(r) / RMS(o). From error(c) <= error(r) + d / RMS(o) the rule holds when
    d / RMS(o) <= error(r) + floor * eps. With d <= floor / 2 * eps * RMS(r) that is so: for k <= 2
    by the floor, for k > 2 because error(r) >= k - 1. The same argument holds for the largest deviation.
    """
    if torch.equal(candidate, reference):
        return True
    if not reference.dtype.is_floating_point or compare_special(candidate, reference) is not None:
        return False
    keep = torch.isfinite(reference)
    c, r = (candidate.double(), reference.double())
    if not bool(keep.all()):
        c, r = c[keep], r[keep]
    eps = torch.finfo(reference.dtype).eps
    error, worst = _errors(c, r, rms(r))
    peak = _ratio(_largest(r), rms(r))
    return error <= FLOORS.get(reference.dtype, 1.0) / 2 * eps and worst <= peak * MAX_FLOOR / 2 * eps


def compare_special(candidate: torch.Tensor, reference: torch.Tensor) -> Comparison | None:
    """A failed comparison when NaN or infinity stand elsewhere than in the reference, else None."""
    same_nan = torch.equal(torch.isnan(candidate), torch.isnan(reference))
    infinite = torch.isinf(reference)
    same_inf = torch.equal(torch.isinf(candidate), infinite) and torch.equal(
        candidate[infinite], reference[infinite]
    )
    if same_nan and same_inf:
        return None
    which = "NaN" if not same_nan else "infinity"
    return Comparison(
        passed=False,
        candidate_error=float("inf"),
        reference_error=0.0,
        tolerance=0.0,
        detail=f"{which} stands at other places than in the reference",
    )


def compare_exact(
    candidate: torch.Tensor, reference: torch.Tensor, oracle: torch.Tensor | None
) -> Comparison:
    """Integers and booleans: each must equal the reference or the oracle (a tie may fall either way)."""
    wrong = candidate != reference
    flips = 0.0
    if oracle is not None and oracle.dtype == reference.dtype:
        wrong &= candidate != oracle
        flips = float((reference != oracle).double().mean()) if reference.numel() else 0.0
    share = float(wrong.double().mean()) if wrong.numel() else 0.0
    allowed = FACTOR * flips
    return Comparison(
        passed=share <= allowed,
        candidate_error=share,
        reference_error=flips,
        tolerance=allowed,
        detail="" if share <= allowed else f"{share:.2%} of the whole-number results differ",
    )


def real(values: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(values.resolve_conj()) if values.dtype.is_complex else values


def nudge(values: torch.Tensor, like: torch.dtype, draw: torch.Generator) -> torch.Tensor:
    """``values`` (double) each moved by a uniform relative amount of at most half an eps of ``like``."""
    half = torch.finfo(like).eps / 2
    amount = torch.rand(values.shape, generator=draw, dtype=torch.float64).to(values.device)
    return values * (1 + half * (2 * amount - 1))


def degenerate(outputs: list[torch.Tensor]) -> str | None:
    """Why these oracle outputs of differently drawn inputs say nothing about a candidate, or None.

    ``outputs`` are the same output tensor in several trials, in double.
    """
    finite = [real(o)[torch.isfinite(real(o))] for o in outputs]
    if all(not part.numel() for part in finite):
        return "the output is never finite"
    if all(part.numel() == 0 or not bool(part.any()) for part in finite):
        return "the output is always zero"
    first = outputs[0]
    same = [relative_error(other, first) < 1e-9 for other in outputs[1:] if other.shape == first.shape]
    if same and all(same):
        return "the output does not depend on the inputs"
    if first.numel() > 1 and all(_saturated(part) for part in finite):
        return "more than 99 % of the output's elements have one and the same value"
    return None


def _saturated(values: torch.Tensor) -> bool:
    if values.numel() < 2:
        return True
    common = values.flatten().median()
    return float((values == common).double().mean()) > 0.99
