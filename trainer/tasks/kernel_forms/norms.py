"""Forms of norms as layers have them: with weights, with residuals, of groups, as a scale; and
gradients."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.tasks.kernel_forms.pieces import Draw, KernelForm, function, loop
from trainer.tasks.kernel_forms.row_pieces import (
    AT,
    LIKE,
    NARROW,
    ROW,
    SIZES,
    TWIN,
    WHOLE,
    launch_rows,
    loads,
    passing,
)

CENTERED = "c = tl.where(mask, x - mean, 0.0)"


@dataclass(frozen=True, kw_only=True, slots=True)
class _RowNorm:
    """How the statistics of a row are taken."""

    layer: bool
    """Its mean as well as its scale."""
    whole: bool
    """The row is one block."""
    once: bool
    """One pass over the blocks of a row gives all statistics."""

    def body(self, first: str, read: str, write: str) -> list[str]:
        """``first`` reads a row for the first time, ``read`` again."""
        if self.whole:
            return [*WHOLE, first, *self._of_block(), write]
        if self.layer and not self.once:
            return [
                "total = 0.0",
                passing(first, "total += tl.sum(x, axis=0)"),
                "mean = total / columns",
                "spread = 0.0",
                passing(read, CENTERED, "spread += tl.sum(c * c, axis=0)"),
                "scale = tl.rsqrt(spread / columns + 1e-5)",
                passing(read, write),
            ]
        layer = self.layer
        added = ["total += x"] * layer + ["squares += x * x"]
        less = " - mean * mean" * layer
        return [
            *["total = tl.zeros((BLOCK,), dtype=tl.float32)"] * layer,
            "squares = tl.zeros((BLOCK,), dtype=tl.float32)",
            passing(first, *added),
            *["mean = tl.sum(total, axis=0) / columns"] * layer,
            f"scale = tl.rsqrt(tl.sum(squares, axis=0) / columns{less} + 1e-5)",
            passing(read, write),
        ]

    def _of_block(self) -> list[str]:
        if not self.layer:
            return ["scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / columns + 1e-5)"]
        return [
            "mean = tl.sum(x, axis=0) / columns",
            CENTERED,
            "scale = tl.rsqrt(tl.sum(c * c, axis=0) / columns + 1e-5)",
        ]


def norm_weighted(d: Draw) -> KernelForm:
    """Layer or RMS norm with its weight; often of the sum with a residual, which may be written
    too."""
    layer, whole, residual = d.rng.random() < 0.5, d.rng.random() < 0.5, d.rng.random() < 0.5
    bias, once = layer and d.rng.random() < 0.7, d.rng.random() < 0.5
    kept = residual and d.rng.random() < 0.5
    names = ["x", *(["r"] if residual else []), "w", *(["b"] if bias else [])]
    read = loads("x", "r") + "x = x + r\n" if residual else loads("x")
    keep = f"tl.store(sum_ptr + {AT}, x, mask=mask)\n" if kept else ""
    parameters = loads(*names[names.index("w") :], at="column")
    scaled = "x * scale * w" if not layer else "(x - mean) * scale * w" + " + b" * bias
    write = f"tl.store(out_ptr + {AT}, {scaled}, mask=mask)"
    norm = _RowNorm(layer=layer, whole=whole, once=once)
    body = norm.body(read + keep, read, parameters + write)
    sizes = d.shape(*(NARROW if whole else SIZES))
    added_up = "(x + r)" if residual else "x"
    plain = f"(lambda v: v * torch.rsqrt((v * v).mean(1, True) + 1e-5) * w)({added_up})"
    if layer:
        plain = (
            f"torch.nn.functional.layer_norm({added_up}, w.shape, w, {'b' if bias else None}, 1e-5)"
        )
    pointers = ", ".join(f"{n}_ptr" for n in names)
    return KernelForm(
        kernel=function(
            f"kernel({pointers}, out_ptr, {'sum_ptr, ' * kept}columns, BLOCK: tl.constexpr)",
            ROW,
            *body,
        ),
        launcher=launch_rows(
            d,
            ", ".join(names),
            LIKE,
            whole,
            before="added = torch.empty_like(x)" * kept,
            passed=", added" * kept,
        ),
        inputs={
            n: (d.dtype, (sizes, TWIN) if n in "xr" else ((sizes[1],), (TWIN[1],))) for n in names
        },
        plain=plain,
    )


def _over_group(*parts: str) -> str:
    return loop(
        "start in range(0, size, BLOCK)",
        "place = start + tl.arange(0, BLOCK)",
        "mask = place < size",
        loads("x", at="first + place"),
        *parts,
    )


def group_norm(d: Draw) -> KernelForm:
    """Group norm of (N, C, L) in two passes, with weights by channel and sometimes SiLU."""
    groups, block = d.one(4, 8, 16), d.one(256, 512, 1024, 2048)
    sizes = d.shape((16, 256, 4096), (64, 128, 1024), (8, 512, 3136))
    silu = d.rng.random() < 0.4
    write = (
        "channel = group * (size // length) + place // length",
        loads("w", "b", at="channel"),
        "y = (x - mean) * scale * w + b",
        "y = y * tl.sigmoid(y)" if silu else "",
        "tl.store(out_ptr + first + place, y, mask=mask)",
    )
    plain = f"torch.nn.functional.group_norm(x, {groups}, w, b, 1e-5)"
    return KernelForm(
        kernel=function(
            "kernel(x_ptr, w_ptr, b_ptr, out_ptr, groups, size, length, BLOCK: tl.constexpr)",
            "pid = tl.program_id(0)",
            "group = pid % groups",
            "first = pid.to(tl.int64) * size",
            "total = tl.zeros((BLOCK,), dtype=tl.float32)",
            "squares = tl.zeros((BLOCK,), dtype=tl.float32)",
            _over_group("total += x", "squares += x * x"),
            "mean = tl.sum(total, axis=0) / size",
            "scale = tl.rsqrt(tl.sum(squares, axis=0) / size - mean * mean + 1e-5)",
            _over_group(*write),
        ),
        launcher=function(
            "launch(x, w, b)",
            "n, channels, length = x.shape",
            f"groups = {groups}",
            "size = channels // groups * length",
            "out = torch.empty_like(x)",
            f"kernel[(n * groups,)](x, w, b, out, groups, size, length, "
            f"BLOCK={block}{d.options()})",
            "return out",
        ),
        inputs={
            "x": (d.dtype, (sizes, (2, 16, 21))),
            **dict.fromkeys("wb", (d.dtype, ((sizes[1],), (16,)))),
        },
        plain=f"torch.nn.functional.silu({plain})" if silu else plain,
    )


def absmax(d: Draw) -> KernelForm:
    """Rows brought to one range, with their scales."""
    whole, top = d.rng.random() < 0.5, d.one(1, 127, 448)
    read = loads("x")
    write = f"tl.store(out_ptr + {AT}, x * scale, mask=mask)"
    if whole:
        body = [*WHOLE, read, "largest = tl.max(tl.abs(x), axis=0)"]
    elif d.rng.random() < 0.5:
        body = [
            "largest = 0.0",
            passing(read, "largest = tl.maximum(largest, tl.max(tl.abs(x), axis=0))"),
        ]
    else:
        body = ["seen = tl.zeros((BLOCK,), dtype=tl.float32)"]
        body += [
            passing(read, "seen = tl.maximum(seen, tl.abs(x))"),
            "largest = tl.max(seen, axis=0)",
        ]
    body += [
        f"scale = {float(top)} / tl.maximum(largest, 1e-6)",
        "tl.store(scale_ptr + row, 1.0 / scale)",
    ]
    sizes = d.shape(*(NARROW if whole else SIZES))
    return KernelForm(
        kernel=function(
            "kernel(x_ptr, out_ptr, scale_ptr, columns, BLOCK: tl.constexpr)",
            ROW,
            *body,
            *([write] if whole else [passing(read, write)]),
        ),
        launcher=launch_rows(
            d,
            "x",
            LIKE,
            whole,
            before="scale = torch.empty(rows, device=x.device, dtype=torch.float32)",
            passed=", scale",
        ),
        inputs={"x": (d.dtype, (sizes, TWIN))},
        plain=f"x * ({float(top)} / x.abs().amax(1, True))",
    )


GRADIENTS = {
    "softmax": ({"dot": "x * g"}, "x * (g - dot)", "x * (g - (x * g).sum(1, True))"),
    "log_softmax": ({"dot": "g"}, "g - tl.exp(x) * dot", "g - torch.exp(x) * g.sum(1, True)"),
    "rms": (
        {"dot": "x * g", "squares": "x * x"},
        "tl.rsqrt(squares / columns + 1e-5) * (g - x * dot / (squares + columns * 1e-5))",
        "(lambda s: (g - x * (x * g).mean(1, True) / s) * torch.rsqrt(s))((x * x).mean(1, True) "
        "+ 1e-5)",
    ),
    "standardize": (
        {"dot": "x * g", "mean": "g"},
        "g - mean / columns - x * (dot / columns)",
        "g - g.mean(1, True) - x * (x * g).mean(1, True)",
    ),
}
"""Name -> sums over a row of its result (or input) and the gradient, the gradient of its input,
PyTorch."""


def gradient(d: Draw) -> KernelForm:
    """The gradient of a normalization's input along rows (`GRADIENTS`), the row at once or in passes."""
    name = d.rng.choice(sorted(GRADIENTS))
    sums, written, plain = GRADIENTS[name]
    dtype = "f32" if name == "log_softmax" else d.dtype  # its results pass the range of float16
    whole, vector = d.rng.random() < 0.5, d.rng.random() < 0.5
    read, write = loads("x", "g"), f"tl.store(out_ptr + {AT}, {written}, mask=mask)"
    masked = {n: f"tl.sum(tl.where(mask, {v}, 0.0), axis=0)" for n, v in sums.items()}
    if whole:
        body = [*WHOLE, read, *(f"{n} = {v}" for n, v in masked.items()), write]
    elif vector:
        body = [f"{n}s = tl.zeros((BLOCK,), dtype=tl.float32)" for n in sums]
        body += [passing(read, *(f"{n}s += {v}" for n, v in sums.items()))]
        body += [*(f"{n} = tl.sum({n}s, axis=0)" for n in sums), passing(read, write)]
    else:
        body = [
            *(f"{n} = 0.0" for n in sums),
            passing(read, *(f"{n} += {v}" for n, v in masked.items())),
        ]
        body += [passing(read, write)]
    sizes = d.shape(*(NARROW if whole else SIZES))
    return KernelForm(
        kernel=function("kernel(x_ptr, g_ptr, out_ptr, columns, BLOCK: tl.constexpr)", ROW, *body),
        launcher=launch_rows(d, "x, g", LIKE, whole),
        inputs=dict.fromkeys(("x", "g"), (dtype, (sizes, TWIN))),
        plain=plain,
    )
