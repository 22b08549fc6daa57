"""The function of a region that moves elements, behind torch.autograd.Function: PyTorch text around
its kernels."""

from __future__ import annotations

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.backward import kernels as backward
from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.codegen.core.body import UniqueNames
from kernel_lsp.rewrite.codegen.core.nodes import op_name
from kernel_lsp.rewrite.codegen.moving import complex_numbers
from kernel_lsp.rewrite.codegen.moving.jobs import PlannedKernel
from kernel_lsp.rewrite.codegen.moving.plan import MovedPlan


def eager_text(planned: MovedPlan, name: str) -> str:
    """The region as plain PyTorch."""
    region = planned.lowered.region
    names = {
        node: f"torch.view_as_complex({name})" if complex_numbers.is_complex(node) else name
        for node, name in zip(region.inputs, planned.lowered.names, strict=True)
    }
    lines = [f"def {name}_eager({', '.join(planned.lowered.names)}):"]
    lines.append('    """The same in PyTorch, for gradients of gradients."""')
    made, last = backward.statements(region.nodes, names)
    turned = f".permute({planned.lowered.order})" if planned.lowered.order else ""
    return "\n".join([*lines, *made, f"    return {last}{turned}", ""])


def function_text(planned: MovedPlan, name: str) -> str:
    """Source of the autograd Function: forward and backward call the kernels, and gradients of
    gradients go through PyTorch."""
    given = planned.lowered.names
    arguments = ", ".join(given)
    saved = arguments if len(given) > 1 else f"({arguments},)"
    calls = [
        *map(_call, planned.backward),
        *(f"        {one.statement}" for one in planned.sums),
        *map(_call, planned.last),
    ]
    wanted = {operand.name for operand in planned.wanted}
    made = {item: "grad" if item in planned.handed else f"grad_{item}" for item in wanted}
    results = [made.get(item, "None") for item in given]
    lines = [
        backward.AGAIN,
        "",
        f"class _{source.title(name)}(torch.autograd.Function):",
        f'    """{planned.doc} Its gradient is gathered from where elements went."""',
        "",
        "    @staticmethod",
        f"    def forward(ctx, {arguments}):",
        f"        ctx.save_for_backward({arguments})",
        f"        return {name}_forward({arguments})",
        "",
        "    @staticmethod",
        "    def backward(ctx, grad):",
        "        if torch.is_grad_enabled():  # create_graph=True: a kernel has no derivative of "
        "its own",
        f"            return differentiate_again(ctx, {name}_eager, grad)",
        f"        {saved} = ctx.saved_tensors",
        *calls,
        *backward.return_lines(results),
        "",
    ]
    return "\n".join(lines)


def _call(kernel: PlannedKernel) -> str:
    stored = ", ".join(output.name for output in kernel.job.outputs)
    return source.wrap_items(f"{stored} = {kernel.job.name}(", _given(kernel), ")", indent=" " * 8)


def _given(kernel: PlannedKernel) -> list[str]:
    return [tensor.operand.name for tensor in kernel.given]


def public_text(planned: MovedPlan, name: str) -> str:
    """Source of the function that the program calls: it applies the autograd Function."""
    arguments = ", ".join(planned.lowered.names)
    return f"def {name}({arguments}):\n    return _{source.title(name)}.apply({arguments})\n"


def sums_text(planned: MovedPlan, name: str) -> str:
    """The function that adds up what kernels have summed, where the result is a number."""
    lowered = planned.lowered
    region, names = lowered.region, dict(zip(lowered.region.inputs, lowered.names, strict=True))
    lines = [
        f"def {name}({', '.join(lowered.names)}):",
        f'    """{planned.doc}"""',
    ]
    taken = UniqueNames(lowered.names)
    nodes = iter(lowered.totals)
    for kernel in planned.forward:
        own = [next(nodes) for _ in kernel.job.totals]
        names |= {node: taken.fresh(f"{op_name(node)}_of_all") for node in own}
        made = ", ".join(names[node] for node in own)
        lines.append(f"    {made} = {kernel.job.name}({', '.join(_given(kernel))})")
    behind = [node for node in region.nodes if node not in names and _is_number(node)]
    rest, last = backward.statements(behind, names)
    return "\n".join([*lines, *rest, f"    return {last or names[region.out]}", ""])


def _is_number(node: fx.Node) -> bool:
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) and value.dim() == 0
