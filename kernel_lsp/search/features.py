"""Where a candidate stands in the map of kinds: how much code it is, and what it is made of. Pure,
text only.

The bins are fixed (OpenEvolve's are scaled to what it has seen), so that a cell never moves and an
archive that is resumed or shared means the same. Not covered: how good a candidate is."""

from __future__ import annotations

import math

from kernel_lsp.records import ArchiveCell, Candidate

CHARACTERS, MAX_COMPLEXITY = 200, 9
"""Bin 0 ends at 200 characters, every further one at twice as many."""
OUTERMOST = {"torch.compile(": "compile", "CUDAGraph(": "graph"}
"""What goes around everything else decides first: it removes what the kernels inside differ in."""
KERNEL, DOT = "@triton.jit", "tl.dot("


def cell(candidate: Candidate) -> ArchiveCell:
    """The archive's cell of the edit; of the whole program where there is none."""
    text = _text(candidate)
    complexity = min(MAX_COMPLEXITY, int(math.log2(1 + len(text) / CHARACTERS)))
    return ArchiveCell(complexity=complexity, strategy=_strategy(text))


def _text(candidate: Candidate) -> str:
    if candidate.edit is None:
        return candidate.program
    return candidate.edit.definitions + candidate.edit.target


def _strategy(text: str) -> str:
    for call, name in OUTERMOST.items():
        if call in text:
            return name
    kernels = text.count(KERNEL)
    if kernels > 1:
        return "triton-many"
    if kernels == 1:
        return "triton-dot" if DOT in text else "triton"
    return "torch"
