"""KL228: a launch that waits for the device to learn one of its arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.launches import LaunchExpression
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.source import walk
from kernel_lsp.records import TargetKind


def _check(site: RuleSite) -> Iterator[Hit]:
    reported: set[int] = set()
    for launch in site.launches:
        for given in (*launch.call.args, *(k.value for k in launch.call.keywords)):
            if isinstance(given, ast.Name) and _num_reads(launch, given.id) != 1:
                continue  # the host needs the number for something else as well
            for node in walk(launch.resolve(given)):
                if (
                    isinstance(node, ast.Call)
                    and _synchronizing(site, launch, node)
                    and id(node) not in reported
                ):
                    reported.add(id(node))
                    yield hit(
                        node,
                        ".item() waits until the device has finished everything before this "
                        "launch can be "
                        "queued: pass the tensor and load the value in the kernel",
                    )


def _num_reads(launch: LaunchExpression, name: str) -> int:
    names = [n for n in walk(launch.launcher) if isinstance(n, ast.Name) and n.id == name]
    return sum(isinstance(n.ctx, ast.Load) for n in names)


def _synchronizing(site: RuleSite, launch: LaunchExpression, node: ast.Call) -> bool:
    """``x.item()``; arguments mean another method of that name, and what the host made waits for
    nobody."""
    match node:
        case ast.Call(func=ast.Attribute(attr="item", value=value), args=[], keywords=[]):
            return not _is_of_the_host(site, launch, value)
    return False


def _is_of_the_host(site: RuleSite, launch: LaunchExpression, value: ast.expr) -> bool:
    """NumPy's, or a tensor made of Python numbers that no device is named for."""
    node = launch.resolve(value)
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        made = site.file.dotted(node.func) or "" if isinstance(node, ast.Call) else ""
        if made.startswith(("numpy.", "math.")):
            return True
        if made in ("torch.tensor", "torch.as_tensor", "torch.from_numpy") and isinstance(
            node, ast.Call
        ):
            return not any(k.arg in ("device", None) for k in node.keywords)
        inner = node.func if isinstance(node, ast.Call) else node.value
        node = launch.resolve(inner)
    return False


KL228 = Rule(
    id="KL228",
    name="host-sync-at-launch",
    summary="a launch argument that waits for the device",
    severity="hint",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
