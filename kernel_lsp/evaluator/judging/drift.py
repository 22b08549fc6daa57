"""What all trials of one small result in 16 bits have in common: a factor or an offset.

One trial of a result with few elements cannot tell a factor of 1.02 from roundings: one of them is
0.4 % in bfloat16, and the gradient of a bias of eight elements has few to average over. An error
that stays is seen in all trials together, where roundings cancel. So of every trial two shares are
kept, of the candidate's error and of the reference's: along the oracle (a factor), and along its
root mean square with one sign (an offset), each with the spread that roundings leave of it. Let b
be the mean of the candidate's shares and r that of the reference's, weighted by these spreads:

    rule    |b| <= constants * (eps / 2 + 2 |r|) + SIGMAS * the mean's own spread

Half an eps is the most that one rounding makes, of a constant too, so a right rewrite may have it
in every trial. The spread of the mean grows with how far trials lie from each other, where that is
more than theirs explain: roundings that a row shares, or terms that cancel. A share above half an
eps is judged by a noise that is measured (moved oracles, as good inputs): the reference's own may
be small by luck.

Results of MANY elements and more are left to narrow.py, which sees a factor in each trial. Not
covered: what is less than half an eps, or has another direction in every trial."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from kernel_lsp.evaluator.deviations import rms

SIGMAS = 5.0
"""Every trial asks once more: 4 would refuse a right rewrite in 1,000."""
FEW = 4
"""Trials from which a spread can be computed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _CommonPart:
    """One trial's, of a direction."""

    candidate: float
    reference: float
    variance: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SmallResult:
    """One result of one trial, in types that calculate."""

    name: str
    candidate: torch.Tensor
    reference: torch.Tensor
    oracle: torch.Tensor
    eps: float
    """Of the type that it has."""
    constants: float = 1.0


@dataclass(kw_only=True, slots=True)
class Drift:
    """Of one session: shares by result and direction."""

    shares: dict[tuple[str, str], list[_CommonPart]] = field(default_factory=dict)

    def problem(self, result: SmallResult, measure: Callable[[], Sequence[torch.Tensor]]) -> str:
        """What the trials of this result have in common, with this one, in words; empty: nothing.
        ``measure``: what the oracle may be for all that rounding says."""
        versions: Sequence[torch.Tensor] = (result.candidate, result.oracle, result.reference)
        error, oracle, noises = _errors(versions)
        if not bool(oracle.any()):
            return ""
        half = result.eps / 2
        if any(abs(_along(error, one)) > half for one in _directions(oracle).values()):
            error, oracle, noises = _errors((*versions, *measure()))
        for which, direction in _directions(oracle).items():
            known = self.shares.setdefault((result.name, which), [])
            known.append(_share(error, noises, (half * oracle).square() / 3, direction))
            common, allowed = _together(known, half, result.constants)
            if len(known) >= FEW and abs(common) > allowed:
                return (
                    f"{len(known)} trials have {which} in common: {common:+.2%}; rounding "
                    f"explains {allowed:.2%}"
                )
        return ""


def _errors(
    versions: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """(the candidate's error, the oracle, errors of the others), in float64, of the elements that
    are finite in all of candidate, oracle and others."""
    wide = [tensor.double() for tensor in versions]
    kept = torch.stack([torch.isfinite(one) for one in wide]).all(0)
    candidate, oracle, *others = (one[kept] for one in wide)
    return candidate - oracle, oracle, [one - oracle for one in others]


def _directions(oracle: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"a factor": oracle, "an offset": torch.full_like(oracle, rms(oracle))}


def _along(error: torch.Tensor, direction: torch.Tensor) -> float:
    return float((error * direction).sum() / direction.square().sum())


def _share(
    error: torch.Tensor,
    noises: Sequence[torch.Tensor],
    rounding: torch.Tensor,
    direction: torch.Tensor,
) -> _CommonPart:
    """``noises``: the reference's error first. ``rounding``: variance that each element has in any
    case."""
    common = [_along(one, direction) for one in noises]
    each = torch.stack([one.square() for one in noises]).mean(0) + rounding
    alone = float((each * direction.square()).sum() / direction.square().sum().square())
    together = sum(one * one for one in common) / len(common)
    return _CommonPart(
        candidate=_along(error, direction),
        reference=common[0],
        variance=max(alone, together),  # roundings that are independent; some that are not
    )


def _together(shares: Sequence[_CommonPart], half: float, constants: float) -> tuple[float, float]:
    """(the candidate's mean share, what rounding explains of it); ``half``: of an eps."""
    weights = [1 / one.variance for one in shares]
    whole = sum(weights)
    pairs = list(zip(weights, shares, strict=True))
    mean = sum(weight * one.candidate for weight, one in pairs) / whole
    theirs = sum(weight * one.reference for weight, one in pairs) / whole
    apart = sum(weight * (one.candidate - mean) ** 2 for weight, one in pairs)
    spread = math.sqrt(max(1.0, apart / max(1, len(shares) - 1)) / whole)
    return mean, constants * (half + 2 * abs(theirs)) + SIGMAS * spread
