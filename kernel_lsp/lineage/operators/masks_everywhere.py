"""Masked accesses also where the sizes divide: a flag that chooses the unmasked path is off."""

from __future__ import annotations

import ast

from kernel_lsp.lineage.places import numbers, untuned_launch
from kernel_lsp.rewrite.kernels.blocks import passed_value
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof


def match(kernel: Kernel) -> list[KernelMatch]:
    """Constants of an untuned launch that are on where sizes divide (`x % BLOCK == 0`)."""
    if untuned_launch(kernel) is None:
        return []
    found = []
    for name in kernel.source.constexprs():
        given = passed_value(kernel, name)
        on = kernel.launched[0].constants.get(name) is True
        if given is not None and on and any(isinstance(n, ast.Mod) for n in ast.walk(given)):
            found.append(KernelMatch(name, f"masks whatever divides ({name} off)", data=given))
    return found


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    """The sizes divide; true of the call that was recorded."""
    text = ", ".join(f"{name} = {value}" for name, value in numbers(kernel, match.data).items())
    return [
        proof(
            "the sizes divide",
            True,
            f"{kernel.text(match.data)} holds where {text or 'it was called'}",
        )
    ]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    """No choices: there is one way."""
    return {}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    """Pass False, so that every access is masked."""
    kernel.replace(match.data, "False")
