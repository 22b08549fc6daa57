"""Is the candidate as accurate as the reference? Error against a float64 oracle, never allclose.

Let o be the oracle, r the reference, c the candidate, eps the spacing of the output's dtype at 1.

    error(x)  = RMS(x - o) / RMS(o)          over the elements that are finite in o and r
    noise     = max(error(r), error of the oracle when every input is moved by at most half an eps,
                    error of the reference on inputs that are as good)
    rule      = error(c) <= 2 * noise + floor * eps      (and the same for the largest deviation,
                                                          with 8 * noise and 64 * eps)

The factor 2 is the contract: no less accurate than eager by more than that. The moved oracle is
there because one run of the reference can be right by luck (a scalar that cancels); it measures
what the *problem* does to rounding, so an honest reassociation passes. Where one run says too
little, because a sum cancels by chance, more of both is measured, and the floor is a share of what
the result usually is (spread.py). The floor (16 eps = 1.9e-6 in float32, 1 eps in half types, whose
own output rounding is already in error(r)) lets through
reorderings of sums that happen to be exact in the reference. A gradient may be zero in exact
arithmetic (that of a bias before a batch norm): o is then what float64's rounding left of terms
that cancelled, and floors are shares of these terms, RMS(o) / eps of float64, instead of RMS(o).
That this is so is seen where inputs that are moved by float64's eps leave o no digit.

TF32 rounds inputs to 2^-11, 4096 half eps of float32: 2.8e-5 to 7e-4 of the norm on matrix
products, always outside. NaN and infinity must stand where the reference has them. Integers and
booleans must agree with reference or oracle.

Results of 16 bits and fewer must satisfy narrow.py as well, where one rounding is coarse.

Three classes: `faithful` is the rule above; `tf32` adds 2^-10 to float32 results alone (TF32 keeps
10 bits after the point; there is no such thing for other types); `low-precision` adds 2^-6 to
everything but float64 (bfloat16 keeps 7). Gradients are judged by the same rule with doubled
constants, because a backward pass is about two passes long. `coarsen` makes the control: the
reference on operands of the next lower precision must fail, or the workload cannot tell precisions
apart.

Not covered: errors confined to elements far below the RMS of their tensor (the value families
in inputs.py move which elements those are).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from kernel_lsp.evaluator.deviations import (
    FACTOR,
    FLOORS,
    deviations,
    largest,
    pieces,
    ratio,
    relative_error,
    rms,
)
from kernel_lsp.evaluator.judging import narrow
from kernel_lsp.evaluator.judging.inputs import EXTREME, NOT_A_NUMBER
from kernel_lsp.evaluator.tensors import same_bits, with_arithmetic

MAX_FACTOR, MAX_FLOOR = 8.0, 64.0
TF32_FLOOR, LOW_FLOOR = 2.0**-10, 2.0**-6
KEPT_BITS = {torch.float32: 10, torch.bfloat16: 4}
"""Bits after the point that the lower-precision control keeps of a type: TF32 for float32."""
SOME = 1023
"""Elements by which the commonest value of a tensor is guessed; the median of all 2^24 took a core
0.4 s."""
NO_DIGIT = 0.5
"""Relative difference of two float64 oracles above which neither says more than its rounding."""
LOST = 1 / 16
"""Relative error of a row of the reference that no rounding makes: something overflowed on its way
to finite values. 1 in a layer norm of largest values, 0.004 for a rounding of bfloat16."""
FEW, SIGMAS = 4, 4.0
"""Draws from which a spread can be computed; how many of its deviations are no luck."""
SAME = 1e-12
"""Relative difference of numbers in float64 that are one, but for float64's rounding."""
CANCELLED = 2.0
"""How many times larger than this a result usually is, where it is small by chance."""
NEAR_OVERFLOW = 64
"""Of the largest value: a result, or terms of one, above this share of it may overflow in another
order of the terms."""
LOWER = {torch.float64: torch.float32, torch.float16: torch.bfloat16}


def class_floor(precision: str, dtype: torch.dtype) -> float:
    """Relative error that a class may add to a result of this type, whatever the reference does."""
    if precision == "tf32" and dtype is torch.float32:
        return TF32_FLOOR
    return LOW_FLOOR if precision == "low-precision" and dtype is not torch.float64 else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One tensor of one trial."""

    passed: bool
    candidate_error: float
    reference_error: float
    tolerance: float
    detail: str = ""
    worst: dict[str, Any] | None = None
    """The element farthest from the oracle: index, candidate, reference, oracle (of complex
    numbers the index ends in 0 for the real part, 1 for the imaginary); None where nothing
    deviates."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Usual:
    """What most drawings of a trial stay below, as numbers and not as shares; 0: not known."""

    size: float = 0.0
    """Root mean square of the result."""
    error: float = 0.0
    """Of the reference's error."""
    largest: float = 0.0
    """Of its deviations."""


UNKNOWN = Usual()


def compare(
    candidate: torch.Tensor,
    reference: torch.Tensor,
    oracle: torch.Tensor | None,
    moved: tuple[torch.Tensor, ...] = (),
    precision: str = "faithful",
    constants: float = 1.0,
    further: tuple[torch.Tensor, ...] = (),
    errors: tuple[torch.Tensor, ...] = (),
    rounded: tuple[torch.Tensor, ...] = (),
    usual: Usual = UNKNOWN,
    edge: str = "",
    again: torch.Tensor | None = None,
    uncertain: torch.Tensor | None = None,
    terms: torch.Tensor | None = None,
) -> Comparison:
    """Judge one output tensor. Shapes and dtypes already agree; ``oracle`` None means there is
    none (the reference then stands in for it and four floors are allowed). ``constants``: all of
    the rule's constants times this (2 for gradients). ``moved``, ``further``, ``errors``,
    ``rounded``, ``usual``: see spread.py.
    ``edge``: the family, where inputs hold values at the edges. ``again``: the oracle of inputs
    that were moved by float64's eps. ``uncertain``: where NaN may stand for a number
    (split_products.py). ``terms``: how large the terms of each element are (spread.py)."""
    if not (reference.dtype.is_floating_point or reference.dtype.is_complex):
        return compare_exact(candidate, reference, oracle)
    dtype = candidate.dtype
    candidate, reference = (with_arithmetic(real(t)) for t in (candidate, reference))
    versions = _OutputVersions(
        candidate=candidate,
        reference=reference,
        oracle=_truth(reference, oracle),
        moved=_widened(moved),
        further=_widened(further),
        errors=_widened(errors),
        rounded=_widened(rounded),
        again=() if again is None else (real(again).double(),),
    )
    selected = shaped = versions
    if not versions.are_finite:  # selecting costs more than the rest of the comparison
        misplaced = _compare_not_finite(versions, edge, uncertain, terms)
        if misplaced is not None:
            return misplaced
        selected, shaped = _finite_parts(versions)
    eps = torch.finfo(dtype).eps * (4.0 if oracle is None else 1.0)
    added = class_floor(precision, dtype)
    floors = FLOORS.get(dtype, 1.0) * eps + added, MAX_FLOOR * eps + 8 * added
    found = _verdict(selected, floors, constants, usual)
    if found.passed and is_narrow(dtype) and not added:
        small = _is_small_or_one(selected.oracle, usual)
        detail = _narrow_problem(shaped, eps, constants, small)
        found = replace(found, passed=not detail, detail=detail)
    return replace(found, worst=_worst(versions)) if found.candidate_error else found


def _widened(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return tuple(real(one).double() for one in tensors)


@dataclass(frozen=True, kw_only=True, slots=True)
class _OutputVersions:
    """One output tensor as candidate, reference and oracle made it, all of one shape."""

    candidate: torch.Tensor
    reference: torch.Tensor
    oracle: torch.Tensor
    moved: tuple[torch.Tensor, ...]
    """The oracle's of moved inputs."""
    further: tuple[torch.Tensor, ...] = ()
    """As ``moved``, the weights of gradients moved too."""
    errors: tuple[torch.Tensor, ...] = ()
    """The oracle, each with another error of the reference."""
    rounded: tuple[torch.Tensor, ...] = ()
    """The reference's, whose steps were rounded another way."""
    again: tuple[torch.Tensor, ...] = ()
    """The oracle's of inputs moved by float64's eps, if it was asked for."""

    @property
    def are_finite(self) -> bool:
        """Whether candidate, reference and oracle have neither NaN nor infinity."""
        return all(map(finite, (self.candidate, self.reference, self.oracle)))

    def each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> _OutputVersions:
        """The versions with each tensor changed in the same way."""
        return _OutputVersions(
            candidate=change(self.candidate),
            reference=change(self.reference),
            oracle=change(self.oracle),
            moved=tuple(map(change, self.moved)),
            further=tuple(map(change, self.further)),
            errors=tuple(map(change, self.errors)),
            rounded=tuple(map(change, self.rounded)),
            again=tuple(map(change, self.again)),
        )


def _compare_not_finite(
    versions: _OutputVersions,
    edge: str,
    uncertain: torch.Tensor | None,
    terms: torch.Tensor | None,
) -> Comparison | None:
    """A failed comparison when NaN or infinity stand where they must not, else None."""
    c, r = versions.candidate, versions.reference
    if not edge:
        return compare_special(c, r)
    return compare_edges(c, r, versions.oracle, edge, uncertain, terms)


def _finite_parts(versions: _OutputVersions) -> tuple[_OutputVersions, _OutputVersions]:
    """The elements that are finite in all three, in a row; and in their places, others zero."""
    c, r, o = versions.candidate, versions.reference, versions.oracle
    keep = torch.isfinite(r) & torch.isfinite(o) & torch.isfinite(c)
    double = versions.each(torch.Tensor.double)
    return double.each(lambda t: t[keep]), double.each(lambda t: torch.where(keep, t, 0.0))


def _narrow_problem(versions: _OutputVersions, eps: float, constants: float, small: bool) -> str:
    """What narrow.py says of a result, or of the first of its pieces that it says something of:
    each has rows enough to be held to the rules by itself. ``small``: the result is so by chance,
    and its rules are shares of it, or it is one number many times, whose error has one direction
    however it came; else they take few versions, for they look for what has one direction, and in
    many draws of a noise some has."""
    others = versions.moved
    if small:
        others = (*others, *versions.further, *versions.errors)
    rounded = versions.rounded if _errs_no_more(versions) else ()
    every = (versions.candidate, versions.reference, versions.oracle, *rounded, *others)
    for mine, theirs, true, *rest in pieces(*every):
        otherwise, moved = rest[: len(rounded)], [m.nan_to_num(0.0) for m in rest[len(rounded) :]]
        found = narrow.problem(
            mine.double(), theirs.double(), true, moved, eps, constants, otherwise
        )
        if found:
            return found
    return ""


def _errs_no_more(versions: _OutputVersions) -> bool:
    """Whether the candidate errs no more than the reference did on as good inputs, in its root mean
    square and at its worst."""
    o, theirs = versions.oracle, (versions.reference, *versions.errors)
    mine = deviations(versions.candidate, o, 1.0)
    each = [deviations(one.nan_to_num(0.0), o, 1.0) for one in theirs]
    return all(own <= max(known) for own, known in zip(mine, zip(*each, strict=True), strict=True))


def _is_small_or_one(oracle: torch.Tensor, usual: Usual) -> bool:
    """Whether a result is small by chance, or all of its elements are the same, as in the gradient
    of a bias whose outputs are summed."""
    if not oracle.numel() or usual.size > CANCELLED * rms(oracle):
        return bool(oracle.numel())
    least, most = map(float, torch.aminmax(oracle))
    return most - least <= SAME * max(abs(least), abs(most))


def _truth(reference: torch.Tensor, oracle: torch.Tensor | None) -> torch.Tensor:
    """What both are compared with; the reference itself where there is no oracle."""
    return with_arithmetic(real(reference if oracle is None else oracle)).double()


def is_narrow(dtype: torch.dtype) -> bool:
    """Whether single roundings are so coarse that the whole tensor's error says too little
    (narrow.py)."""
    return dtype.is_floating_point and dtype.itemsize <= 2


def _worst(versions: _OutputVersions) -> dict[str, Any]:
    candidate, reference, oracle = versions.candidate, versions.reference, versions.oracle
    farthest, place, before = -2.0, 0, 0
    for mine, true in pieces(candidate, oracle):
        distance = (mine.double() - true).abs_().nan_to_num_(-1.0, -1.0).flatten()
        at = int(distance.argmax())
        if float(distance[at]) > farthest:
            farthest, place = float(distance[at]), before + at
        before += distance.numel()
    values = (t.flatten()[place] for t in (candidate, reference, oracle))
    found: dict[str, Any] = dict(
        zip(("candidate", "reference", "oracle"), map(float, values), strict=True)
    )
    return {"index": _index(place, candidate.shape), **found}


def _index(place: int, shape: Sequence[int]) -> list[int]:
    """Of an element in row-major order. torch.unravel_index imports sympy at its first call: 480
    modules,
    0.6 s of CPU, in every judge."""
    found: list[int] = []
    for size in reversed(shape):
        place, at = divmod(place, size)
        found.append(at)
    return found[::-1]


def _verdict(
    versions: _OutputVersions,
    floors: tuple[float, float],
    constants: float,
    usual: Usual,
) -> Comparison:
    """``floors``: for the error and for the largest deviation (relative to the oracle's
    largest)."""
    o = versions.oracle
    scale, terms = _scale(versions, floors)
    terms = max(terms, ratio(usual.size, scale))
    error, worst = deviations(versions.candidate, o, scale)
    reference_error, its_worst = deviations(versions.reference, o, scale)
    kinds = [
        [deviations(one.nan_to_num(0.0), o, scale) for one in kind]
        for kind in (versions.moved, versions.further, versions.errors)
    ]
    noise = max(reference_error, ratio(usual.error, scale))
    noise = max(noise, *(_bound([one[0] for one in kind]) for kind in kinds))
    worst_noise = max(its_worst, ratio(usual.largest, scale))
    worst_noise = max(worst_noise, *(_bound([one[1] for one in kind]) for kind in kinds))
    peak = ratio(largest(o), scale)
    tolerance = constants * (FACTOR * noise + floors[0] * terms)
    worst_allowed = constants * (MAX_FACTOR * worst_noise + peak * floors[1] * terms)
    detail = ""
    if error > tolerance:
        detail = f"error {error:.2e} of the output's RMS; at most {tolerance:.2e} is allowed"
    elif worst > worst_allowed:
        detail = (
            f"one element is off by {worst:.2e} of the RMS; at most {worst_allowed:.2e} is allowed"
        )
    return Comparison(
        passed=not detail,
        candidate_error=error,
        reference_error=reference_error,
        tolerance=tolerance,
        detail=detail,
    )


def _bound(noises: Sequence[float]) -> float:
    """What draws of a noise stay below: the largest, and from FEW on their mean and SIGMAS
    deviations. That is the same where the noise is one of many elements; of a result that is one
    number, the largest of eight is exceeded by one draw in nine."""
    most = max(noises, default=0.0)
    if len(noises) < FEW or not math.isfinite(most):
        return most
    return max(most, statistics.mean(noises) + SIGMAS * statistics.stdev(noises))


def _scale(versions: _OutputVersions, floors: tuple[float, float]) -> tuple[float, float]:
    """What errors are shares of: RMS(o), or of zero what others made of it; and how much larger
    the terms were that cancelled to it, 1 where it is more than its own rounding."""
    o, others = versions.oracle, (*versions.moved, *versions.again)
    scale = rms(o) or max((rms(one.nan_to_num(0.0, 0.0, 0.0)) for one in others), default=0.0)
    if not scale:  # the reference's rounding, as an eps of them, is all that is known of the terms
        return rms(versions.reference), MAX_FLOOR / floors[1]
    own = [deviations(other.nan_to_num(0.0), o, scale)[0] for other in versions.again]
    return scale, 1 / torch.finfo(torch.float64).eps if own and min(own) > NO_DIGIT else 1.0


def close_to_reference(candidate: torch.Tensor, reference: torch.Tensor) -> bool:
    """Whether the rule of :func:`compare` must hold whatever the oracle says; False decides
    nothing.

    Let d = RMS(c - r) and k = RMS(r) / RMS(o). From error(c) <= error(r) + d / RMS(o) the rule
    holds when d / RMS(o) <= error(r) + floor * eps. With d <= floor / 2 * eps * RMS(r) that is so:
    for k <= 2 by the floor, for k > 2 because error(r) >= k - 1. The same argument holds for the
    largest deviation."""
    if same_bits(candidate, reference):
        return True
    if is_narrow(reference.dtype) or not reference.dtype.is_floating_point:
        return False
    c, r = candidate.double(), reference.double()
    if not (finite(c) and finite(r)):
        if compare_special(candidate, reference) is not None:
            return False
        keep = torch.isfinite(r)
        c, r = c[keep], r[keep]
    eps = torch.finfo(reference.dtype).eps
    error, worst = deviations(c, r, rms(r))
    peak = ratio(largest(r), rms(r))
    return (
        error <= FLOORS.get(reference.dtype, 1.0) / 2 * eps and worst <= peak * MAX_FLOOR / 2 * eps
    )


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


def compare_edges(
    candidate: torch.Tensor,
    reference: torch.Tensor,
    oracle: torch.Tensor,
    family: str,
    uncertain: torch.Tensor | None = None,
    terms: torch.Tensor | None = None,
) -> Comparison | None:
    """:func:`compare_special` where the inputs hold infinities, NaN or the largest values.

    The reference means what it returns where the oracle, rounded to its type, is of the same kind;
    where it overflows on its way, another order of the same sums may not. What it makes finite
    must be finite, but for what the largest values leave of it: a row without a right digit, as a
    normalization has whose variance overflowed, and elements whose ``terms`` are close to
    overflowing although they cancel. An infinite result may be NaN instead, as a difference of
    two terms is where one of them was written. NaN out of infinities says that there is no
    answer, and a rewrite may give one. NaN out of NaN says that something went wrong before,
    which nobody may hide: some of it must be left (a product with zeros, which a rewrite may
    leave out, spreads it to more places). Where ``uncertain``, NaN may stand for anything."""
    rounded = oracle.to(reference.dtype)
    meant = _kinds(rounded) == _kinds(reference)
    lost = meant & torch.isnan(reference)
    meant &= ~lost
    wrong = meant & (_kinds(candidate) != _kinds(reference))
    if family == NOT_A_NUMBER and not bool((lost & torch.isnan(candidate)).any()):
        wrong |= lost
    wrong &= ~(torch.isinf(reference) & torch.isnan(candidate))
    if uncertain is not None:
        wrong &= ~(uncertain & torch.isnan(candidate))
    if family == EXTREME:  # parts of the sum were larger than the sum
        near = reference.abs() if terms is None else torch.maximum(reference.abs(), terms)
        excused = near > torch.finfo(reference.dtype).max / NEAR_OVERFLOW
        excused |= _lost_rows(reference.double(), rounded.double())
        wrong &= ~(excused & ~torch.isfinite(candidate))
    if not bool(wrong.any()):
        return None
    place = int(wrong.flatten().to(torch.uint8).argmax())
    have, want = float(candidate.flatten()[place]), float(reference.flatten()[place])
    return Comparison(
        passed=False,
        candidate_error=float("inf"),
        reference_error=0.0,
        tolerance=0.0,
        detail=f"{have} where the reference has {want:.6g}, of inputs with {family} values",
    )


def _lost_rows(reference: torch.Tensor, oracle: torch.Tensor) -> torch.Tensor:
    """The rows in which the reference is finite and far from the oracle: more than rounding makes
    of the largest values."""
    error, whole = ((one.nan_to_num(0.0, 0.0, 0.0)) for one in (reference - oracle, oracle))
    if not error.dim():
        return error.abs() > LOST * whole.abs()
    error, whole = (one.square().mean(-1, keepdim=True).sqrt() for one in (error, whole))
    return (error > LOST * whole).expand_as(reference)


def _kinds(values: torch.Tensor) -> torch.Tensor:
    """0: finite, 1: NaN, 2 and 3: infinity and its negative."""
    return torch.isnan(values) + 2 * torch.isposinf(values) + 3 * torch.isneginf(values)


def compare_exact(
    candidate: torch.Tensor, reference: torch.Tensor, oracle: torch.Tensor | None
) -> Comparison:
    """Integers and booleans: each must equal the reference or the oracle (a tie may fall either
    way)."""
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


def finite(values: torch.Tensor) -> bool:
    """Whether all are; in one pass (a NaN is smallest and largest)."""
    return not values.numel() or all(bool(torch.isfinite(end)) for end in torch.aminmax(values))


def real(values: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs of real ones, with a last axis of 2; other tensors as they are."""
    return torch.view_as_real(values.resolve_conj()) if values.dtype.is_complex else values


def coarsen(values: torch.Tensor) -> torch.Tensor:
    """``values`` rounded to the next lower precision, in their own type; whole numbers stay as
    they are."""
    if not values.dtype.is_floating_point:
        return values
    if values.dtype in LOWER:
        return values.to(LOWER[values.dtype]).to(values.dtype)
    if values.dtype not in KEPT_BITS:
        return values
    # 0.5 <= mantissa < 1: one bit fewer after the point.
    mantissa, exponent = torch.frexp(values.float())
    steps = 2.0 ** (KEPT_BITS[values.dtype] + 1)
    return torch.where(
        values.isfinite(), torch.ldexp((mantissa * steps).round() / steps, exponent), values
    ).to(values.dtype)


def nudge(
    values: torch.Tensor, like: torch.dtype, draw: torch.Generator, sign: int = 1
) -> torch.Tensor:
    """``values`` (double) each moved by a uniform relative amount of at most half an eps of
    ``like``; with a ``sign`` of -1 to its other side."""
    if values.dtype.is_complex:
        return torch.view_as_complex(nudge(torch.view_as_real(values), like.to_real(), draw, sign))
    half = sign * torch.finfo(like).eps / 2
    amount = torch.rand(values.shape, generator=draw, dtype=torch.float64, device=draw.device)
    amount = amount.to(values.device)
    return values * (1 + half * (2 * amount - 1))


def nudge_zeros(
    values: torch.Tensor, like: torch.dtype, draw: torch.Generator, sign: int = 1
) -> torch.Tensor:
    """``values`` (double) whose zeros are the smallest normal number of ``like`` instead, each of
    either sign; with a ``sign`` of -1 of the other."""
    side = torch.rand(values.shape, generator=draw, device=draw.device).to(values.device) - 0.5
    tiny = torch.finfo(like).smallest_normal
    return torch.where(values == 0, torch.copysign(values.new_tensor(tiny), sign * side), values)


def degenerate(outputs: list[torch.Tensor]) -> str | None:
    """Why these oracle outputs of differently drawn inputs say nothing about a candidate, or None.

    ``outputs`` are the same output tensor in several trials, in double.
    """
    parts = [_finite_part(real(o)) for o in outputs]
    if all(not o.numel() for o in outputs):
        return "the output is empty"
    if all(not part.numel() for part in parts):
        return "the output is never finite"
    if not any(bool(part.any()) for part in parts):
        return "the output is always zero"
    first = outputs[0]
    same = [
        relative_error(real(other), real(first)) < 1e-9
        for other in outputs[1:]
        if other.shape == first.shape
    ]
    if same and all(same):
        return "the output does not depend on the inputs"
    if first.numel() > 1 and all(_is_saturated(part) for part in parts):
        return "more than 99 % of the output's elements have one and the same value"
    return None


def _finite_part(values: torch.Tensor) -> torch.Tensor:
    return values if finite(values) else values[torch.isfinite(values)]


def _is_saturated(values: torch.Tensor) -> bool:
    """What 99 % of all are, some drawn among them are by more than half."""
    if values.numel() < 2:
        return True
    draw = torch.Generator().manual_seed(0)
    some = torch.randint(values.numel(), (SOME,), generator=draw).to(values.device)
    common = values.flatten()[some].median()
    return float((values == common).double().mean()) > 0.99
