"""How many tokens of a language model a step takes, where that is known.

It can where the outermost module is given whole numbers of shape (batch, length), and returns
scores of shape (batch, length or 1, vocabulary). In a decoding loop without a cache the input grows
by one at every call: such a call is one token of each sequence. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any


class TokenCounter:
    """Counts the tokens of one module's calls, by step."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._now = 0
        self._last: tuple[int, int] | None = None
        self.per_step: list[int] = []
        """0: none were seen."""

    def called(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """A forward hook. It changes nothing."""
        given = next(
            (
                tuple(map(int, one.shape))
                for one in self._tensors((*args, *kwargs.values()))
                if one.dim() == 2 and one.dtype in (self._torch.int64, self._torch.int32)
            ),
            None,
        )
        if given is None:
            return
        batch, length = given
        scores = ((batch, length), (batch, 1))
        if any(
            one.dim() == 3 and one.is_floating_point() and tuple(one.shape[:2]) in scores
            for one in self._tensors([result])
        ):
            grows = self._last == (batch, length - 1) and not self._torch.is_grad_enabled()
            self._now += batch if grows else batch * length
            self._last = (batch, length)

    def end_step(self) -> None:
        """Ends a step: tokens count for the next one from now on."""
        self.per_step.append(self._now)
        self._now = 0

    def _tensors(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            if isinstance(value, self._torch.Tensor):
                yield value
            elif isinstance(value, Mapping):
                yield from self._tensors(list(value.values()))
            elif isinstance(value, (list, tuple)):
                yield from self._tensors(value)
