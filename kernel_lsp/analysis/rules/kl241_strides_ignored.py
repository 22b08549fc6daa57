"""KL241: a kernel that reads a tensor as if it were contiguous, and a launcher that does not make
sure."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from kernel_lsp.analysis.launches import LaunchExpression
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.source import walk, words
from kernel_lsp.analysis.targets import parameters
from kernel_lsp.records import TargetKind

# Any of these means that the launcher thought about the layout.
_LAYOUT = words(
    """
    stride strides contiguous is_contiguous reshape view flatten ravel clone as_strided memory_format
    movedim permute transpose unbind unsqueeze broadcast_tensors expand
    """
)


def _check(site: RuleSite) -> Iterator[Hit]:
    for launch in site.launches:
        if launch.launcher.decorator_list or _minds_layout(launch):
            continue
        plain = _plain_reads(site, launch)
        if not any(_is_elementwise(launch, given.id) for _, given in plain):
            continue
        if not _is_called_here(site, launch) and not _may_be_checked(site, launch):
            read = list(dict.fromkeys(given.id for _, given in plain))
            # torch.empty_like keeps the order of a transposed view, so that alone it stays right.
            what = "a slice" if len(read) == 1 else "a slice or one transposed view of several"
            yield hit(
                plain[0][1],
                f"{', '.join(read)}: read as if contiguous, so that {what} gives wrong results: "
                "call .contiguous(), or pass the strides",
                parameters=[name for name, _ in plain],
            )


def _untouched_tensors(launch: LaunchExpression) -> set[str]:
    given = (p for p in parameters(launch.launcher) if _is_tensor(p))
    return {p.arg for p in given if launch.is_untouched(p.arg)}


def _plain_reads(site: RuleSite, launch: LaunchExpression) -> list[tuple[str, ast.Name]]:
    """(pointer that the kernel only reads, the launcher's tensor that is passed for it)."""
    kernel, tensors = site.kernels[0], _untouched_tensors(launch)
    stored = {kernel.base(a.pointer) for a in kernel.accesses if not a.is_load}
    reads = {kernel.base(a.pointer) for a in kernel.accesses if a.is_load} - stored
    passed = [(name, launch.arguments.get(name)) for name in sorted(n for n in reads if n)]
    return [(n, e) for n, e in passed if isinstance(e, ast.Name) and e.id in tensors]


def _is_elementwise(launch: LaunchExpression, tensor: str) -> bool:
    """The launcher passes a result made like the tensor, and a number of elements."""
    is_made = is_counted = False
    for given in launch.arguments.values():
        match launch.resolve(given):
            case ast.Call(
                func=ast.Attribute(attr="empty_like" | "zeros_like"), args=[ast.Name(id=name), *_]
            ):
                is_made |= name == tensor
            case ast.Call(func=ast.Attribute(attr="numel")):
                is_counted = True
    return is_made and is_counted


def _minds_layout(launch: LaunchExpression) -> bool:
    return any(
        (isinstance(n, ast.Attribute) and n.attr in _LAYOUT)
        or (isinstance(n, ast.keyword) and n.arg in _LAYOUT)
        for n in walk(launch.launcher)
    )


def _is_called_here(site: RuleSite, launch: LaunchExpression) -> bool:
    """Another function of the file calls the launcher, and may have made the tensor contiguous."""
    name = launch.launcher.name
    return name.startswith("_") or any(
        isinstance(n, ast.Name | ast.Attribute)
        and (n.id if isinstance(n, ast.Name) else n.attr) == name
        for n in walk(site.file.tree)
        if n is not launch.launcher
    )


def _may_be_checked(site: RuleSite, launch: LaunchExpression) -> bool:
    """A function that is neither Python's nor torch's gets a tensor: perhaps it refuses what is
    not dense."""
    tensors = _untouched_tensors(launch)
    for call in (n for n in walk(launch.launcher) if isinstance(n, ast.Call)):
        if not any(isinstance(a, ast.Name) and a.id in tensors for a in call.args):
            continue
        made = site.file.dotted(call.func) or ""
        is_name = isinstance(call.func, ast.Name) and not hasattr(builtins, call.func.id)
        if (is_name or made) and not made.startswith(("torch.", "triton.")):
            return True
    return False


def _is_tensor(parameter: ast.arg) -> bool:
    return parameter.annotation is not None and ast.unparse(parameter.annotation).endswith("Tensor")


KL241 = Rule(
    id="KL241",
    name="strides-ignored",
    summary="a tensor read as if it were contiguous without making sure",
    severity="warning",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
