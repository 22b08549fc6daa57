"""A Triton kernel and how it is launched, as a model reads it that has no use for source text.

What decides how long it takes on a given device: what it is handed, what it does in which loops,
the blocks that it works in, and what the launch says. Names of constants are the author's own."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.records.graphs import Form


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelView:
    """One state of a kernel: as it is, or as some steps leave it."""

    operations: tuple[str, ...]
    """Of the language, in the order of the text; ``loop`` begins one, ``.`` ends it."""
    tensors: tuple[Form, ...]
    """That a launch hands to it, in the order of its parameters."""
    constants: dict[str, int]
    """Whole numbers among its constexprs that a launch passes."""
    options: dict[str, int]
    """num_warps, num_stages and the like, as the launch says them; without what Triton chooses
    itself."""
    programs: int | None
    """Of the grid; None: autotune decides."""
    loaded: int
    """Elements of the largest block that one program loads or stores at once; 1: it knows of
    none."""
    consecutive: int
    """Of these, how many lie beside each other, as far as the address tells."""
    held: int
    """Elements of the largest block that it makes for itself, an accumulator say; 0: none."""
    masked: int
    """Loads and stores with a mask."""
    evicting: int
    """Loads and stores that tell the cache what to keep."""
    ahead: int
    """Rounds of a loop whose loads are under way at once, where a loop says so; 1: none does."""
