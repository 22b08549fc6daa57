"""Where a skill nearly applies to a Triton kernel: what it looks for is there, and one
precondition fails.

Not covered: what matchers leave without a word, and how long anything takes (a kernel has no
estimate)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType

from kernel_lsp.records import NearMiss, Proof
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch
from kernel_lsp.rewrite.near_misses import MAX_REASONS, describe_unproved


def near_misses_of(kernel: Kernel, rewrites: Mapping[str, ModuleType]) -> tuple[NearMiss, ...]:
    """Those that would gain most first; lines are those of the program."""
    found = [miss for name, module in rewrites.items() for miss in _of_skill(kernel, name, module)]
    return tuple(miss for _, miss in sorted(found, key=lambda one: -one[0])[:MAX_REASONS])


def _of_skill(kernel: Kernel, name: str, module: ModuleType) -> list[tuple[float, NearMiss]]:
    """With what each would gain."""
    try:
        return [
            (m.benefit or 0.0, _miss(kernel, name, broken)) for m, broken in _single(kernel, module)
        ]
    except Exception:  # a skill is somebody's code; its note was made where it was matched
        return []


def _single(kernel: Kernel, module: ModuleType) -> Iterator[tuple[KernelMatch, Proof]]:
    for match in module.match(kernel):
        broken = [proof for proof in module.preconditions(kernel, match) if not proof.holds]
        if len(broken) == 1:
            yield match, broken[0]


def _miss(kernel: Kernel, skill: str, broken: Proof) -> NearMiss:
    line = kernel.function.lineno
    return NearMiss(
        op=kernel.source.kernel,
        missing=describe_unproved(broken),
        skill=skill,
        line=line,
        code=kernel.source.text.split("\n")[line - 1].strip(),
    )
