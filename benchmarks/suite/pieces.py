"""Pieces of models that the tables of training.py do not have: heads cut from one fused product and
normalized, rotated heads, images that are resampled, maxima with their places, products of a few
rows with weights of 8 and 4 bits, and bags of embeddings.

`python -m benchmarks.suite FOLDER --pieces` writes the files, and
`python -m benchmarks.training_times FOLDER --out FILE` times them. Forward and backward in half
precision, but for the products with stored weights, which are decoding steps."""

from __future__ import annotations

from benchmarks.suite.task import SuiteTask

DTYPES = ("bfloat16", "float16")
HEADS = """b, n, _ = x.shape
q, k, v = x.view(b, n, 3, {h}, {w}).permute(2, 0, 3, 1, 4).unbind(0)
return {norm}, {other}, v"""
LAYER = "F.layer_norm({x}, ({w},), self.weight, self.bias)"
RMS = "F.rms_norm({x}, ({w},), self.weight, 1e-6)"
ROTATED = """b, n, _ = x.shape
q, k, v = x.split(({h} * {w}, {h} * {w} // 4, {h} * {w} // 4), -1)
q = self.turn(F.rms_norm(q.view(b, n, {h}, {w}), ({w},), self.weight, 1e-6).transpose(1, 2))
k = self.turn(F.rms_norm(k.view(b, n, {h} // 4, {w}), ({w},), self.weight, 1e-6).transpose(1, 2))
return q, k, v"""
TURN = """
class Turn(nn.Module):
    def __init__(self, length, width, dtype):
        super().__init__()
        angles = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(0, width, 2) / width)
        angles = torch.cat((angles, angles), -1)
        self.register_buffer("cos", angles.cos().to(dtype))
        self.register_buffer("sin", angles.sin().to(dtype))

    def forward(self, x):
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat((-second, first), -1) * self.sin
"""
NORM = """self.weight = nn.Parameter(torch.ones({w}, dtype={d}))
self.bias = nn.Parameter(torch.zeros({w}, dtype={d}))"""
VITS = ((64, 577, 12, 64), (32, 1025, 16, 80))
DECODERS = ((2, 4096, 16, 128), (8, 2048, 32, 64))
IMAGES = ((8, 64, 128, 128), (16, 256, 32, 32), (32, 19, 64, 128))
RESIZED = {
    "bilinear": "F.interpolate(x, scale_factor=2, mode='bilinear', align_corners=False)",
    "bilinear_corners": "F.interpolate(x, scale_factor=2, mode='bilinear', align_corners=True)",
    "bilinear_x4": "F.interpolate(x, scale_factor=4, mode='bilinear')",
    "bicubic": "F.interpolate(x, scale_factor=2, mode='bicubic')",
}
MAXIMA = {
    "max_and_place": ("x.max(-1)[0]", (16, 8400, 80)),
    "max_of_points": ("x.max(2)[0]", (32, 1024, 4096)),
    "max_of_channels": ("x.max(1)[0]", (16, 151, 127, 129)),
}
BAGS = {
    "bag_sum": ("F.embedding_bag(x, self.w, mode='sum')", (200000, 128), (16384, 20)),
    "bag_mean": ("F.embedding_bag(x, self.w, mode='mean')", (1000000, 64), (65536, 8)),
    "embedding": ("F.embedding(x, self.w)", (50257, 768), (32, 1024)),
    "embedding_of_few": ("F.embedding(x, self.w)", (512, 1024), (64, 512)),
}
WEIGHTS = ((11008, 4096), (4096, 14336))
INT8 = """self.register_buffer("w", torch.randint(-127, 128, ({n}, {k}), dtype=torch.int8))
self.register_buffer("s", torch.rand({n}, dtype={d}) / 2000)"""
INT4 = """self.register_buffer("w", torch.randint(0, 256, ({n}, {k} // 2), dtype=torch.uint8))
self.register_buffer("s", torch.rand({n}, {k} // 128, 1, dtype={d}) / 200)"""
UNPACKED = """low, high = (self.w & 15).to(torch.int8) - 8, (self.w >> 4).to(torch.int8) - 8
w = torch.stack((low, high), -1).reshape({n}, {k} // 128, 128).to(x.dtype) * self.s
return F.linear(x, w.reshape({n}, {k}))"""


def tasks() -> list[SuiteTask]:
    """Every task; kinds take turns, so that the beginning of a run has all of them."""
    kinds = [_heads(), _rotated(), _resized(), _maxima(), _stored(), _looked_up()]
    turns = max(map(len, kinds))
    ordered = [kind[turn] for turn in range(turns) for kind in kinds if turn < len(kind)]
    return [
        SuiteTask(
            name=f"{number:02}_{task.name}", doc=task.doc, forward=task.forward,
            inputs=task.inputs, setup=task.setup, helpers=task.helpers, family=task.family,
        )
        for number, task in enumerate(ordered)
    ]  # fmt: skip


def _heads() -> list[SuiteTask]:
    made = []
    for index, (batch, length, heads, width) in enumerate(VITS):
        for name, norm in (("layer", LAYER), ("rms", RMS)):
            dtype = DTYPES[index % 2]
            both = [norm.format(x=x, w=width) for x in "qk"]
            forward = HEADS.format(h=heads, w=width, norm=both[0], other=both[1])
            made.append(
                SuiteTask(
                    name=f"head_{name}_norm_{batch}x{length}x{heads}x{width}_{dtype}",
                    doc=f"Queries and keys of one product, normalized, {dtype}.",
                    family="head_norm",
                    forward=forward,
                    inputs={"x": _given((batch, length, 3 * heads * width), dtype)},
                    setup=NORM.format(w=width, d=f"torch.{dtype}"),
                )
            )
    return made


def _rotated() -> list[SuiteTask]:
    return [
        SuiteTask(
            name=f"rotated_heads_{batch}x{length}x{heads}x{width}_bfloat16",
            doc="Queries and keys of one product, normalized and rotated, bfloat16.",
            family="head_rotary",
            forward=ROTATED.format(h=heads, w=width),
            inputs={"x": _given((batch, length, heads * width * 3 // 2), "bfloat16")},
            setup=f"{NORM.format(w=width, d='torch.bfloat16')}\n"
            f"self.turn = Turn({length}, {width}, torch.bfloat16)",
            helpers=TURN,
        )
        for batch, length, heads, width in DECODERS
    ]


def _resized() -> list[SuiteTask]:
    pairs = [(shape, kind) for shape in IMAGES for kind in RESIZED]
    trained = [
        SuiteTask(
            name=f"{kind}_{'x'.join(map(str, shape))}_{DTYPES[index % 2]}",
            doc=f"Images resampled, {kind.replace('_', ' ')}, {DTYPES[index % 2]}.",
            family="resampling",
            forward=RESIZED[kind],
            inputs={"x": _given(shape, DTYPES[index % 2])},
        )
        for index, (shape, kind) in enumerate(pairs)
    ]
    alone = [
        SuiteTask(
            name=f"{kind}_forward_8x64x128x128_bfloat16",
            doc=f"Images resampled, {kind}, bfloat16, forward alone.",
            family="resampling",
            forward=RESIZED[kind],
            inputs={"x": "torch.randn(8, 64, 128, 128, dtype=torch.bfloat16)"},
        )
        for kind in ("bilinear", "bicubic")
    ]
    return [*trained, *alone]


def _maxima() -> list[SuiteTask]:
    return [
        SuiteTask(
            name=f"{name}_{'x'.join(map(str, shape))}_bfloat16",
            doc="The largest along a dimension, bfloat16.",
            family="max_and_place",
            forward=forward,
            inputs={"x": _given(shape, "bfloat16")},
        )
        for name, (forward, shape) in MAXIMA.items()
    ]


def _stored() -> list[SuiteTask]:
    made = []
    for out, inner in WEIGHTS:
        for rows in (1, 4):
            for bits, setup, forward in (
                (8, INT8, "F.linear(x, self.w.to(x.dtype)) * self.s"),
                (4, INT4, UNPACKED.format(n=out, k=inner)),
            ):
                made.append(
                    SuiteTask(
                        name=f"int{bits}_{rows}x{inner}x{out}_bfloat16",
                        doc=f"A product of {rows} rows with weights of {bits} bits, bfloat16.",
                        family="stored_weight",
                        forward=forward,
                        inputs={"x": f"torch.randn({rows}, {inner}, dtype=torch.bfloat16)"},
                        setup=setup.format(n=out, k=inner, d="torch.bfloat16"),
                    )
                )
    return made


def _looked_up() -> list[SuiteTask]:
    return [
        SuiteTask(
            name=f"{name}_{'x'.join(map(str, shape))}_of_{table[0]}x{table[1]}_bfloat16",
            doc=f"Rows of a table of {table[0]} rows looked up, bfloat16.",
            family="lookup",
            forward=forward,
            inputs={"x": f"torch.randint(0, {table[0]}, {shape})"},
            setup=f"self.w = nn.Parameter(torch.randn({table[0]}, {table[1]}, dtype=torch.bfloat16))",
        )
        for name, (forward, table, shape) in BAGS.items()
    ]


def _given(shape: tuple[int, ...], dtype: str) -> str:
    sizes = ", ".join(map(str, shape))
    return f"torch.randn({sizes}, dtype=torch.{dtype}, requires_grad=True)"
