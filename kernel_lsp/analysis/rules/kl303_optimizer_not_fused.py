"""KL303: the optimizer updates parameters in many kernels where one pass would do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, ScriptRule, hit
from kernel_lsp.analysis.scripts import (
    FUSED_OPTIMIZERS,
    IMPLEMENTATION_ARGUMENTS,
    Script,
    has_star,
    is_literal,
    keyword,
)

_FUSED = frozenset(f"torch.optim.{name}" for name in FUSED_OPTIMIZERS)
# Who owns the step there decides about the variant: Lightning refuses to clip behind fused ones.
_OTHERS = re.compile(
    r"LightningModule|deepspeed|torch_xla|sparse=True|\bfused\s*=|[\"']fused[\"']|GradScaler|opacus|xla_model"
)


def _check(script: Script) -> Iterator[Hit]:
    for call, dotted in script.calls:
        if not (dotted or "").startswith("torch.optim.") or has_star(call):
            continue
        name = (dotted or "").rpartition(".")[2]
        if is_literal(keyword(call, "foreach"), False) and not is_literal(
            keyword(call, "fused"), True
        ):
            yield hit(
                call,
                f"{name}(foreach=False) launches several kernels for each parameter; the default "
                f"updates "
                "many parameters per kernel, and fused=True all of them in one pass where it is "
                "supported",
                optimizer=name,
            )
        elif dotted in _FUSED and _trains_on_cuda(script) and _is_left_open(call):
            yield hit(
                call,
                f"{name} reads and writes every parameter and state once per operation of its "
                f"formula; "
                "fused=True updates them in one pass on CUDA",
                optimizer=name,
            )


def _trains_on_cuda(script: Script) -> bool:
    if not script.training or not script.names_cuda:
        return False
    return _OTHERS.search(script.file.text) is None


def _is_left_open(call: ast.Call) -> bool:
    """No variant is chosen, and it is about the parameters of a model."""
    if not call.args or any(k.arg in IMPLEMENTATION_ARGUMENTS for k in call.keywords):
        return False
    return "param" in ast.unparse(call.args[0])


KL303 = ScriptRule(
    id="KL303",
    name="optimizer-not-fused",
    summary="the optimizer takes a slower variant than it has",
    severity="hint",
    check=_check,
)
