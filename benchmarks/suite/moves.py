"""Pointwise work on tensors that are sliced, rolled, padded, flipped, repeated or joined, as models
write it, forward and backward.

`python -m benchmarks.suite FOLDER --moves` writes the files, and
`python -m benchmarks.training_times FOLDER --out FILE` times them. Three of four are in half
precision; families take turns, so that the beginning of a run is a fair sample. Not covered:
several devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from benchmarks.suite.task import SuiteTask

DTYPES = ("bfloat16", "float32", "bfloat16", "float16")
HEADS = [(8, 12, 1024, 64), (4, 32, 2048, 128)]
TOKENS = [(16, 1024, 3072), (8, 2048, 2048)]
ROWS = [(16384, 3072), (12345, 2049)]
IMAGES = [(64, 64, 112, 112), (16, 96, 160, 160)]
WINDOWS = [(32, 56, 56, 96), (16, 28, 28, 384)]
FEW_HEADS = [(4, 8, 2048, 128), (8, 4, 1024, 64)]
LENGTHS = [(16, 512, 4096), (8, 768, 8192)]
PATCHES = [(64, 3, 224, 224), (16, 96, 160, 160)]
MoveForm: TypeAlias = tuple[str, str, dict[str, str], Sequence[tuple[int, ...]]]
"""(name, expression, inputs, shapes). {0}, {1} … are sizes, {h} half of the last one, ``G`` stands
for "in the dtype, with gradients"."""
X = {"x": "torch.randn({s}, G)"}
XY = {**X, "y": "torch.randn({s}, G)"}
TABLES = {"cos": "torch.randn({2}, {3}, dtype={d})", "sin": "torch.randn({2}, {3}, dtype={d})"}
PAIRS = {"cos": "torch.randn({2}, {h}, dtype={d})", "sin": "torch.randn({2}, {h}, dtype={d})"}

FORMS: dict[str, Sequence[MoveForm]] = {
    "rotary": [
        ("halves", "x * cos + torch.cat((-x[..., {h}:], x[..., :{h}]), dim=-1) * sin",
         {**X, **TABLES}, HEADS),
        ("pairs", "a, b = x[..., ::2], x[..., 1::2]\n"
         "return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)",
         {**X, **PAIRS}, HEADS),
        ("pairs_turned", "turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).reshape(x.shape)\n"
         "return x * cos + turned * sin", {**X, **TABLES}, HEADS),
        ("complex", "turned = torch.view_as_complex(x.float().reshape({0}, {1}, {2}, {h}, 2)) * table\n"
         "return torch.view_as_real(turned).flatten(3).type_as(x)",
         {**X, "table": "torch.randn({2}, {h}, dtype=torch.complex64)"}, HEADS),
        ("part", "turn, rest = x[..., :{h}], x[..., {h}:]\n"
         "a, b = turn.chunk(2, dim=-1)\n"
         "return torch.cat((turn * cos + torch.cat((-b, a), dim=-1) * sin, rest), dim=-1)",
         {**X, **PAIRS}, HEADS),
    ],
    "difference": [
        ("columns", "x[..., 1:] - x[..., :-1]", X, ROWS),
        ("neighbors", "x[:, 1:] + x[:, :-1]", X, TOKENS),
        ("second", "x[:, 2:] - 2 * x[:, 1:-1] + x[:, :-2]", X, TOKENS),
        ("absolute", "(x[..., 1:, :] - x[..., :-1, :]).abs()", X, IMAGES),
        ("token_shift", "x + (F.pad(x, (0, 0, 1, -1)) - x) * self.weight", X, TOKENS),
        ("squares", "(x[:, :, 1:] - x[:, :, :-1]) ** 2", X, LENGTHS),
    ],
    "variation": [
        ("total", "(x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()",
         X, IMAGES),
        ("smoothness", "((x[:, 1:] - x[:, :-1]) ** 2).mean()", X, TOKENS),
        ("next_step", "((x[:, 1:] - y[:, :-1]) ** 2).sum()", XY, TOKENS),
    ],
    "roll_pad": [
        ("shifted_windows",
         "x = torch.roll(x, (-3, -3), (1, 2))\n"
         "x = x.view({0}, {1} // 7, 7, {2} // 7, 7, {3}).permute(0, 1, 3, 2, 4, 5)\n"
         "return x.reshape(-1, 49, {3})", X, WINDOWS),
        ("back_with_residual", "y + torch.roll(x, (3, 3), (1, 2))", XY, WINDOWS),
        ("roll_mix", "F.gelu(torch.roll(x, 1, 1)) * y", XY, TOKENS),
        ("padded_relu", "torch.relu(F.pad(x, (1, 1, 1, 1)))", X, IMAGES),
        ("causal_mix", "y * torch.sigmoid(F.pad(x, (3, 0))[..., :-3])", XY, LENGTHS),
        ("mirrored", "x + x.flip(-1)", X, LENGTHS),
        ("channel_shift",
         "h = F.pad(x[:, :{1} // 4], (1, -1)), F.pad(x[:, {1} // 4:{1} // 2], (-1, 1)), x[:, {1} // 2:]\n"
         "return torch.cat(h, dim=1)", X, IMAGES),
    ],
    "repeat": [
        ("heads", "x[:, :, None].expand(-1, -1, 4, -1, -1).reshape({0}, 4 * {1}, {2}, {3})", X, FEW_HEADS),
        ("heads_interleaved", "x.repeat_interleave(4, dim=1)", X, FEW_HEADS),
        ("heads_scaled", "x.repeat_interleave(4, dim=1) * y",
         {**X, "y": "torch.randn({0}, 4 * {1}, {2}, {3}, G)"}, FEW_HEADS),
        ("upsampled_skip",
         "x.repeat_interleave(2, dim=-1).repeat_interleave(2, dim=-2) + y",
         {**X, "y": "torch.randn({0}, {1}, 2 * {2}, 2 * {3}, G)"},
         [(32, 128, 56, 56), (16, 64, 80, 80)]),
    ],
    "layout": [
        ("split_heads", "(x * y).view({0}, {1}, -1, 64).transpose(1, 2).contiguous()", XY, TOKENS),
        ("merge_heads", "torch.sigmoid(x.transpose(1, 2).reshape({0}, {2}, -1)) * y",
         {**X, "y": "torch.randn({0}, {2}, {1} * {3}, G)"}, HEADS),
        ("patches",
         "x.view({0}, {1}, {2} // 4, 4, {3} // 4, 4).permute(0, 2, 4, 1, 3, 5).contiguous()", X, PATCHES),
        ("space_to_channels",
         "torch.cat((x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]), dim=1)",
         X, IMAGES),
        ("merge_patches",
         "torch.cat((x[:, ::2, ::2], x[:, 1::2, ::2], x[:, ::2, 1::2], x[:, 1::2, 1::2]), dim=-1)",
         X, WINDOWS),
        ("joined_activations", "torch.cat((torch.relu(x), torch.relu(-x)), dim=1)", X, IMAGES),
        ("channels_last", "F.silu(x).permute(0, 2, 3, 1).contiguous()", X, IMAGES),
    ],
}  # fmt: skip


def tasks() -> list[SuiteTask]:
    """Every form at every one of its shapes, families by turns."""
    drawn = {
        family: [(form, shape) for turn in range(2) for form in forms for shape in form[3][turn:][:1]]
        for family, forms in FORMS.items()
    }  # fmt: skip
    places = [
        ((place + 0.5) / len(rows), family, form, shape)
        for family, rows in drawn.items()
        for place, (form, shape) in enumerate(rows)
    ]
    ordered = sorted(places, key=lambda item: item[:2])
    return [
        _task(number, family, form, shape, DTYPES[number % len(DTYPES)])
        for number, (_, family, form, shape) in enumerate(ordered)
    ]


def _task(
    number: int, family: str, form: MoveForm, shape: tuple[int, ...], dtype: str
) -> SuiteTask:
    name, forward, inputs, _ = form
    setup = "self.weight = nn.Parameter(torch.randn({s[-1]}, dtype={d}))"
    weighted = "self.weight" in forward

    def fill(text: str) -> str:
        names = {str(index): str(size) for index, size in enumerate(shape)}
        names |= {"s": ", ".join(map(str, shape)), "h": str(shape[-1] // 2)}
        names |= {"d": f"torch.{dtype}", "s[-1]": str(shape[-1])}
        for key, value in names.items():
            text = text.replace(f"{{{key}}}", value)
        return text.replace(", G)", f", dtype=torch.{dtype}, requires_grad=True)")

    return SuiteTask(
        name=f"{number:02}_{family}_{name}_{'x'.join(map(str, shape))}_{dtype}",
        doc=f"{family.replace('_', ' ').capitalize()}: {name.replace('_', ' ')}, {dtype}, with "
        "its gradients.",
        family=family,
        forward=fill(forward),
        inputs={argument: fill(text) for argument, text in inputs.items()},
        setup=fill(setup) if weighted else "pass",
    )
