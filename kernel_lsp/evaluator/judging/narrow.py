"""What a result of a narrow type (16 bits and fewer) must satisfy besides the root mean square of
its error.

There one rounding is 0.2 to 0.4 % of a value, so a bound on the whole that lets honest roundings
through also lets through a factor of 1.009, a row that is 3 % off, or a hundred zeros among a
million elements. An honest rewrite rounds elsewhere, but it rounds: its errors have no common
direction, and no place has many times more of them than other places of its kind. So three rules,
each with bounds from the reference's own error and from oracles of moved inputs (`noises`):

    whole     the part of the error that is a multiple of the result (what a wrong scale makes)
    slices    the root mean square of every row, and of every index of every dimension
    elements  each alone, with a factor of 8; as many may be beyond as of the reference, twice

Where a place of the reference is right by luck, any other order of its steps is refused there: a
softmax that one element dominates rounds to 0 and 1, so that its gradient is 0, which is exact, and
attention that keeps its row sums instead rounds there as everywhere. So a candidate that errs no
more than the reference, in its root mean square and at its worst, is held in its places to what the
reference makes of them when each of its steps is rounded another way (spread.py).

A sum whose terms cancel leaves what float32 rounds of the terms, by the order in which they are
added: the gradient of a softmax that one element dominates is zero there or 6e-8, and the
original may have the zero by luck. So no element and no slice is held below LEFT of the root mean
square of the whole.

Let u = eps / 2 be half the spacing of the type at 1, the most that rounding a result costs.
Not covered: errors of elements far below the root mean square of their row, and of less than a
rounding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

WHOLE_FLOOR, WHOLE_SIGMAS = 1 / 8, 4.0
"""Of eps; of the spread that independent roundings leave of a common factor."""
SLICE_FACTOR, SMALL_SLICE = 2.0, 6.0
"""As of the whole; and how much more for a slice of one element, where a noise may be small by
luck."""
TYPICAL = 0.95
"""Quantile of the slices' noise that every slice may have."""
LEFT = 1 / 256
"""Of eps, relative to the root mean square of the whole: 2^-15 in bfloat16. In 5 of 100 verdicts on
a right softmax in bfloat16 an element was off by up to 2^-15 where the original had its zero."""
ELEMENT_FACTOR = 8.0
POOLED = 64
"""Elements at least among which the noise around an element is taken."""
MAX_QUANTILE = 2**16


def problem(
    candidate: torch.Tensor,
    reference: torch.Tensor,
    oracle: torch.Tensor,
    moved: Sequence[torch.Tensor],
    eps: float,
    constants: float,
    rounded: Sequence[torch.Tensor] = (),
) -> str:
    """What is wrong, in words; empty when nothing is. All in float64, of one shape, finite.
    ``rounded``: what else the reference may be, for the rules of places alone."""
    if not oracle.numel() or not bool(oracle.any()):
        return ""
    errors = _Errors(
        error=candidate - oracle,
        noises=tuple(other - oracle for other in (reference, *moved)),
        oracle=oracle,
        eps=eps,
        constants=constants,
    )
    found = _whole(errors)
    if found:
        return found
    errors = replace(errors, noises=(*errors.noises, *(other - oracle for other in rounded)))
    count, allowed, far = _elements(errors)
    if count > allowed:
        away = errors.error.abs() / (oracle.abs() + oracle.square().mean().sqrt())
        off = float(errors.error.flatten()[int(away.masked_fill(~far, -1.0).argmax())].abs())
        return f"{count} elements are farther off than rounding explains, one of them by {off:.2e}"
    return _slices(replace(errors, error=errors.error.masked_fill(far, 0.0)))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Errors:
    """How far a result is from the oracle, and what rounding makes of others."""

    error: torch.Tensor
    noises: tuple[torch.Tensor, ...]
    """The reference's error first, then of oracles of moved inputs."""
    oracle: torch.Tensor
    eps: float
    constants: float

    @property
    def left(self) -> torch.Tensor:
        """What no element is held below."""
        return LEFT * self.eps * self.oracle.square().mean().sqrt()


def _whole(errors: _Errors) -> str:
    squares = errors.oracle.square()
    power = float(squares.sum())
    common = [
        abs(float((one * errors.oracle).sum())) / power for one in (errors.error, *errors.noises)
    ]
    noise = max(math.sqrt(float(one.square().sum()) / power) for one in errors.noises)
    spread = (errors.eps / 2 + noise) * math.sqrt(float(squares.square().sum())) / power
    allowed = errors.constants * (
        2 * max(common[1:]) + WHOLE_FLOOR * errors.eps + WHOLE_SIGMAS * spread
    )
    if common[0] <= allowed:
        return ""
    return (
        f"the whole is off by a factor of {1 + common[0]:.5f}; rounding explains {1 + allowed:.5f}"
    )


def _elements(errors: _Errors) -> tuple[int, int, torch.Tensor]:
    """(how many are too far off, how many may be, which)."""
    noises = errors.noises
    least = errors.eps / 2 * errors.oracle.abs()
    least = least + torch.stack([around(one) for one in noises]).amax(0)
    own = torch.stack([one.abs() for one in noises]).amax(0)
    moved = (
        torch.stack([one.abs() for one in noises[1:]]).amax(0)
        if noises[1:]
        else torch.zeros_like(own)
    )
    far = errors.error.abs() > errors.constants * (ELEMENT_FACTOR * (least + own) + errors.left)
    theirs = noises[0].abs() > ELEMENT_FACTOR * (least + moved)
    return int(far.sum()), 2 * int(theirs.sum()), far


def around(noise: torch.Tensor) -> torch.Tensor:
    """Root mean square among the neighbors of every element: its row, or as many rows as make up
    POOLED."""
    dims = 1
    while dims < noise.dim() and math.prod(noise.shape[-dims:]) < POOLED:
        dims += 1
    if not noise.dim():
        return noise.abs()
    return noise.square().mean(tuple(range(-dims, 0)), keepdim=True).sqrt().expand_as(noise)


def _slices(errors: _Errors) -> str:
    oracle = errors.oracle
    for name, dims in ways(oracle.shape):
        size = math.prod(oracle.shape[d] for d in dims)
        mine, whole = _rms(errors.error, dims), _rms(oracle, dims)
        own = torch.stack([_rms(one, dims) for one in errors.noises]).amax(0)
        some = (own / whole).nan_to_num(0.0, 0.0, 0.0).flatten()
        some = some[:: -(-some.numel() // MAX_QUANTILE)]
        typical = _quantile(some, TYPICAL) * whole
        factor = SLICE_FACTOR + SMALL_SLICE / math.sqrt(size)
        rounding = errors.eps / 2 * whole + errors.left
        allowed = errors.constants * (factor * torch.maximum(own, typical) + rounding)
        beyond = mine > allowed
        if bool(beyond.any()):
            place = int((mine - allowed).argmax())
            off, most = float(mine.flatten()[place]), float(allowed.flatten()[place])
            return (
                f"{name} {place} is off by {off:.2e} (root mean square); rounding explains "
                f"{most:.2e}"
            )
    return ""


def _quantile(values: torch.Tensor, share: float) -> torch.Tensor:
    """What this share of them is below, between two of them in proportion; torch.quantile takes a
    core several times as long for a few values."""
    place = share * (values.numel() - 1)
    first = int(place)
    ends = values.sort().values[first : first + 2]
    return torch.lerp(ends[0], ends[-1], place - first)


def ways(shape: Sequence[int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """How a tensor is cut into slices: a name, and the dimensions that one slice spans."""
    every = tuple(range(len(shape)))
    if shape and shape[-1] > 1:
        yield "row", every[-1:]
    if len(shape) > 1:
        for dim in every:
            rest = tuple(d for d in every if d != dim)
            if shape[dim] > 1 and rest != every[-1:] and math.prod(shape[d] for d in rest) > 1:
                yield f"dimension {dim}, index", rest


def _rms(values: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    return values.square().mean(dims).sqrt()
