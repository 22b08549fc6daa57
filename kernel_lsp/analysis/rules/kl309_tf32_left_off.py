"""KL309: a training script multiplies float32 matrices on CUDA without TF32 and without
autocast."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, ScriptRule, hit
from kernel_lsp.analysis.scripts import Script, method

_DECIDED = re.compile(
    r"set_float32_matmul_precision|allow_tf32|fp32_precision|\bautocast|\bamp\b|float16|\.half\(|fp16|bf16"
    r"|GradScaler|Accelerator|deepspeed|Fabric|Lightning|mixed_precision|float64|\.double\(|get_dtype|args\.dtype|\bgym(nasium)?\b",
    re.IGNORECASE,
)
# Products that are large in any program, and linear layers with a dimension from 512 on.
_MULTIPLIES = re.compile(
    r"\bnn\.(Transformer\w*|MultiheadAttention|LSTM|GRU)\b|\btorch\.(matmul|bmm|einsum)\b|\bAutoModel\w*"
    r"|\bLinear\([^()]*\b(51[2-9]|5[2-9]\d|[6-9]\d\d|\d{4,5})\b"
)


def _check(script: Script) -> Iterator[Hit]:
    text = script.file.text
    if not script.names_cuda or _DECIDED.search(text) or not _MULTIPLIES.search(text):
        return
    if script.training and _is_entry(script) and (place := _choice_of_device(script)) is not None:
        yield hit(
            place,
            "matrix products of float32 run without tensor cores here; "
            'torch.set_float32_matmul_precision("high") lets them take TF32, with 10 bits of '
            "mantissa",
        )


def _is_entry(script: Script) -> bool:
    """The file is run itself: it decides about such switches."""
    if any(
        step.function is None and not isinstance(step.owner, ast.FunctionDef)
        for step in script.training
    ):
        return True
    return any(
        isinstance(n, ast.If) and "__name__" in ast.unparse(n.test) for n in script.file.tree.body
    )


def _choice_of_device(script: Script) -> ast.expr | None:
    """The first ``torch.device("cuda")``, ``"cuda"`` or ``model.cuda()``."""
    found: list[ast.expr] = [
        call
        for call, dotted in script.calls
        if (dotted == "torch.device" and "cuda" in ast.unparse(call)) or (method(call) == "cuda")
    ]
    found += [
        n
        for n in script.nodes
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and n.value.startswith("cuda")
    ]
    return min(found, key=lambda n: (n.lineno, n.col_offset), default=None)


KL309 = ScriptRule(
    id="KL309",
    name="tf32-left-off",
    summary="a float32 training script leaves TF32 off",
    severity="hint",
    check=_check,
)
