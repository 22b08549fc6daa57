"""KL212: a kernel tuned for its first size only, because the size is not in the autotune key."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import KernelFacts, names_in
from kernel_lsp.analysis.launches import LaunchExpression
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.source import walk
from kernel_lsp.records import TargetKind


def _check(site: RuleSite) -> Iterator[Hit]:
    tuning = site.tuning
    if tuning is None or not tuning.measures:
        return
    names = tuning.names("key")
    if names is None:
        return
    key = set(names)
    missing = [size for size in _sizes(site) if size not in key]
    if missing and not _is_derived(site, key, missing):
        sizes = " and ".join(missing)
        yield hit(
            tuning.arguments["key"],
            f"the configuration found for the first {sizes} is used for all: add {sizes} to the "
            f"autotune key",
            sizes=missing,
        )


def _sizes(site: RuleSite) -> list[str]:
    """Runtime arguments that bound a loop over tuned tiles: ``range(0, K, B)``, ``range(tl.cdiv(K,
    B))``."""
    kernel = site.kernels[0]
    passed = {name for launch in site.launches for name in launch.arguments}
    found: dict[str, None] = {}
    for loop in kernel.loops:
        if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Call):
            continue
        # A tile that a launch passes is not what autotuning chooses.
        if not (names_in(loop.iter) & kernel.constexprs) - passed:
            continue
        bound = loop.iter.args[1] if len(loop.iter.args) > 1 else next(iter(loop.iter.args), None)
        size = _size(kernel, bound) if bound is not None else None
        if size is not None and not _is_left_out_on_purpose(site, size):
            found[size] = None
    return list(found)


def _size(kernel: KernelFacts, bound: ast.expr) -> str | None:
    bound = kernel.resolve(bound)
    if kernel.called(bound) == "cdiv" and isinstance(bound, ast.Call) and bound.args:
        bound = bound.args[0]
    runtime = set(kernel.parameters) - kernel.constexprs
    return bound.id if isinstance(bound, ast.Name) and bound.id in runtime else None


def _is_left_out_on_purpose(site: RuleSite, size: str) -> bool:
    """``do_not_specialize`` names what changes with every call."""
    return any(
        isinstance(node, ast.Constant) and node.value == size
        for decorator in site.found.node.decorator_list
        for keyword in (decorator.keywords if isinstance(decorator, ast.Call) else ())
        if keyword.arg == "do_not_specialize"
        for node in walk(keyword.value)
    )


def _is_derived(site: RuleSite, key: set[str], missing: list[str]) -> bool:
    """A rounded or bucketed form of the size is in the key instead, or no launch tells."""
    for launch in site.launches:
        keyed = {
            ast.dump(node)
            for parameter in key & launch.arguments.keys()
            for node in _computed_from(launch, launch.arguments[parameter])
        }
        for size in missing:
            given = launch.arguments.get(size)
            if given is None or keyed & {ast.dump(given), ast.dump(launch.resolve(given))}:
                return True
    return not site.launches


def _computed_from(launch: LaunchExpression, given: ast.expr) -> Iterator[ast.AST]:
    """All parts of an argument, names of the launcher resolved."""
    for node in walk(launch.resolve(given)):
        yield node
        if isinstance(node, ast.Name):
            yield from walk(launch.resolve(node))


KL212 = Rule(
    id="KL212",
    name="autotune-key-incomplete",
    summary="a loop's bound that is missing from the autotune key",
    severity="hint",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
