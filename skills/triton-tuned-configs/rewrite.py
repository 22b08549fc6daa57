"""One more configuration for a kernel that triton.autotune chooses for."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from kernel_lsp.rewrite.kernels.blocks import adjustable
from kernel_lsp.rewrite.kernels.source import find_calls
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof

LARGEST_TILE = 256
"""Of a product, along one axis."""
OPTIONS = {"num_warps": (1, 2, 4, 8, 16), "num_stages": (1, 2, 3, 4, 5)}


def match(kernel: Kernel) -> list[KernelMatch]:
    configs = kernel.source.configs()
    if configs is None or not kernel.launched or not kernel.launched[0].configs:
        return []
    count = len(kernel.launched[0].configs)
    return [
        KernelMatch(
            "autotune", f"a configuration beside the {count} that autotune chooses from", 0.1
        )
    ]


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    keys = {tuple(sorted(config)) for config in kernel.launched[0].configs}
    return [
        proof(
            "all configurations set the same constants",
            len(keys) == 1,
            "read from the decorator's list",
        ),
        proof(
            "autotune still chooses by measuring",
            True,
            "the list grows, so what was best before remains a choice",
        ),
    ]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    configs = kernel.launched[0].configs
    blocks = {block.name: block for block in adjustable(kernel)}
    multiplies = bool(find_calls(kernel.function, "dot"))
    found: dict[str, list[object]] = {}
    for name, now in configs[0].items():
        seen = sorted({config[name] for config in configs}, key=lambda value: value != now)
        if name in blocks:
            sizes = [
                size for size in blocks[name].choices() if size <= LARGEST_TILE or not multiplies
            ]
            found[name] = list(dict.fromkeys([*seen, *sizes]))
        elif name in OPTIONS and (name != "num_stages" or multiplies):
            found[name] = list(dict.fromkeys([*seen, *OPTIONS[name]]))
        elif name not in ("num_ctas", "num_stages"):
            found[name] = list(seen)
    return _new_first(found, configs)


def _new_first(
    found: dict[str, list[object]], configs: Sequence[dict[str, Any]]
) -> dict[str, list[object]]:
    """One more of what is in the list already would change nothing: the first guess is outside of
    it."""
    for name, choices in found.items():
        unseen = [value for value in choices if value not in {config[name] for config in configs}]
        if unseen:
            return {
                **found,
                name: [unseen[-1], *(value for value in choices if value != unseen[-1])],
            }
    return found


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, Any]) -> None:
    constants = {name: value for name, value in parameters.items() if name not in OPTIONS}
    options = "".join(f", {name}={parameters[name]}" for name in OPTIONS if name in parameters)
    made = f"{_config(kernel)}({constants!r}{options})".replace("'", '"')
    configs = kernel.source.configs()
    assert configs is not None
    if isinstance(configs, ast.List) and configs.elts:
        last = configs.elts[-1]
        indent = "\n" + " " * last.col_offset if last.lineno > configs.lineno else " "
        kernel.replace(last, f"{kernel.text(last)},{indent}{made}")
    else:
        said = kernel.text(configs)
        alone = isinstance(configs, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
        kernel.replace(configs, f"[*{said if alone else f'({said})'}, {made}]")


def _config(kernel: Kernel) -> str:
    """``triton.Config`` as the file writes it."""
    for decorator in kernel.function.decorator_list:
        if isinstance(decorator, ast.Call) and (said := ast.unparse(decorator.func)).endswith(
            "autotune"
        ):
            return said.removesuffix("autotune") + "Config"
    return "triton.Config"
