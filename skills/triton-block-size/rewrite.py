"""Another block size for an axis that the kernel cuts into masked pieces."""

from __future__ import annotations

from kernel_lsp.rewrite.kernels import heuristics
from kernel_lsp.rewrite.kernels.blocks import BlockParameter, adjustable
from kernel_lsp.rewrite.kernels.source import find_calls
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof

LARGEST_TILE = 256


def match(kernel: Kernel) -> list[KernelMatch]:
    found = [b for b in adjustable(kernel) if (b.places or b.decided) and len(b.choices()) > 1]
    if not found:
        return []
    names = ", ".join(block.name for block in found)
    return [KernelMatch(names, f"other block sizes: {names}", 0.15, data=tuple(found))]


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    return [
        one
        for block in match.data
        for one in (
            proof(f"{block.name} may have another value", True, _because(block)),
            proof(f"the grid follows {block.name}", True, f"in the launcher, {block.why}"),
            *([heuristics.proof_of(kernel, block.name)] if block.decided else []),
            proof(
                f"no result shows {block.name}",
                True,
                "no address or value comes from a block's number, nor from lanes of one block put "
                "together",
            ),
        )
    ]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    """The first guess: tiles of 128 by 128 by 32 for products, else twice of what there is."""
    multiplies = bool(find_calls(kernel.function, "dot"))
    found = {b.name: b.choices(_tile(b) if multiplies else 2 * b.value) for b in match.data}
    if multiplies:  # a tile of 512 by 512 lies in no register file
        found = {
            name: [size for size in sizes if size <= LARGEST_TILE] for name, sizes in found.items()
        }
    if all(
        choices[0] == block.value for block, choices in zip(match.data, found.values(), strict=True)
    ):
        first = match.data[0]
        others = [size for size in first.choices() if size != first.value]
        found[first.name] = [others[0], first.value, *others[1:]]
    return {name: list[object](choices) for name, choices in found.items()}


def _tile(block: BlockParameter) -> int:
    return 128 if block.of_grid else 32


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    for block in match.data:
        if parameters[block.name] != block.value:
            for place in block.places:
                kernel.replace(place, str(parameters[block.name]))
    changed = {b.name: parameters[b.name] for b in match.data if b.decided}
    heuristics.settle(
        kernel, {n: v for n, v in changed.items() if v != kernel.launched[0].constants[n]}
    )


def _because(block: BlockParameter) -> str:
    if block.masked:
        return "every load and store that depends on it is masked"
    return f"only divisors of {block.value} are tried, since an access without a mask relies on it"
