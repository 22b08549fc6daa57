"""Numbers that a program asks of tensors while it is captured.

Those of a range, ``torch.arange(1, x.dim()).tolist()``, follow from the call itself. Others are
unknown, and a capture fails later, over what is done with them: the line that asked for each is
kept for its message."""

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
    """Those of one capture."""

    def __init__(self) -> None:
        self.lines: dict[str, str] = {}
        """By the symbol that stands for a number, the line that asked for it."""
        self._ranges: dict[int, tuple[torch.Tensor, int, Any]] = {}
        """By the identity of a tensor the tensor, its version then, and its numbers: what is
        written into a view of it counts as another version."""

    def known(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The numbers that are asked for of a range, or of a part of one. None: unknown, or nothing
        is asked for."""
        if not self._ranges:
            return None
        if func in READING or getattr(func, "__name__", "") == "__get__":
            numbers = self._numbers_of(args[0]) if args else None
            is_one = func is torch.Tensor.item and isinstance(numbers, int)
            return numbers if is_one or func is torch.Tensor.tolist else None
        for thing in (*args, *kwargs.values()):
            self._ranges.pop(id(thing), None)  # it may be written into
        return None

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """A call of torch's has returned."""
        if func is torch.arange:
            is_plain = kwargs.keys() <= {"device"} and all(type(one) is int for one in args)
            is_plain = is_plain and not result.is_inference()  # which has no versions
            if is_plain and args and len(numbers := range(*args)) <= MAX_RANGE:
                self._ranges[id(result)] = (result, result._version, list(numbers))
        elif func is torch.Tensor.unbind:
            parts = self._numbers_of(args[0]) or []
            for one, number in zip(result, parts, strict=False):
                self._ranges[id(one)] = (one, one._version, number)
        elif func in ASKING:
            for number in pytree.tree_leaves(result):
                if isinstance(number, (torch.SymInt, torch.SymFloat)):
                    self.lines.setdefault(str(number.node.expr), program_line(sys._getframe(1)))

    def _numbers_of(self, tensor: Any) -> Any:
        """None: unknown."""
        known, version, numbers = self._ranges.get(id(tensor), (None, 0, None))
        return numbers if known is not None and known._version == version else None

    def line_of(self, error: BaseException) -> str:
        """The line that asked for the number over which a capture failed; empty: none is known."""
        condition = getattr(error, "cond", None)
        names = sorted(str(symbol) for symbol in getattr(condition, "free_symbols", ()))
        return next((self.lines[name] for name in names if name in self.lines), "")
