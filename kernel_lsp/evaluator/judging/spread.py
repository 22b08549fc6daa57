"""How far rounding may move a result: measured on others that are as right, where one run of the
original says too little.

A sum that cancels by chance is the case. Let the gradient of a bias be the sum of 33 weights that
happens to be 0.05 of what such sums usually are: then every bound that is a share of the result,
or the original's own error in this one run, which may be zero by luck, is too small for any other
order of the same roundings. Four things say more, all of them about the original alone:

    moved    the oracle when everything that the result is computed of is moved by at most half an
             eps: inputs, parameters, and the weights of gradients (a bias' gradient depends on
             nothing else)
    as good  the original's own error on such inputs: what it rounds there, by another luck
    usual    how large the result and the original's error are when the same trial is drawn anew;
             of gradients, when their weights have other signs. The floor of the rule is a share
             of the larger of this and of the result itself

    rounded  what the original makes of the same inputs when each step's result of 16 bits is moved
             by at most half an eps: for single places (narrow.py), where a step is exact by luck

Of the first two the rule takes the largest, or the mean and four deviations where that is more; of
the third what three of four draws stay below, which one that explodes does not move. None of them
loosens what has many elements: there the root mean square is no matter of luck, and all of them
agree with the one run. The rules of narrow.py, which look for what has one direction, take them
only where the result is small by chance, or one number many times: with all rounds in each of
them, gradients in bfloat16 that were multiplied by 1.02 passed.

Measured only when a comparison fails, in rounds, until it passes or `ROUNDS` are over: who is wrong
is so by far more than these can explain, which is seen before the first (`HOPELESS`).

Not covered: a rewrite that is less exact on nearly all inputs, because it subtracts later than the
original (`x.mean() - y.mean()` of nearly equal means for `(x - y).mean()`), and one that overflows
much earlier. They are refused: no less accurate than eager by more than a factor of two."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernel_lsp.evaluator.deviations import PIECE, deviations, rms
from kernel_lsp.evaluator.judging import needs, numerics
from kernel_lsp.evaluator.judging.inputs import EDGES
from kernel_lsp.evaluator.judging.oracle import TrialInputs
from kernel_lsp.evaluator.judging.variations import BIG
from kernel_lsp.evaluator.tensors import tensor_leaves

ResultList = list[torch.Tensor | None]
"""Of one call, in the order of what is compared."""
ROUNDS, ROUNDS_OF_MANY = 8, 2
"""Of results with fewer than MANY elements of fewer than BIG inputs, and of others; none where there
are more than PIECE. What is one number is below a quarter of
its spread in one draw of five, in all of eight in one case of 400,000."""
MANY = 4096
ROUNDED = 2
"""In a round: how often the original is run with other roundings."""
HOPELESS = 64
"""Times what is allowed: an error that is larger is none of rounding, and gets no rounds."""


class Moved(enum.Enum):
    """What an oracle is computed of."""

    NOTHING = enum.auto()
    INPUTS = enum.auto()
    """Inputs and parameters are moved."""
    ALL = enum.auto()
    """And the weights of gradients."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFunctions:
    """How the compared results are made of a trial's inputs."""

    original: Callable[[TrialInputs], ResultList]
    """In the program's own precision."""
    oracle: Callable[[TrialInputs, Moved], ResultList | None]
    """In float64; None where there is none."""
    as_good: Callable[[TrialInputs], TrialInputs]
    """The trial on other inputs close by."""
    anew: Callable[[TrialInputs, int], TrialInputs]
    """The trial as another seed draws it; the number of that draw."""


@dataclass(kw_only=True, slots=True)
class RoundingSpread:
    """What has been measured of one comparison."""

    runs: RunFunctions
    trial: TrialInputs
    truth: ResultList | None
    of_gradients: bool = False
    moved: list[ResultList] = field(default_factory=list)
    """The oracle's, of moved inputs and parameters."""
    states: list[torch.Tensor] = field(default_factory=list)
    """Of the generator, before each of them that nothing was moved back of."""
    further: list[ResultList] = field(default_factory=list)
    """The same, with moved weights of gradients."""
    errors: list[ResultList] = field(default_factory=list)
    """``truth`` and the original's error on as good inputs."""
    rounded: list[ResultList] = field(default_factory=list)
    """The original's, whose steps were rounded another way."""
    last_bit: ResultList | None = None
    """The oracle's, of inputs that were moved by float64's eps."""
    drawn: list[list[numerics.Usual]] = field(default_factory=list)
    """Of every other draw of the trial."""

    def move(self, count: int) -> None:
        """Measure oracles of moved inputs and parameters."""
        for _ in range(count):
            self.states.append(self.trial["draw"].get_state())
            if found := self.runs.oracle(self.trial, Moved.INPUTS):
                self.moved.append(found)

    def move_back(self) -> None:
        """Measure the same with everything moved as far to its other side. Rounding has no more to
        say there, but where a slope has a step at a value, as a clamp has at its bounds, one of two
        is beyond it. Not of values: what rounds half up would be on one side of every half."""
        states, self.states = self.states, []
        for state in states:
            draw = self.trial["draw"]
            now = draw.get_state()
            draw.set_state(state)
            if found := self.runs.oracle({**self.trial, "sign": -1}, Moved.INPUTS):
                self.moved.append(found)
            draw.set_state(now)

    def try_as_good(self, count: int = 1) -> None:
        """Measure the original's errors on inputs that are as good."""
        for _ in range(count if self.truth else 0):
            other = self.runs.as_good(self.trial)
            found, true = self.runs.original(other), self.runs.oracle(other, Moved.NOTHING)
            if true:
                assert self.truth is not None
                three = zip(found, true, self.truth, strict=False)
                self.errors.append([_as_far(*one) for one in three])

    def more(self, number: int) -> bool:
        """One round of everything; whether anything could be measured."""
        before = self.count
        try:
            if self.of_gradients:
                self.move_back()
            if found := self.runs.oracle(self.trial, Moved.ALL):
                self.further.append(found)
            self.try_as_good()
            self.draw_anew(number)
            self.round_otherwise()
        except Exception as error:  # a program that refuses such values: nothing more is known
            if needs.is_out_of_memory(error):
                raise
        return self.count > before

    def round_otherwise(self) -> None:
        """Measure the original with other roundings, where it has 16 bits and they change no random
        numbers."""
        given = tensor_leaves([self.trial["arguments"], self.trial["state"]])
        coarse = any(numerics.is_narrow(tensor.dtype) for tensor in given)
        if not self.truth or not coarse or self.trial["draws"]:
            return
        for _ in range(ROUNDED):
            with OtherRoundings(self.trial["draw"]):
                found = self.runs.original(self.trial)
            pairs = zip(found, self.truth, strict=False)
            self.rounded.append([_finite_or(*one) for one in pairs])

    def draw_anew(self, number: int) -> None:
        """Measure another draw of the trial; not where values at the edges make most of it."""
        if self.trial["family"] in EDGES:
            return
        other = self.runs.anew(self.trial, number)
        found, true = self.runs.original(other), self.runs.oracle(other, Moved.NOTHING)
        if true:
            self.drawn.append([_measured(*one) for one in zip(found, true, strict=False)])

    @property
    def count(self) -> int:
        """Of versions."""
        return len(self.further) + len(self.errors)

    def of(self, place: int) -> dict[str, Any]:
        """What `numerics.compare` takes of one result."""
        kinds = {"moved": self.moved, "further": self.further, "errors": self.errors}
        kinds["rounded"] = self.rounded
        found = {name: _at(place, kind) for name, kind in kinds.items()}
        return {**found, "usual": self.usual(place)}

    def terms(self, place: int) -> torch.Tensor | None:
        """How large the terms are that each element of one result is made of, where they may
        cancel: by how far it moves with its inputs."""
        moved = _at(place, self.moved)
        if not self.truth or not moved:
            return None
        here = numerics.real(self.truth[place]).double()
        far = torch.zeros_like(here)
        for one in moved:
            far = torch.maximum(far, (numerics.real(one).double() - here).abs())
        return far / (_coarsest(self.trial) / 2)

    def usual(self, place: int) -> numerics.Usual:
        """What three of four drawings of one result stay below."""
        found = [one[place] for one in self.drawn if place < len(one)]
        if not found:
            return numerics.UNKNOWN
        size, error, largest = (
            sorted(getattr(one, name) for one in found)[3 * (len(found) - 1) // 4]
            for name in ("size", "error", "largest")
        )
        return numerics.Usual(size=size, error=error, largest=largest)


def rounds_for(trial: TrialInputs, results: Any) -> int:
    """How many rounds are worth their time, and have room: each holds float64 results and another
    drawing of the inputs."""
    count = sum(t.numel() for t in tensor_leaves(results))
    elements = count + sum(t.numel() for t in tensor_leaves(trial["arguments"]))
    if elements > PIECE:
        return 0
    return ROUNDS_OF_MANY if count >= MANY or elements > BIG else ROUNDS


def widen_until_passed(
    spread: RoundingSpread,
    compare: Callable[[RoundingSpread], list[numerics.Comparison]],
    *,
    rounds: int,
) -> list[numerics.Comparison]:
    """The comparisons, with as many of so many rounds as they need."""
    results = compare(spread)
    for number in range(rounds):
        if all(one.passed for one in results) or not _may_pass(results):
            break
        if not spread.more(number):
            break
        results = compare(spread)
    return results


def _may_pass(results: Sequence[numerics.Comparison]) -> bool:
    failed = [one for one in results if not one.passed]
    return all(one.candidate_error <= HOPELESS * one.tolerance for one in failed)


class OtherRoundings(TorchDispatchMode):
    """Inside the block every new result of 16 bits is moved by at most half an eps, and rounded
    again: to a neighbor of its or to itself."""

    def __init__(self, draw: torch.Generator) -> None:
        super().__init__()
        self.draw = draw

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What the operation returns, moved."""
        made = func(*args, **(kwargs or {}))
        if not any(one.alias_info for one in func._schema.returns):
            for tensor in tensor_leaves(made):
                if numerics.is_narrow(tensor.dtype) and tensor.dtype.itemsize > 1:
                    tensor.copy_(numerics.nudge(tensor.double(), tensor.dtype, self.draw))
        return made


def _finite_or(found: torch.Tensor | None, here: torch.Tensor | None) -> torch.Tensor | None:
    """``found`` in float64, and ``here`` where it is not finite."""
    if found is None or here is None or found.shape != here.shape:
        return None
    found, here = (numerics.real(one).double() for one in (found, here))
    return torch.where(torch.isfinite(found), found, here)


def _as_far(
    found: torch.Tensor | None, true: torch.Tensor | None, here: torch.Tensor | None
) -> torch.Tensor | None:
    """``here``, moved by the error of another result where that is finite."""
    if found is None or true is None or here is None or found.shape != here.shape:
        return None
    if not (found.dtype.is_floating_point or found.dtype.is_complex) or true.shape != here.shape:
        return None
    found, true, here = (numerics.real(one).double() for one in (found, true, here))
    return here + (found - true).nan_to_num(0.0, 0.0, 0.0)


def _measured(found: torch.Tensor | None, true: torch.Tensor | None) -> numerics.Usual:
    if found is None or true is None or found.shape != true.shape:
        return numerics.UNKNOWN
    if not (found.dtype.is_floating_point or found.dtype.is_complex):
        return numerics.UNKNOWN
    found, true = (numerics.real(one).double() for one in (found, true))
    kept = torch.isfinite(found) & torch.isfinite(true)
    found, true = found[kept], true[kept]
    error, largest = deviations(found, true, 1.0)
    return numerics.Usual(size=rms(true), error=error, largest=largest)


def _at(place: int, versions: Sequence[ResultList]) -> tuple[torch.Tensor, ...]:
    found = (version[place] for version in versions if place < len(version))
    return tuple(one for one in found if one is not None)


def _coarsest(trial: TrialInputs) -> float:
    """The largest eps among the types of inputs and parameters."""
    tensors = tensor_leaves([trial["arguments"], trial["state"]])
    floating = (t for t in tensors if t.dtype.is_floating_point)
    return max((torch.finfo(t.dtype).eps for t in floating), default=math.inf)
