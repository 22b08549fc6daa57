"""Loads and stores without a word on what stays in the cache."""

from __future__ import annotations

from kernel_lsp.lineage.places import innermost, keywords, without_keywords
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof

NAMES = ("eviction_policy", "cache_modifier")


def match(kernel: Kernel) -> list[KernelMatch]:
    """All accesses that say what stays in the cache."""
    calls = innermost(list({id(call): call for call, _ in keywords(kernel, NAMES)}.values()))
    if not calls:
        return []
    return [KernelMatch(f"{len(calls)} accesses", "no word on what stays in the cache", data=calls)]


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    """Some tensors are read again and some are not; true of whatever says so."""
    said = sorted({kernel.text(keyword) for _, keyword in keywords(kernel, NAMES)})
    sizes = ", ".join(f"{name}: {p.shape}" for name, p in kernel.pointers().items())
    return [
        proof("some tensors are read again and some are not", True, f"{', '.join(said)} on {sizes}")
    ]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    """No choices: there is one way."""
    return {}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    """Take these keywords away."""
    for call in match.data:
        kernel.replace(call, without_keywords(kernel, call, NAMES))
