"""KL321: autograd's search for NaNs is left on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, ScriptRule, argument, hit
from kernel_lsp.analysis.scripts import Script, is_literal

_SWITCH = "torch.autograd.set_detect_anomaly"
_CONTEXT = ("torch.autograd.detect_anomaly", "torch.autograd.anomaly_mode.detect_anomaly")


def _check(script: Script) -> Iterator[Hit]:
    if "detect_anomaly" not in script.file.text:
        return
    for call, dotted in script.calls:
        is_on = dotted in _CONTEXT or (
            dotted == _SWITCH and is_literal(argument(call, 0, "mode"), True)
        )
        if is_on and not any(
            isinstance(n, ast.If | ast.IfExp) for n in script.around(call) if not _is_main(n)
        ):
            yield hit(
                call,
                "anomaly detection records a stack trace for every operation and tests every "
                "gradient for "
                "NaN, which waits for the GPU; it is for the run that looks for the fault",
            )


def _is_main(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


KL321 = ScriptRule(
    id="KL321",
    name="anomaly-detection-on",
    summary="autograd's search for NaNs is left on",
    severity="hint",
    check=_check,
)
