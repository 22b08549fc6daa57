"""The random numbers of one call, for the same program in float64. Runs in the judge.

A generator gives other numbers to another dtype (which element a dropout drops depends on how many
of them a thread has), so a program that draws has no oracle under its seed. Here the draws of a
call in the program's own dtype are kept in their order and given to the wide program instead of
what it draws.

Only draws that do not depend smoothly on what was computed are replayed: masks, fills, indices.
Kernels that draw within (attention or cuDNN's LSTM with dropout), gamma and Dirichlet make
:class:`UnmatchedNoise`: such a program has no oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernel_lsp.evaluator import relations

FILLS = "bernoulli_ uniform_ normal_ random_ exponential_ geometric_ cauchy_ log_normal_"
MADE = "rand rand_like randn randn_like randint randint_like randperm"
CHOSEN = "bernoulli multinomial poisson binomial"
DROPOUT = "native_dropout"
REPLAYED = frozenset(f"{FILLS} {MADE} {CHOSEN} {DROPOUT}".split())
NoiseDraw = tuple[str, torch.Tensor]
"""The operation and what it drew: of a dropout its mask, of all others their result."""


class UnmatchedNoise(Exception):
    """Numbers were drawn that another call cannot be given, or the other call asks for others."""


class NoiseRecording(TorchDispatchMode):
    """Inside the block, what is drawn on ``place`` is kept in :attr:`draws`.

    Raises UnmatchedNoise."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place, self.draws = place, list[NoiseDraw]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        if (made := _in_parts(self, func, args, kwargs or {})) is not NotImplemented:
            return made
        before = relations.generators(self.place)
        result, name = func(*args, **(kwargs or {})), _name(func)
        if name in REPLAYED:
            self.draws.append((name, _draw_again(name, result).detach().clone()))
        elif relations.generators(self.place) != before:
            raise UnmatchedNoise(f"{name} draws within")
        return result


class NoiseReplay(TorchDispatchMode):
    """Inside the block every draw gives what was recorded; :meth:`end` when it is over. Raises
    Untold."""

    def __init__(self, draws: Sequence[NoiseDraw]) -> None:
        super().__init__()
        self._left = list(reversed(draws))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        if (made := _in_parts(self, func, args, kwargs or {})) is not NotImplemented:
            return made
        name, result = _name(func), func(*args, **(kwargs or {}))
        if name not in REPLAYED:
            return result
        asked, noise = self._left.pop() if self._left else ("nothing", result)
        if asked != name or noise.shape != _draw_again(name, result).shape:
            raise UnmatchedNoise(f"{name} is asked for where {asked} was drawn")
        return _drop_with_mask(args, noise) if name == DROPOUT else result.copy_(noise)

    def end(self) -> None:
        """Raises UnmatchedNoise when draws are left that nobody asked for again."""
        if self._left:
            raise UnmatchedNoise(f"{len(self._left)} draws were not asked for again")


def _in_parts(mode: TorchDispatchMode, func: Any, args: Any, kwargs: Any) -> Any:
    """What an operation gives that is made of others, which draw; NotImplemented for another one.
    Under inference_mode such an operation arrives whole: dropout, not the mask within."""
    made_of_others = torch._C.DispatchKey.CompositeImplicitAutograd
    if not torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), made_of_others):
        return NotImplemented
    with mode:  # decompose() would take Python's version, which draws otherwise on a CPU
        return func._op_dk(made_of_others, *args, **kwargs)


def _name(func: Any) -> str:
    return str(func.overloadpacket.__name__)


def _draw_again(name: str, result: Any) -> torch.Tensor:
    drawn: torch.Tensor = result[1] if name == DROPOUT else result
    return drawn


def _drop_with_mask(args: Sequence[Any], mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """native_dropout(values, p, train) with this mask; without training it is all true."""
    values, p, train = args
    scale = 1.0 if train is False else 0.0 if p == 1.0 else 1.0 / (1.0 - p)
    return values * mask * scale, mask
