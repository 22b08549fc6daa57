"""What a task is made of, read from its syntax tree and never from its name: structure and family.

The *family* is the sequence of its operators' kinds, layouts left out and repeats folded, so tasks
that differ in shapes, dtypes, constants, names, activations or depth share one, and a split by
families separates them. What is read in a program, and what is not: operators.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernel_lsp import parsing
from trainer.tasks.kinds import kind_of
from trainer.tasks.operators import operators

LONGEST = 9
"""Kinds in a family's name; a longer network is named by the set of its kinds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskStructure:
    ops: tuple[str, ...]
    """Operators in the order in which they run, in lower case; a loop is ``loop`` and its body
    once."""
    kinds: tuple[str, ...]
    """Their kinds, neighbors merged and repeats folded."""

    @property
    def family(self) -> str:
        """``conv>norm>pointwise>pool``; of long networks ``net:conv+norm+pool``; or ``none``."""
        if not self.kinds:
            return "none"
        if len(self.kinds) > LONGEST:
            return "net:" + "+".join(sorted(set(self.kinds)))
        return ">".join(self.kinds)


def structure(source: str, entry: str = "Model") -> TaskStructure | None:
    """The structure of a program's class (its forward) or function. None: it does not parse, or has
    no such entry."""
    try:
        tree = parsing.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    ops = operators(tree, entry)
    return (
        None
        if ops is None
        else TaskStructure(ops=ops, kinds=_fold_repeats([kind_of(op) for op in ops]))
    )


def _fold_repeats(kinds: Sequence[str]) -> tuple[str, ...]:
    """Neighbors merged, then every block that repeats at once kept once: a b a b c -> a b c."""
    out = [kind for place, kind in enumerate(kinds) if place == 0 or kinds[place - 1] != kind]
    for size in range(1, len(out) // 2 + 1):
        place = 0
        while place + 2 * size <= len(out):
            if out[place : place + size] == out[place + size : place + 2 * size]:
                del out[place + size : place + 2 * size]
            else:
                place += 1
    return tuple(out)
