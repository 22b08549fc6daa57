"""Whether a tensor of a capture would require gradients in the program's own call.

A capture runs without gradients. `Histories` repeats every operation that it makes on shadows:
meta tensors without memory, with gradients, so that torch itself says what requires them, what is
a leaf, and what has none. Where a part of the program switches gradients, nothing is known from
then on."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

IS_ENABLED = torch.is_grad_enabled
"""Torch's own, whatever answers the program gets meanwhile (answers.py)."""
SWITCHES = (torch.no_grad, torch.enable_grad, torch.inference_mode)
SWITCHING_FILES = ("/torch/utils/checkpoint.py", "/torch/nn/")
"""Files of torch's that switch gradients on behalf of a program."""


class Histories:
    """Shadows of the tensors of one capture."""

    def __init__(self, is_program: Callable[[Any], bool]) -> None:
        """``is_program``: whether the code of a frame is the program's."""
        self._is_program = is_program
        self._shadows: dict[int, torch.Tensor] = {}
        self._alive: list[Any] = []
        """No other tensor may get the id of one that has a shadow."""
        self.is_switched = False
        """The program has changed the gradient mode."""

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The shadow of an operation's result; None: nobody knows it."""
        return None if self.is_switched else self._shadows.get(id(tensor))

    def follow(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """One operation that was made, on the shadows of its arguments."""
        leaves = pytree.tree_leaves((args, kwargs))
        made = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if (
            self.is_switched
            or not made
            or not any(isinstance(leaf, torch.Tensor) for leaf in leaves)
        ):
            return
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            before = IS_ENABLED()
            torch._C._set_grad_enabled(True)
            try:
                given = pytree.tree_map(self._shadow, (args, kwargs))
                shadows = pytree.tree_leaves(func(*given[0], **given[1]))
            except Exception:  # what a meta tensor cannot do: the results stay unknown
                return
            finally:
                torch._C._set_grad_enabled(before)
        found = [leaf for leaf in shadows if isinstance(leaf, torch.Tensor)]
        if len(found) == len(made):
            for tensor, shadow in zip(made, found, strict=True):
                self._shadows[id(tensor)] = shadow
            self._alive += made

    def _shadow(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            is_device = isinstance(leaf, torch.device) or leaf in ("cpu", "cuda")
            return torch.device("meta") if is_device else leaf
        if id(leaf) not in self._shadows:  # an argument, a parameter, a constant
            made = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta")
            needs = leaf.requires_grad and (leaf.is_floating_point() or leaf.is_complex())
            self._alive.append(leaf)
            if not needs:
                self._shadows[id(leaf)] = made
                return made
            # May be written to, and is asked for by nobody.
            return made.requires_grad_().view_as(made)
        return self._shadows[id(leaf)]

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Sees, while the block runs, where the program switches gradients."""
        originals = [(kind, vars(kind)["__enter__"]) for kind in SWITCHES]
        construct = torch.set_grad_enabled.__init__
        try:
            for kind, enter in originals:
                kind.__enter__ = self._noting(enter)
            torch.set_grad_enabled.__init__ = self._noting(construct)
            yield
        finally:
            for kind, enter in originals:
                kind.__enter__ = enter
            torch.set_grad_enabled.__init__ = construct

    def _noting(self, original: Any) -> Any:
        def noting(*args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            name = frame.f_code.co_filename
            if self._is_program(frame) or any(part in name for part in SWITCHING_FILES):
                self.is_switched = True
            return original(*args, **kwargs)

        return noting
