"""What one launch of a kernel was seen to pass. Standard library only; launching.py follows the
launcher."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Pointer:
    """A tensor that was handed to a kernel."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    argument: str | None = None
    """Name of the launcher's own argument that it is, or is a view of; None: made by the
    launcher."""

    @property
    def contiguous(self) -> bool:
        """Whether the tensor's elements lie one after the other, the last axis fastest."""
        expected, size = [], 1
        for extent in reversed(self.shape):
            expected.append(size)
            size *= extent
        return self.stride == tuple(reversed(expected))


@dataclass(frozen=True, slots=True)
class Blocks:
    """A tensor descriptor that was handed to a kernel: blocks of a tensor."""

    of: Pointer
    block: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Launched:
    """One launch as it would have been made."""

    kernel: str
    arguments: dict[str, Any]
    """By parameter: a `Pointer` or `Blocks`, or the number itself. Without constexprs."""
    constants: dict[str, Any]
    """constexpr parameters; without those that autotune would choose."""
    grid: tuple[int, ...] | None
    """None: it depends on what autotune would choose."""
    options: dict[str, int] = field(default_factory=dict)
    configs: tuple[dict[str, Any], ...] = ()
    """Of autotune: constants and options together, each a choice."""
    decided: dict[str, frozenset[str]] = field(default_factory=dict)
    """What ``triton.heuristics`` decided: a constant or an option, and what it was computed
    from."""
