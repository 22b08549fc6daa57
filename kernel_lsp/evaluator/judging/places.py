"""What all trials of one result in 16 bits have in common in one row, index or element.

One trial holds an element to eight times what rounding makes of it, and a row to twice (narrow.py),
because among thousands some have bad luck. So a gradient of which one element was 10 % off, or one
column 3 %, passed in most sessions. Bad luck does not stay at its place; what a wrong index, mask
or tail does is there in every trial. So for every place the candidate's error e is fitted, over all
trials of one shape, by b times a direction d (the oracle, or the root mean square of all of it),
each element weighted by v, the variance that rounding gives it:

    b = sum(e d / v) / sum(d d / v)             over the trials, and over the elements of a place
    rule    |b| <= constants * (eps + 2 |r|) + SIGMAS * s

r is the reference's b. s is the spread of b: 1 / sqrt(sum(d d / v)) where v is right; more where
trials are farther apart than that, on the average of all places (as much more) or at this one (as
Student's t says of so few). A place of which one trial has more than HALF of the weight says
nothing: that one may have bad luck. Two roundings of a constant, which stay, make an eps at most.
v is half an eps of the element, what the reference errs around it and at it, and LEFT of the whole.
Where the rule fails, errors of others are measured in that trial (moved oracles, as good inputs,
other roundings), and s is larger by as much as they are than v, before anything is said.

How likely a right candidate is refused: with independent roundings s is at most half an eps /
sqrt(3 T) of T trials, so eps is 2 sqrt(3 T) >= 7 of it, and with SIGMAS one place in 10^29 is
beyond. Where errors have long tails (terms that cancel), v may be too small; then s is the trials'
own, which b exceeds by chance in 7 places of a million at most, and it must exceed eps as well.

Not covered: what differs from trial to trial at its place, less than an eps, results of more than
MAX_ELEMENTS elements, shapes that fewer than FEW trials have."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from kernel_lsp.evaluator.deviations import rms
from kernel_lsp.evaluator.judging.drift import FEW, SmallResult
from kernel_lsp.evaluator.judging.narrow import LEFT, around, ways

SIGMAS = 4.5
HALF = 0.5
MAX_ELEMENTS = 2**14
"""Elements of a result: it takes 2 ms of a core there in every trial, and 0.4 of a thousand."""


@dataclass(kw_only=True, slots=True)
class _Fits:
    """Of one result's places of one kind, along one direction."""

    count: int = 0
    errors: torch.Tensor | float = 0.0
    """Sum of e d / v, of the candidate."""
    reference: torch.Tensor | float = 0.0
    """The same of the reference."""
    weight: torch.Tensor = field(default_factory=lambda: torch.zeros(()))
    """Sum of d d / v."""
    squares: torch.Tensor | float = 0.0
    """Sum of what each trial's own fit explains: (sum of its e d / v) ** 2 / (sum of d d / v)."""
    heaviest: torch.Tensor = field(default_factory=lambda: torch.zeros(()))
    """The largest part of ``weight`` that one trial has."""

    def add(self, errors: torch.Tensor, reference: torch.Tensor, weight: torch.Tensor) -> None:
        """One trial."""
        self.count += 1
        self.errors, self.reference = self.errors + errors, self.reference + reference
        self.weight, self.heaviest = self.weight + weight, torch.maximum(self.heaviest, weight)
        self.squares = self.squares + _ratio(errors.square(), weight)

    @property
    def common(self) -> torch.Tensor:
        """The candidate's b."""
        return _ratio(self.errors, self.weight)

    def explained(self, eps: float, constants: float, more: torch.Tensor | float) -> torch.Tensor:
        """What rounding explains of each b; ``more``: how much larger its deviations are than v
        says."""
        freedom = self.count - 1
        apart = (self.squares - self.errors * self.common).clamp_min(0) / freedom
        own = math.sqrt(freedom * math.expm1(SIGMAS * SIGMAS / freedom))  # Student's t, nearly
        every = SIGMAS * apart.mean().clamp_min(1.0).sqrt() * more
        most = torch.maximum(every, own * apart.sqrt())
        theirs = _ratio(self.reference, self.weight).abs()
        explained = constants * (eps + 2 * theirs) + most * _ratio(1.0, self.weight).sqrt()
        return torch.where(self.heaviest > HALF * self.weight, torch.inf, explained)


@dataclass(kw_only=True, slots=True)
class LocalDrift:
    """Of one session: fits by result, shape, direction and kind of place."""

    fits: dict[tuple[str, torch.Size, str, str], _Fits] = field(default_factory=dict)

    def problem(self, result: SmallResult, measure: Callable[[], Sequence[torch.Tensor]]) -> str:
        """What the trials of this result, with this one, have in common at one place, in words;
        empty: nothing. ``measure``: what the oracle may be for all that rounding says."""
        wide = [one.double() for one in (result.candidate, result.reference, result.oracle)]
        kept = torch.stack([torch.isfinite(one) for one in wide]).all(0)
        candidate, reference, oracle = (torch.where(kept, one, 0.0) for one in wide)
        size = rms(oracle)
        if not size:
            return ""
        error, theirs = candidate - oracle, reference - oracle
        rounding = (result.eps / 2 * oracle).square() / 3 + (LEFT * result.eps * size) ** 2
        variance = rounding + around(theirs).square() + theirs.square()
        found = ""
        for which, direction in (("a factor", oracle), ("an offset", kept * size)):
            share = direction / variance
            for name, dims in [("element", ()), *ways(oracle.shape)]:
                weight = _over(share * direction, dims)
                fits = self.fits.setdefault((result.name, oracle.shape, which, name), _Fits())
                fits.add(_over(error * share, dims), _over(theirs * share, dims), weight)
                if found or fits.count < FEW or not _beyond(fits, result, 1.0):
                    continue
                noises = [torch.where(kept, one.double(), oracle) - oracle for one in measure()]
                squares = [_over(one * share, dims).square() for one in noises]
                more = sum(squares) / max(1, len(squares)) / weight
                found = _beyond(fits, result, more.nan_to_num(0.0).clamp_min(1.0).sqrt())
                if found:
                    found = f"{fits.count} trials have {which} in common at {name} {found}"
        return found


def _beyond(fits: _Fits, result: SmallResult, more: torch.Tensor | float) -> str:
    """The place of which rounding explains least, and by how much; empty: it explains all."""
    common = fits.common
    if float(common.abs().max()) <= result.constants * result.eps:  # explained at least; cheaper
        return ""
    explained = fits.explained(result.eps, result.constants, more)
    beyond = (common.abs() - explained).flatten()
    place = int(beyond.argmax())
    if float(beyond[place]) <= 0:
        return ""
    return (
        f"{place}: {float(common.flatten()[place]):+.2%}; rounding explains "
        f"{float(explained.flatten()[place]):.2%}"
    )


def _over(values: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """The sum over the elements of a place."""
    return values.sum(dims) if dims else values


def _ratio(above: torch.Tensor | float, below: torch.Tensor) -> torch.Tensor:
    return torch.where(below > 0, above / below, 0.0)
