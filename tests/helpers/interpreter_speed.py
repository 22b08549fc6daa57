"""Triton's interpreter without its two slow places, for the children that run generated kernels.

It reduces with a function of our own one element at a time, and replaces the language's functions
again at every call of one kernel's function from another. Here whole slices are combined at once,
one after the other as Triton's interpreter has it (halves with halves where nothing is rounded),
and the language is replaced once: these processes do nothing but interpret. What is interpreted
stays Triton's, with bfloat16 as the product's own judges have it."""

from __future__ import annotations

from typing import Any

import numpy as np
from triton.runtime import interpreter

from kernel_lsp.evaluator.devices.interpreted_bfloat16 import compute_bfloat16

REDUCE = interpreter.ReduceOps.generic_reduce
EXACT = ("_nan_max", "_nan_min")
"""Functions of generated kernels that pick a value: the order in which they meet changes no bit."""


def apply() -> None:
    """For the rest of this process, which must interpret only."""
    compute_bfloat16()
    interpreter.ReduceOps.generic_reduce = _reduce
    interpreter._patch_lang = _Once(interpreter._patch_lang)


class _Once:
    """The language as it is seen from one kind of module is replaced at the first call and stays
    so."""

    def __init__(self, patch: Any) -> None:
        self.patch = patch
        self.seen: set[tuple[bool, bool]] = set()

    def __call__(self, fn: Any) -> Any:
        values = fn.__globals__.values()
        modules = {id(value) for value in values if type(value) is type(interpreter)}
        sees = (id(interpreter.tl) in modules, id(interpreter.tl.core) in modules)
        if sees not in self.seen:
            self.patch(fn)  # what would restore the language is dropped
            self.seen.add(sees)
        return interpreter._LangPatchScope()


def _reduce(self: Any, given: Any) -> list[Any]:
    axis = self.axis
    if axis is None:  # of a whole tile: none of our functions, and Triton's own way
        return list(REDUCE(self, given))
    columns = [np.moveaxis(item.handle.data, axis, 0) for item in given]
    if self.combine_fn.fn.__name__ in EXACT:
        while len(columns[0]) > 1:
            columns = _combined(self, given, [c[0::2] for c in columns], [c[1::2] for c in columns])
    else:
        following, columns = columns, [c[:1] for c in columns]
        for i in range(1, len(following[0])):
            columns = _combined(self, given, columns, [c[i : i + 1] for c in following])
    found = [np.expand_dims(c[0], axis) if self.keep_dims else c[0] for c in columns]
    return [self.to_tensor(result, item.dtype) for result, item in zip(found, given, strict=True)]


def _combined(self: Any, given: Any, left: list[Any], right: list[Any]) -> list[Any]:
    """The function's results on two tiles for each of its values, in the dtypes that they came
    in."""
    tensors = [
        self.to_tensor(np.ascontiguousarray(tile), item.dtype)
        for tiles in (left, right)
        for tile, item in zip(tiles, given, strict=True)
    ]
    results = self.combine_fn.fn(*tensors)
    if not isinstance(results, tuple):
        results = (results,)
    made = [r.handle.data if isinstance(r, interpreter.tl.core.tensor) else r for r in results]
    return [
        np.broadcast_to(np.asarray(m), tile.shape).astype(tile.dtype)
        for m, tile in zip(made, left, strict=True)
    ]
