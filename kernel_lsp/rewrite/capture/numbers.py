"""Numbers that a program asks of tensors while it is captured.

Those of a range, ``torch.arange(1, x.dim()).tolist()``, follow from the call itself. Of others
nobody knows them: a capture stumbles later, over what is done with them, and is told here where
they came from."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kernel_lsp.rewrite.capture.places import program_line

MAX_RANGE = 64
"""Numbers of a range that are remembered."""
ASKING = frozenset(
    {
        torch.Tensor.tolist,
        torch.Tensor.item,
        torch.Tensor.__int__,
        torch.Tensor.__index__,
        torch.Tensor.__float__,
    }
)
READING = frozenset({*ASKING, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.unbind})
"""What leaves a tensor as it is. torch itself asks for dim, unbind and item where a program asks
for tolist."""


class AskedNumbers:
    """Of one capture."""

    def __init__(self) -> None:
        self.lines: dict[str, str] = {}
        """By the symbol that stands for a number, the line that asked for it."""
        self._ranges: dict[int, tuple[torch.Tensor, Any]] = {}
        """By the identity of a tensor the tensor and its numbers."""

    def known(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The numbers that are asked for of a range, or of a part of one. None: unknown, or nothing
        is asked for."""
        if not self._ranges:
            return None
        if func in READING or getattr(func, "__name__", "") == "__get__":
            _, numbers = self._ranges.get(id(args[0]), (None, None)) if args else (None, None)
            is_one = func is torch.Tensor.item and isinstance(numbers, int)
            return numbers if is_one or func is torch.Tensor.tolist else None
        for thing in (*args, *kwargs.values()):
            self._ranges.pop(id(thing), None)  # it may be written into
        return None

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """A call of torch's has returned."""
        if func is torch.arange:
            is_plain = kwargs.keys() <= {"device"} and all(type(one) is int for one in args)
            if is_plain and args and len(numbers := range(*args)) <= MAX_RANGE:
                self._ranges[id(result)] = (result, list(numbers))
        elif func is torch.Tensor.unbind and id(args[0]) in self._ranges:
            _, numbers = self._ranges[id(args[0])]
            if len(numbers) == len(result):
                self._ranges |= {id(one): (one, n) for one, n in zip(result, numbers, strict=True)}
        elif func in ASKING:
            for number in pytree.tree_leaves(result):
                if isinstance(number, (torch.SymInt, torch.SymFloat)):
                    self.lines.setdefault(str(number.node.expr), program_line(sys._getframe(1)))

    def line_of(self, error: BaseException) -> str:
        """That asked for the number over which a capture stumbled; empty: none is known."""
        condition = getattr(error, "cond", None)
        names = sorted(str(symbol) for symbol in getattr(condition, "free_symbols", ()))
        return next((self.lines[name] for name in names if name in self.lines), "")
