"""Eviction policies of loads: kept in the caches where they are read again, thrown out first where
not.

Which loads these are is read from their addresses: the program's numbers and the loops' variables
in them."""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import replace

from kernel_lsp.rewrite.kernels.source import find_calls
from kernel_lsp.rewrite.kernels.terms import Atom, TermCounts, TermReader, add_terms, key
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof

AGAIN, ONCE = "again", "once"
POLICIES = {AGAIN: "evict_last", ONCE: "evict_first"}
TAKEN = ("eviction_policy", "cache_modifier", "volatile")
"""Somebody has thought about this load already."""


def match(kernel: Kernel) -> list[KernelMatch]:
    if find_calls(kernel.function, "dot") or not kernel.launched:
        return []
    found = _uses(kernel)
    again = sum(1 for use in found.values() if use == AGAIN)
    if not again:
        return []
    summary = f"what is read again stays in the caches ({again} of {len(found)} loads)"
    return [KernelMatch(f"{len(found)} loads", summary, 0.03, data=found)]


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    return [
        proof(
            "results stay what they are",
            True,
            "a policy only says which lines a cache throws out first, for loads that have none yet",
        )
    ]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    """An empty policy leaves these loads as they are."""
    uses = set(match.data.values())
    return {use: [policy, ""] for use, policy in POLICIES.items() if use in uses}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    for load, use in match.data.items():
        if policy := parameters[use]:
            last = [*load.args, *(k.value for k in load.keywords)][-1]
            kernel.replace(last, f'{kernel.text(last)}, eviction_policy="{policy}"')


def _uses(kernel: Kernel) -> dict[ast.Call, str]:
    """Load -> whether its address is read again, by another program, another pass or another
    round."""
    reader = TermReader(kernel.function)
    axes = _axes(kernel)
    found: dict[ast.Call, str] = {}
    passed: dict[str, ast.Call] = {}
    loads = (call for call in find_calls(kernel.function, "load") if _is_free(call))
    for load in sorted(loads, key=lambda call: (call.lineno, call.col_offset)):
        address = reader.terms(load.args[0])
        atoms = {one for product in address for one in product}
        if not _is_block_of_one(kernel, atoms):
            continue
        asked = {one.key.split()[0] for one in atoms if one.kind == "program"}
        if not asked and axes:
            found[load] = AGAIN
        elif asked == axes:
            if earlier := passed.get(_in_any_loop(address)):
                found[earlier] = AGAIN
            passed[_in_any_loop(address)] = load
            found[load] = ONCE if _rounds(reader, load) <= atoms else AGAIN
    return found


def _is_block_of_one(kernel: Kernel, atoms: Collection[Atom]) -> bool:
    """A block of one tensor, at an address that is understood."""
    tensors = [one for one in atoms if one.key in kernel.pointers()]
    kinds = {one.kind for one in atoms}
    return len(tensors) == 1 and "other" not in kinds and "arange" in kinds


def _in_any_loop(address: TermCounts) -> str:
    """One text for addresses that differ in the loop alone, as those of two passes over a row
    do."""
    alike: TermCounts = {}
    for product, count in address.items():
        alike = add_terms(
            alike,
            {tuple(replace(one, key="") if one.kind == "loop" else one for one in product): count},
        )
    return key(alike)


def _axes(kernel: Kernel) -> set[str]:
    """Axes of the grid along which programs differ."""
    asked = (
        TermReader(kernel.function).terms(call)
        for call in find_calls(kernel.function, "program_id")
    )
    return {one.key for terms in asked for product in terms for one in product}


def _is_free(load: ast.Call) -> bool:
    inner = [call for call in find_calls(load, "load") if call is not load]
    return bool(load.args) and not inner and not any(k.arg in TAKEN for k in load.keywords)


def _rounds(reader: TermReader, node: ast.AST) -> set[Atom]:
    """Variables of the loops around a node."""
    found: set[Atom] = set()
    while node is not reader.function:
        node = reader.parent(node)
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            found |= {one for product in reader.terms(node.target, node.body[0]) for one in product}
    return found
