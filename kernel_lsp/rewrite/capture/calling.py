"""A call of a captured module, around which its class may put a ``__call__`` of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def called_directly(module: torch.nn.Module | None) -> Iterator[None]:
    """While the block runs, a call of the module is one of its ``forward``, with the arguments that
    were recorded there: a class's own ``__call__`` has prepared them already."""
    kinds = type(module).__mro__ if module is not None else ()
    owner: Any = next((kind for kind in kinds if "__call__" in vars(kind)), torch.nn.Module)
    if owner is torch.nn.Module:
        yield
        return
    own = vars(owner)["__call__"]

    def call(self_: Any, /, *args: Any, **kwargs: Any) -> Any:
        # torch.export may stand in for it, with its attributes
        if vars(self_) is vars(module):
            return torch.nn.Module.__call__(self_, *args, **kwargs)
        return own(self_, *args, **kwargs)

    owner.__call__ = call
    try:
        yield
    finally:
        owner.__call__ = own
