"""No loads ahead of their turn."""

from __future__ import annotations

from kernel_lsp.lineage.places import OPTIONS, loops, untuned_launch
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof


def match(kernel: Kernel) -> list[KernelMatch]:
    """The `num_stages` of an untuned launch, where it is above 1."""
    launch = untuned_launch(kernel)
    said = launch.keyword("num_stages") if launch else None
    if launch is None or said is None or kernel.launched[0].options.get("num_stages") in (1, None):
        return []
    return [KernelMatch("num_stages", "no loads ahead of their turn", data=said)]


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    """There is a loop, which loads what a later turn uses."""
    now = kernel.launched[0].options.get("num_stages", OPTIONS["num_stages"])
    said = f"{len(loops(kernel))} loops, {now} stages"
    return [proof("a loop loads what a later turn uses", bool(loops(kernel)), said)]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    """`num_stages`: 1 alone."""
    return {"num_stages": [1]}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, int]) -> None:
    """Write 1 into the launch."""
    kernel.replace(match.data, str(parameters["num_stages"]))
