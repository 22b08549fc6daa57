"""KL314: gradients are scaled although bfloat16 has the range of float32."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, ScriptRule, hit
from kernel_lsp.analysis.scripts import Script, is_literal, keyword

_SCALERS = ("torch.cuda.amp.GradScaler", "torch.amp.GradScaler", "torch.GradScaler")
_AUTOCAST = ("torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast")
_HALF = re.compile(r"(?<!b)float16\b|\bfp16\b|\.half\(", re.IGNORECASE)


def _check(script: Script) -> Iterator[Hit]:
    casts = [call for call, _ in script.constructed(*_AUTOCAST)]
    if (
        not casts
        or not all(_is_bfloat16(script, call) for call in casts)
        or _HALF.search(script.file.text)
    ):
        return
    for call, _ in script.constructed(*_SCALERS):
        enabled = keyword(call, "enabled")
        if enabled is None or is_literal(enabled, True):
            yield hit(
                call,
                "bfloat16 has the range of float32 and needs no GradScaler, which checks every "
                "gradient at "
                "every step and waits for the answer",
            )


def _is_bfloat16(script: Script, call: ast.Call) -> bool:
    dtype = keyword(call, "dtype")
    return dtype is not None and script.file.dotted(dtype) == "torch.bfloat16"


KL314 = ScriptRule(
    id="KL314",
    name="scaler-with-bfloat16",
    summary="gradients of bfloat16 are scaled",
    severity="hint",
    check=_check,
)
