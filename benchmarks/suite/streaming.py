"""Streaming work from 64 MB, forward alone (``streaming``), and pairs, triples and sums of vectors
in training (``trained``).

`python -m benchmarks.suite FOLDER --streaming` writes the files, and
`python -m benchmarks.training_times FOLDER --bytes --filter streaming` times each beside a kernel
that only moves as many bytes. Not covered: other gradients (training.py), sizes that fit into a
cache."""

from __future__ import annotations

from typing import TypeAlias

from benchmarks.suite.task import SuiteTask

SIZES = {"64MB": 2**26, "512MB": 2**29}
DTYPES = {"bfloat16": 2, "float32": 4}
X, XY = ("x",), ("x", "y")
NORM = "self.norm = nn.{}"
StreamingForms: TypeAlias = dict[str, tuple[str, tuple[str, ...], int, str]]
"""(expression, arguments, elements of a row, setup)."""
FORMS: StreamingForms = {
    "softmax_1k": ("torch.softmax(x, -1)", X, 1024, ""),
    "softmax_4k": ("torch.softmax(x, -1)", X, 4096, ""),
    "softmax_32k": ("torch.softmax(x, -1)", X, 32768, ""),
    "softmax_256k": ("torch.softmax(x, -1)", X, 262144, ""),
    "log_softmax_50k": ("F.log_softmax(x, -1)", X, 50264, ""),
    "softmax_scaled": ("torch.softmax(x * 0.125 + 1.0, -1)", X, 2048, ""),
    "layer_norm_1k": ("self.norm(x)", X, 1024, NORM.format("LayerNorm(1024)")),
    "layer_norm_8k": ("self.norm(x)", X, 8192, NORM.format("LayerNorm(8192)")),
    "residual_layer_norm": ("self.norm(x + y)", XY, 4096, NORM.format("LayerNorm(4096)")),
    "rms_norm": ("self.norm(x)", X, 4096, NORM.format("RMSNorm(4096)")),
    "sum_last": ("x.sum(-1)", X, 4096, ""),
    "sum_rows_over": ("x.sum(0)", X, 4096, ""),
    "mean_squares": ("(x * x).mean(-1)", X, 8192, ""),
    "squared_distance": ("((x - y) ** 2).sum(-1)", XY, 2048, ""),
    "logsumexp": ("torch.logsumexp(x, -1)", X, 32768, ""),
    "maximum": ("x.amax(-1)", X, 4096, ""),
    "mse": ("F.mse_loss(x, y)", XY, 4096, ""),
    "cosine": ("F.cosine_similarity(x, y, dim=-1)", XY, 1024, ""),
    "cumsum": ("torch.cumsum(x, -1)", X, 4096, ""),
    "silu_gate": ("F.silu(x) * y", XY, 4096, ""),
    "gelu": ("F.gelu(x + 1.0) * 0.5", X, 4096, ""),
    "halves": ("(lambda a, b: a * F.gelu(b))(*x.chunk(2, -1))", X, 8192, ""),
    "transposed": ("x.t().contiguous() * 2", X, 4096, ""),
    "concatenated": ("torch.cat([x, y], -1)", XY, 4096, ""),
    "shifted": ("x[:, 1:] - x[:, :-1]", X, 4096, ""),
}
XYZ = ("x", "y", "z")
TRAINED: StreamingForms = {
    "cosine": ("F.cosine_similarity(x, y, dim=-1)", XY, 1024, ""),
    "cosine_loss": ("(1 - F.cosine_similarity(x, y, dim=-1)).mean()", XY, 4096, ""),
    "pairwise": ("F.pairwise_distance(x, y)", XY, 768, ""),
    "triplet": ("F.triplet_margin_loss(x, y, z, margin=0.5)", XYZ, 1024, ""),
    "cumsum": ("torch.cumsum(x, -1)", X, 4096, ""),
    "cumsum_short": ("torch.cumsum(x, 1)", X, 512, ""),
    "cumsum_scaled": ("torch.cumsum(x * 0.5, -1) + x", X, 2048, ""),
}


def trained() -> list[SuiteTask]:
    """Forward and backward, in both dtypes."""
    return [
        _task(TRAINED, name, dtype, "64MB", ", requires_grad=True")
        for name in TRAINED
        for dtype in DTYPES
    ]


def tasks() -> list[SuiteTask]:
    return [
        _task(FORMS, name, dtype, size)
        for place, name in enumerate(FORMS)
        for turn, size in enumerate(SIZES)
        for dtype in [list(DTYPES)[(place + turn) % 2]]
    ]


def _task(forms: StreamingForms, name: str, dtype: str, size: str, more: str = "") -> SuiteTask:
    expression, arguments, row, setup = forms[name]
    rows = SIZES[size] // DTYPES[dtype] // row
    made = f"torch.randn({rows}, {row}, dtype=torch.{dtype}{more})"
    return SuiteTask(
        name=f"{list(forms).index(name):02}_{name}_{size}_{dtype}",
        doc=f"Streaming: {name.replace('_', ' ')}, {size} a tensor, {dtype}.",
        family="streaming",
        forward=expression,
        inputs=dict.fromkeys(arguments, made),
        setup=f"{setup}\nself.to(torch.{dtype})" if setup else "pass",
    )
