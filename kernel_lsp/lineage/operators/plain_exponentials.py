"""``exp`` instead of ``exp2`` with the factor folded in."""

from __future__ import annotations

from kernel_lsp.lineage.places import floats, innermost
from kernel_lsp.rewrite.kernels.source import find_calls
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof

LN_2 = "0.6931471805599453"


def match(kernel: Kernel) -> list[KernelMatch]:
    """All calls of tl.exp2."""
    found = innermost(find_calls(kernel.function, "exp2"))
    return [KernelMatch("tl.exp2", "exp instead of exp2", data=found)] if found else []


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    """Tensors are floats, and base 2 is what the device computes."""
    text = f"{len(match.data)} exponentials, of one argument each"
    return [proof("base 2 is what the device computes", True, text), floats(kernel)]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    """No choices: there is one way."""
    return {}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    """Write tl.exp of the argument times log(2)."""
    for call in match.data:
        function = kernel.text(call.func).removesuffix("2")
        kernel.replace(call, f"{function}(({kernel.text(call.args[0])}) * {LN_2})")
