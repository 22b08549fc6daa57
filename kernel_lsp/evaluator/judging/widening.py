"""A program in float64, also where its source names the type that it calculates in.

`x.float()` widens what has 16 bits; of a float64 copy of it, it would cut the oracle down to
float32, and a candidate that calculates in float64 was refused for being more exact (a layer norm
of the largest values: the variance overflows in float32). So inside the block what asks for float32
gets float64, and complex64 is complex128; a program whose values all have one type of 16 bits also
names that one where it means its own. What is made of Python's numbers, or of whole numbers, is
float64.

Kept as they are: whole numbers; other casts to 16 bits and fewer, whose rounding is meant; all
casts of a program with an input or parameter in float64, which rounds where it says float32; what
happens within a kernel. Runs in the judge."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernel_lsp.records import Program

WIDER = {torch.float32: torch.float64, torch.complex64: torch.complex128}
NARROW = {torch.float16, torch.bfloat16}
TYPES = re.compile("float|half|complex", re.IGNORECASE)
IMPORTS = re.compile(r"^\s*(?:from|import)\s+(\w+)", re.MULTILINE)
PLAIN = {"__future__", "collections", "functools", "itertools", "math", "torch", "typing"}
"""Modules that give a program no tensors of types that they name."""


def names_types(program: Program) -> bool:
    """Whether the program may ask for a type by its name."""
    source = program.source
    elsewhere = program.home is not None or not set(IMPORTS.findall(source)) <= PLAIN
    return elsewhere or TYPES.search(source) is not None


@contextlib.contextmanager
def in_float64(dtypes: Collection[torch.dtype], named: bool) -> Iterator[None]:
    """Inside the block a program whose inputs and parameters have such types calculates in
    float64. ``named``: it may ask for types by their names; to look at each of its operations costs
    a core 20 us."""
    own = {dtype for dtype in dtypes if dtype.is_floating_point or dtype.is_complex}
    if own & set(WIDER.values()):
        yield
        return
    instead = dict(WIDER)
    if len(own) == 1 and own <= NARROW:
        instead[own.pop()] = torch.float64
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _OtherTypes(instead) if named else contextlib.nullcontext():
            yield
    finally:
        torch.set_default_dtype(before)


class _OtherTypes(TorchDispatchMode):
    """Inside the block an operation that is asked for one type makes another one."""

    def __init__(self, instead: dict[torch.dtype, torch.dtype]) -> None:
        super().__init__()
        self._instead = instead

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        wider = {key: self._wider(value) for key, value in (kwargs or {}).items()}
        return func(*map(self._wider, args), **wider)

    def _wider(self, value: Any) -> Any:
        return self._instead.get(value, value) if isinstance(value, torch.dtype) else value
