"""Launchers of kernels that draw a dropout's mask: the generator moves on as after torch's own, and
a backward computes the numbers again instead of reading a mask.

Where torch draws in another order (tensors that are not contiguous, sizes that 16 bytes do not
divide), while a CUDA graph is recorded and under torch.compile the original operations run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from torch import fx

from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.codegen.core.nodes import Unsupported
from kernel_lsp.rewrite.codegen.pointwise.dropping import is_dropping
from kernel_lsp.rewrite.codegen.regions.lower import LoweredRegion
from kernel_lsp.rewrite.generated import GeneratedSource
from kernel_lsp.rewrite.graph import Graph, has_effect


def require_order(
    graph: Graph, nodes: Sequence[fx.Node], lowered: LoweredRegion, before: fx.Node
) -> None:
    """Raises Unsupported where a launch before that node would draw in another order than the
    dropout in it: of its elements, or of the program's draws."""
    order = list(graph.fx.nodes)
    for node in filter(is_dropping, nodes):
        between = order[order.index(node) + 1 : order.index(before)]
        if any(has_effect(other) for other in between if other not in nodes):
            raise Unsupported("another draw stands between a dropout and what reads it")
        if lowered.order or any(o.inner is not None for o in lowered.region.operands):
            raise Unsupported("a dropout of what is not contiguous")


def forget(graph: Graph, dropouts: Iterable[fx.Node]) -> None:
    """Remove dropouts that a launch draws for: what draws is kept although nobody reads it."""
    for node in dropouts:
        graph.fx.erase_node(node)
        graph.drop_unused()


def with_draws(
    nodes: Sequence[fx.Node], lowered: LoweredRegion, forward: GeneratedSource, eager: str
) -> GeneratedSource:
    """A kernel that draws, without a backward, behind a launcher that looks whether it can.
    ``eager``: source of ``<name>_eager``, the original operations."""
    name = lowered.region.name
    definitions = [
        HELPERS,
        forward.definitions.replace(f"def {name}(", f"def {name}_forward("),
        eager,
        public_source(nodes, lowered, f"{name}_forward"),
    ]
    text = "\n\n".join(part.strip("\n") + "\n" for part in definitions)
    return replace(forward, definitions=text, has_effect=True)  # a call is never dropped


def public_source(nodes: Sequence[fx.Node], lowered: LoweredRegion, call: str) -> str:
    """The function that a program calls: it draws, or runs the original operations."""
    region = lowered.region
    name, given = region.name, source.given(region)
    wide = [o.name for o in region.operands if len(o.axes) == len(region.dims)]
    vector = next(16 // node.meta["val"].dtype.itemsize for node in nodes if is_dropping(node))
    return "\n".join(
        [
            f"def {name}({given}):",
            f"    if not can_draw({vector}, {', '.join(wide)}):",
            f"        return {name}_eager({given})",
            f"    return {call}({given}, next_draws({wide[0]}))",
            "",
        ]
    )


HELPERS = '''\
def can_draw(vector, *tensors):
    """Whether torch's dropout of such tensors would draw for whole vectors, in the order of memory."""
    first = tensors[0]
    if torch.compiler.is_compiling() or not first.is_cuda or torch.cuda.is_current_stream_capturing():
        return False
    whole = first.numel() % vector == 0 and first.shape[-1] % 4 == 0 and first.numel() < 2**31
    return whole and all(x.is_contiguous() and x.data_ptr() % 16 == 0 for x in tensors)


def next_draws(x):
    """Seed, turn and threads of what torch's dropout of x would draw; the generator goes on behind it."""
    generator = torch.cuda.default_generators[x.device.index]
    device, count = torch.cuda.get_device_properties(x.device), x.numel()
    most = device.multi_processor_count * (device.max_threads_per_multi_processor // 256)
    threads = 256 * min((count + 255) // 256, most)
    offset = generator.get_offset()
    if count > 0:
        generator.set_offset(offset + 4 * ((count - 1) // (4 * threads) + 1))
    return generator.initial_seed(), offset // 4, threads


def draw_again(drawn, eager):
    """``eager`` with what was drawn before; the generator stays where it is."""

    def run(*inputs):
        generator = torch.cuda.default_generators[inputs[0].device.index]
        before = generator.get_state()
        generator.manual_seed(drawn[0])
        generator.set_offset(4 * drawn[1])
        try:
            return eager(*inputs)
        finally:
            generator.set_state(before)

    return run
'''
