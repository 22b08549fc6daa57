"""One configuration at the launch instead of a list to choose from by measuring."""

from __future__ import annotations

import ast

from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof

DEFAULTS = {"num_ctas": 1}


def match(kernel: Kernel) -> list[KernelMatch]:
    """The one launch of a kernel that autotune configures; nothing where several launch it."""
    if _decorator(kernel) is None or not kernel.launched or not kernel.launched[0].configs:
        return []
    if len(kernel.source.launches()) != 1:
        return []
    return [
        KernelMatch("autotune", "launch with one configuration instead of choosing by measuring")
    ]


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    """Every configuration sets the same constants."""
    configs = kernel.launched[0].configs
    same = len({tuple(sorted(config)) for config in configs}) == 1
    return [
        proof("every configuration sets the same constants", same, f"{len(configs)} configurations")
    ]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    """`config`: the number of the configuration to keep, the first one first."""
    return {"config": list(range(len(kernel.launched[0].configs)))}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, int]) -> None:
    """Take the decorator away, and put the chosen configuration's constants and options into the
    launch."""
    chosen = kernel.launched[0].configs[parameters["config"]]
    entries = [f"{n}={v!r}" for n, v in chosen.items() if v is not None and v != DEFAULTS.get(n)]
    decorator = _decorator(kernel)
    assert decorator is not None
    text = kernel.text(kernel.function)
    kernel.replace(kernel.function, text.replace("@" + kernel.text(decorator), "", 1).lstrip())
    call = kernel.source.launches()[0].call
    last = [*call.args, *(k.value for k in call.keywords)][-1]
    kernel.replace(last, ", ".join([kernel.text(last), *entries]))


def _decorator(kernel: Kernel) -> ast.Call | None:
    """The outermost but for ``triton.heuristics``, which computes constants from the arguments of a
    launch: what else stands above it would see another kernel."""
    calls = (one for one in kernel.function.decorator_list if not _is_heuristics(one))
    first = next(calls)
    tunes = isinstance(first, ast.Call) and ast.unparse(first.func).endswith("autotune")
    return first if tunes and isinstance(first, ast.Call) else None


def _is_heuristics(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("heuristics")
