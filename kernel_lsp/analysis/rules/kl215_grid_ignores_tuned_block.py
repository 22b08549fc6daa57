"""KL215: a grid that is fixed before autotuning chooses the block size it must match."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import KernelFacts
from kernel_lsp.analysis.launches import Tuning
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.records import TargetKind


def _check(site: RuleSite) -> Iterator[Hit]:
    tuning = site.tuning
    if tuning is None:
        return
    kernel = site.kernels[0]
    tuned = _tuned_values(tuning) & _block_sizes(kernel)
    if not tuned or _covers_the_rest(kernel):
        return
    for launch in site.launches:
        grid = launch.resolve(launch.grid)
        if isinstance(grid, ast.Tuple | ast.List) and not tuned & launch.arguments.keys():
            name = min(tuned)
            yield hit(
                launch.call,
                f"the number of programs depends on {name}, which autotuning chooses later: "
                f'make the grid a function, lambda meta: (triton.cdiv(n, meta["{name}"]),)',
                parameter=name,
            )


def _tuned_values(tuning: Tuning) -> set[str]:
    """Values that written-out configurations set differently."""
    configs = tuning.configs or ()
    names = {name for config in configs for name in config.values}
    return {n for n in names if len({c.number(n) for c in configs} - {None}) > 1}


def _block_sizes(kernel: KernelFacts) -> set[str]:
    """B of ``program index * B``."""
    found: set[str] = set()
    for node in kernel.nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            for size, index in ((node.right, node.left), (node.left, node.right)):
                is_index = any(a.startswith("pid:") for a in kernel.atoms(index))
                if isinstance(size, ast.Name) and size.id in kernel.constexprs and is_index:
                    found.add(size.id)
    return found


def _covers_the_rest(kernel: KernelFacts) -> bool:
    """A loop that starts at the program's index, or that knows how many programs there are."""
    return any(name == "num_programs" for _, name in kernel.calls) or any(
        any(
            a.startswith("pid:")
            for a in kernel.atoms(loop.iter if isinstance(loop, ast.For) else loop.test)
        )
        for loop in kernel.loops
    )


KL215 = Rule(
    id="KL215",
    name="grid-ignores-tuned-block",
    summary="a fixed grid for a block size that autotuning chooses",
    severity="warning",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
