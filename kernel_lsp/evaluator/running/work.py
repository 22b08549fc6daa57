"""Operations and bytes of one call, for its place under a device's roofline.

Counted are torch's operators as they run below autograd: bytes of the tensors that each reads and
writes (what is expanded counts once, views move nothing), operations by torch's own formulas for
products, convolutions and attention, else one for each element of the largest tensor. A launch of
a Triton kernel counts the tensors that it is given, each once, and no operations. It is an estimate
for a picture: caches are left out, and nothing is decided on it. Not covered: native extensions
(None), kernels that a custom operator hides are counted as that operator."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernel_lsp.evaluator.running.recorder import launcher_of
from kernel_lsp.evaluator.tensors import tensor_leaves


class WorkCounter(TorchDispatchMode):
    """Counts while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        from torch.utils.flop_counter import flop_registry

        self._formulas: dict[Any, Callable[..., Any]] = flop_registry
        self._inside = 0
        self.operations = 0.0
        self.bytes = 0.0
        self.launches = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._inside += 1
        try:
            result = func(*args, **kwargs)
        finally:
            self._inside -= 1
        if not self._inside and not _is_view(func):
            tensors = [*tensor_leaves((args, kwargs)), *tensor_leaves(result)]
            self.bytes += sum(map(_own_bytes, {id(t): t for t in tensors}.values()))
            formula = self._formulas.get(func._overloadpacket)
            if formula is not None:
                self.operations += float(formula(*args, **kwargs, out_val=result))
            else:
                self.operations += max((t.numel() for t in tensors), default=0)
        return result

    def launch(self, arguments: Any) -> None:
        """A Triton kernel is given these."""
        if not self._inside:
            self.launches += 1
            tensors = {id(t): t for t in tensor_leaves(arguments)}
            self.bytes += sum(map(_own_bytes, tensors.values()))


@contextmanager
def counted() -> Iterator[WorkCounter]:
    """Counts the calls in the block."""
    counter = WorkCounter()
    with _launches_seen(counter), counter:
        yield counter


@contextmanager
def _launches_seen(counter: WorkCounter) -> Iterator[None]:
    try:
        kind = launcher_of(interpreted=False)
    except ImportError:  # no Triton here
        yield
        return
    launch = kind.run

    @functools.wraps(launch)
    def run(function: Any, *args: Any, **kwargs: Any) -> Any:
        counter.launch((args, kwargs))
        return launch(function, *args, **kwargs)

    kind.run = run
    try:
        yield
    finally:
        kind.run = launch


def _is_view(func: Any) -> bool:
    found = (argument.alias_info for argument in func._schema.arguments)
    return any(alias is not None and not alias.is_write for alias in found)


def _own_bytes(tensor: torch.Tensor) -> int:
    """Of its elements, those that only repeat another left out."""
    count = tensor.dtype.itemsize
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride or not size else 1
    return count
