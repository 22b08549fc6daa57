"""KL229: a tensor built from Python numbers for each launch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.launches import LaunchExpression
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.records import TargetKind

_FROM_HOST = frozenset({"torch.tensor", "torch.from_numpy"})


def _check(site: RuleSite) -> Iterator[Hit]:
    for launch in site.launches:
        made = (_made_on_host(site, launch, given) for given in launch.arguments.values())
        first = next((tensor for tensor in made if tensor is not None), None)
        if first is not None:
            yield hit(
                first,
                "this tensor is built on the host and copied to the device at each launch, and "
                "the copy "
                "waits: pass the numbers themselves, or keep the tensor between calls",
            )


def _made_on_host(site: RuleSite, launch: LaunchExpression, given: ast.expr) -> ast.expr | None:
    """``torch.tensor(numbers, device=d)``, ``torch.tensor(numbers).cuda()``."""
    node = launch.resolve(given)
    is_moved = False
    while isinstance(node, ast.Call):
        if _is_made_of_numbers(site, node):
            return node if is_moved or _names_device(node) else None
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in (
            "to",
            "cuda",
            "contiguous",
        ):
            return None
        is_moved |= node.func.attr == "cuda" or (node.func.attr == "to" and _names_device(node))
        node = launch.resolve(node.func.value)
    return None


def _is_made_of_numbers(site: RuleSite, call: ast.Call) -> bool:
    """``torch.as_tensor`` leaves a tensor where it is, so it counts with numbers written out
    alone."""
    made = site.file.dotted(call.func)
    is_written = bool(call.args) and isinstance(call.args[0], ast.List | ast.Tuple | ast.ListComp)
    return made in _FROM_HOST or (made == "torch.as_tensor" and is_written)


def _names_device(call: ast.Call) -> bool:
    """A device that is not the host: ``device=x.device``, ``.to(x.device)``, ``"cuda"``."""
    given = [k.value for k in call.keywords if k.arg == "device"]
    given += [a for a in call.args if isinstance(a, ast.Attribute) and a.attr == "device"]
    return any(not (isinstance(d, ast.Constant) and d.value in ("cpu", None)) for d in given)


KL229 = Rule(
    id="KL229",
    name="tensor-created-at-launch",
    summary="a tensor built from Python numbers for each launch",
    severity="hint",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
