"""What a skill of scope ``triton`` works with: one kernel, how it is launched, and edits of its
text.

    from kernel_lsp.rewrite.kernels.view import Kernel, Match, proof

A skill's rewrite.py has ``match(kernel) -> list[Match]``, ``preconditions(kernel, match) ->
list[Proof]``, ``parameters(kernel, match) -> {name: choices}``, whose first ones are a guess that
changes something, and ``apply(kernel, match, parameters)``, which calls `Kernel.replace` for each
piece of text that changes."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from kernel_lsp.parsing import FunctionNode
from kernel_lsp.records import Proof
from kernel_lsp.rewrite.generated import proof
from kernel_lsp.rewrite.kernels.launched import Launched, Pointer
from kernel_lsp.rewrite.kernels.source import KernelSource

__all__ = ["Kernel", "KernelMatch", "Launched", "Pointer", "Proof", "proof"]


@dataclass(frozen=True, slots=True)
class KernelMatch:
    """A place where a skill applies."""

    label: str
    """Stable inside one program: names of the text, never positions."""
    summary: str
    benefit: float | None = None
    """Estimated share of the target's time that is saved, 0..1; None: unknown."""
    data: Any = None
    """What the skill found, for its own use."""


@dataclass(slots=True)
class Kernel:
    """One state of the text. Skills read everything and change it through `replace` alone."""

    source: KernelSource
    launched: tuple[Launched, ...]
    """Launches of this kernel by one call of its launcher, in order."""
    elsewhere: str | None = None
    """A place besides this text that names the kernel, and may launch it."""
    edits: list[tuple[ast.AST, str]] = field(default_factory=list)
    imports: list[str] = field(default_factory=list)
    """Lines that its text needs beside those of the file it is from."""

    @property
    def function(self) -> FunctionNode:
        """The kernel's definition in the text as it is now."""
        return self.source.function(self.source.kernel)

    @property
    def launcher(self) -> FunctionNode:
        """The launcher's definition in the text as it is now."""
        return self.source.function(self.source.launcher)

    def replace(self, node: ast.AST, text: str) -> None:
        """The text of a node of this source. Nodes must not contain one another."""
        self.edits.append((node, text))

    def text(self, node: ast.AST) -> str:
        """The node's own text."""
        return self.source.segment(node)

    def pointers(self) -> dict[str, Pointer]:
        """Tensors of the first launch, by parameter."""
        arguments = self.launched[0].arguments if self.launched else {}
        return {name: value for name, value in arguments.items() if isinstance(value, Pointer)}
