"""One warp, or half as many."""

from __future__ import annotations

from kernel_lsp.lineage.places import untuned_launch
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof


def match(kernel: Kernel) -> list[KernelMatch]:
    """The `num_warps` of an untuned launch, where it is above 1."""
    launch = untuned_launch(kernel)
    said = launch.keyword("num_warps") if launch else None
    if said is None or kernel.launched[0].options.get("num_warps") in (1, None):
        return []
    return [KernelMatch("num_warps", "fewer warps", data=said)]


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    """A block has work for each warp; true of whatever was launched."""
    one = kernel.launched[0]
    sizes = ", ".join(f"{n} = {v}" for n, v in one.constants.items() if type(v) is int)
    warps = one.options["num_warps"]
    return [
        proof("a block has work for each warp", True, f"{warps} warps for {sizes or 'one block'}")
    ]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    """`num_warps`: 1, then half of what it is."""
    now = kernel.launched[0].options["num_warps"]
    return {"num_warps": list(dict.fromkeys([1, now // 2]))}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, int]) -> None:
    """Write the chosen number into the launch."""
    kernel.replace(match.data, str(parameters["num_warps"]))
