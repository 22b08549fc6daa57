"""``range`` instead of ``tl.range`` with options, or of an unrolled loop."""

from __future__ import annotations

import ast

from kernel_lsp.lineage.places import loops, range_of
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof


def match(kernel: Kernel) -> list[KernelMatch]:
    """All loops with options, or unrolled by tl.static_range."""
    calls = [call for loop in loops(kernel) if (call := range_of(loop)) is not None]
    found = [c for c in calls if c.keywords or ast.unparse(c.func).endswith("static_range")]
    return (
        [KernelMatch(f"{len(found)} loops", "loops without options", data=found)] if found else []
    )


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    """Turns of the loop may overlap; true of whatever says so."""
    text = (
        ", ".join(dict.fromkeys(kernel.text(k) for c in match.data for k in c.keywords))
        or "unrolled"
    )
    return [proof("turns of the loop may overlap", True, text)]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    """No choices: there is one way."""
    return {}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    """Write a plain range."""
    for call in match.data:
        kernel.replace(call, f"range({', '.join(kernel.text(a) for a in call.args)})")
