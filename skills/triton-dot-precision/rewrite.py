"""A float32 product without tensor cores becomes three products on them."""

from __future__ import annotations

import ast

from kernel_lsp.rewrite.kernels.source import find_calls
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof


def match(kernel: Kernel) -> list[KernelMatch]:
    found = [call for call in find_calls(kernel.function, "dot") if _exact(call) is not None]
    if not found:
        return []
    summary = "float32 products on tensor cores, each as three (tf32x3)"
    return [KernelMatch(f"{len(found)} of tl.dot", summary, 0.5, data=tuple(found))]


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    floats = {
        name: p.dtype
        for name, p in kernel.pointers().items()
        if p.dtype.startswith(("float", "bfloat"))
    }
    return [
        proof(
            "the operands are float32",
            bool(floats) and set(floats.values()) == {"float32"},
            ", ".join(f"{name}: {dtype}" for name, dtype in floats.items()),
        )
    ]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    return {"precision": ["tf32x3"]}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    for call in match.data:
        said = _exact(call)
        assert said is not None
        kernel.replace(said, f'input_precision="{parameters["precision"]}"')


def _exact(call: ast.Call) -> ast.keyword | None:
    """The keyword that asks for products without tensor cores."""
    for keyword in call.keywords:
        value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
        if (keyword.arg, value) in (("input_precision", "ieee"), ("allow_tf32", False)):
            return keyword
    return None
