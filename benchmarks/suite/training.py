"""Training in half precision: operators by the bytes that real models spend on them, and chains.

`operators(seed)` and `chains(seed)` draw tasks from the tables below. A row of a table is a form
(one line of PyTorch); a task is a form at a shape, in a dtype, with gradients. `WEIGHTS` is the mean
of the two tables of bytes that were counted over published training traces (language models; vision,
detection, speech and recommendation), with plain products held to 15 %. The names of a group begin
with its order, in which families and dtypes take turns: each N-th task of a run (`--shard 1/N`) or
its beginning (`--limit-s`) is a fair sample. `python -m benchmarks.suite FOLDER` writes the files.

Three quarters are in half precision (bfloat16 mostly), which is also what models are trained in.
Not covered: whole models, int8 and float8 weights, programs of several devices."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from benchmarks.suite.task import SuiteTask

OPERATORS = 300
CHAINS = 120
MIN = 8
"""Tasks of the smallest family."""
WEIGHTS = {
    "pointwise": 24.2,
    "product": 12.3,
    "copy": 9.6,
    "activation": 9.2,
    "convolution": 7.2,
    "softmax": 6.7,
    "reduction": 3.8,
    "batch_norm": 3.7,
    "pool_pad": 1.9,
    "lookup": 1.4,
    "norm": 1.2,
    "loss": 0.9,
}
"""Share of the bytes, forward and backward. The smallest families are raised to `MIN` tasks."""
DTYPES = ("bfloat16", "float32", "bfloat16", "float16")
"""In turns within a family: three of four in half precision."""
CHAIN_DTYPES = ("bfloat16", "bfloat16", "autocast", "float16")

TaskShape = tuple[int, ...]
TrainingForm = tuple[str, str, dict[str, str], str, str]
"""(name, expression, inputs, setup, kind of shape). In inputs and setup {n}, {c} … are sizes, {d} is
the dtype and ``G`` stands for "in the dtype, with gradients"."""

ROWS: Sequence[TaskShape] = (
    (16384, 3072), (8192, 4096), (65536, 768), (8192, 16384), (12345, 2049), (4096, 11008),
)  # fmt: skip
TOKENS: Sequence[TaskShape] = (
    (16, 1024, 3072), (32, 512, 4096), (8, 2048, 2048), (64, 197, 768), (4, 4096, 5120),
)  # fmt: skip
IMAGES: Sequence[TaskShape] = (
    (64, 64, 112, 112), (32, 256, 56, 56), (16, 96, 160, 160), (128, 1536, 12, 12), (3, 256, 130, 130),
)  # fmt: skip
SCORES: Sequence[TaskShape] = (
    (16, 12, 512, 512), (8, 16, 1024, 1024), (4, 32, 1024, 1024), (48, 8, 384, 384),
)  # fmt: skip
CLASSES: Sequence[TaskShape] = ((8192, 30522), (4096, 50265), (2048, 128100), (16384, 1000))
DEEP: Sequence[TaskShape] = (
    (64, 64, 56, 56), (32, 128, 28, 28), (16, 256, 64, 64), (8, 512, 32, 32), (32, 96, 48, 48),
)  # fmt: skip
SQUARES: Sequence[TaskShape] = (
    (4096, 1024, 4096),
    (8192, 768, 3072),
    (2048, 4096, 4096),
    (16384, 512, 512),
)
HEADS: Sequence[TaskShape] = ((48, 512, 512, 64), (192, 512, 512, 64), (32, 1024, 1024, 64))
LENGTHS: Sequence[TaskShape] = ((16, 512, 4096), (8, 768, 8192), (32, 256, 3001))
VOLUMES: Sequence[TaskShape] = ((4, 32, 16, 64, 64), (2, 64, 24, 48, 48))
TABLES: Sequence[TaskShape] = ((50265, 768, 16384), (128100, 1536, 8192), (30522, 1024, 32768))
KINDS: dict[str, Sequence[TaskShape]] = {
    "rows": ROWS, "tokens": TOKENS, "images": IMAGES, "scores": SCORES, "classes": CLASSES,
    "deep": DEEP, "squares": SQUARES, "heads": HEADS, "lengths": LENGTHS, "volumes": VOLUMES,
    "tables": TABLES,
}  # fmt: skip

X = {"x": "torch.randn({s}, G)"}
XY = {**X, "y": "torch.randn({s}, G)"}
XYZ = {**XY, "z": "torch.randn({s}, G)"}
IDS = "torch.randint(0, {0}, ({2},))"


def _w(size: str = "{-1}", name: str = "weight") -> str:
    return f"self.{name} = nn.Parameter(torch.randn({size}, dtype={{d}}))"


FORMS: dict[str, Sequence[TrainingForm]] = {
    "pointwise": [
        ("residual", "x + y", XY, "", "tokens"),
        ("gate", "F.silu(x) * y", XY, "", "tokens"),
        ("scaled_residual", "x + self.weight * y", XY, _w(), "tokens"),
        ("bias_residual", "x + self.weight + y", XY, _w(), "rows"),
        ("dropout_residual", "x + F.dropout(y, 0.1)", XY, "", "tokens"),
        ("product", "x * y", XY, "", "rows"),
        ("three_terms", "x + y + z", XYZ, "", "tokens"),
        ("modulate", "x * (1 + self.weight) + self.bias", X, _w() + "\n" + _w(name="bias"), "tokens"),
        ("lerp", "torch.lerp(x, y, 0.3)", XY, "", "rows"),
        ("addcmul", "torch.addcmul(x, y, z, value=0.5)", XYZ, "", "rows"),
        ("masked_fill", "x.masked_fill(mask, 0.0) * 0.5",
         {**X, "mask": "torch.rand({s}) < 0.2"}, "", "scores"),
        ("add_mask", "x * 0.125 + mask",
         {**X, "mask": "torch.randn({0}, 1, 1, {-1}, dtype={d})"}, "", "scores"),
        ("where", "torch.where(mask, x, y)", {**XY, "mask": "torch.rand({s}) < 0.5"}, "", "rows"),
        ("soft_cap", "30.0 * torch.tanh(x / 30.0)", X, "", "scores"),
        ("clamped_exp", "torch.exp(x.clamp(-4, 4)) - y", XY, "", "rows"),
        ("squared_difference", "(x - y) ** 2", XY, "", "images"),
        ("image_gate", "x * torch.sigmoid(y)", XY, "", "images"),
        ("channel_scale", "x * self.weight[:, None, None] + self.bias[:, None, None]", X,
         _w("{1}") + "\n" + _w("{1}", "bias"), "images"),
        ("squeeze_excite", "x * torch.sigmoid(y)",
         {**X, "y": "torch.randn({0}, {1}, 1, 1, G)"}, "", "images"),
        ("float_inside", "(x.float() * torch.rsqrt(y.float() * y.float() + 1)).to(x.dtype)", XY, "", "rows"),
        ("rotate", "x * y[..., :1].cos() + x.flip(-1) * y[..., :1].sin()", XY, "", "tokens"),
        ("rotary", "torch.cat([x[..., {h}:] * -1, x[..., :{h}]], -1) * y + x * z",
         XYZ, "", "heads4"),
        ("divide", "x / (y.abs() + 1.0)", XY, "", "rows"),
        ("normal_sample", "x + torch.exp(0.5 * y) * z",
         {**XY, "z": "torch.randn({s}, dtype={d})"}, "", "rows"),
    ],
    "copy": [
        ("merge_heads", "x.transpose(1, 2).reshape({0}, {2}, -1)", X, "", "scores"),
        ("split_heads", "x.view({0}, {1}, 16, -1).transpose(1, 2).contiguous()", X, "", "tokens16"),
        ("cast_down", "x.to(torch.bfloat16)", {"x": "torch.randn({s}, requires_grad=True)"}, "", "rows"),
        ("cast_up", "x.float()", X, "", "rows"),
        ("concatenate", "torch.cat([x, y], dim=1)", XY, "", "images"),
        ("concatenate_rows", "torch.cat([x, y], dim=-1)", XY, "", "tokens"),
        ("channels_last", "x.permute(0, 2, 3, 1).contiguous()", X, "", "images"),
        ("transpose", "x.transpose(0, 1).contiguous() * 2", X, "", "rows"),
        ("chunk_gate", "(lambda a, b: a * F.gelu(b))(*x.chunk(2, -1))", X, "", "even"),
        ("slice_add", "x[:, 1:] + x[:, :-1]", X, "", "rows"),
        ("stack", "torch.stack([x, y], dim=1)", XY, "", "rows"),
        ("repeat_heads", "x[:, :, None].expand(-1, -1, 4, -1, -1).reshape({0}, -1, {2}, {3})", X, "", "few"),
        ("shift_window", "torch.roll(x, (-3, -3), (1, 2)).contiguous()", X, "", "images"),
        ("patches", "x.view({0}, {1}, {2} // 4, 4, {3} // 4, 4).permute(0, 2, 4, 1, 3, 5).contiguous()",
         X, "", "fours"),
    ],
    "softmax": [
        ("softmax", "torch.softmax(x, dim=-1)", X, "", "scores"),
        ("softmax_masked", "torch.softmax(x * 0.125 + mask, dim=-1)",
         {**X, "mask": "torch.randn({0}, 1, 1, {-1}, dtype={d})"}, "", "scores"),
        ("softmax_float", "torch.softmax(x, dim=-1, dtype=torch.float32).to(x.dtype)", X, "", "scores"),
        ("softmax_dropout", "F.dropout(torch.softmax(x, dim=-1), 0.1)", X, "", "scores"),
        ("log_softmax", "F.log_softmax(x, dim=-1)", X, "", "classes"),
        ("softmax_rows", "torch.softmax(x, dim=-1)", X, "", "rows"),
        ("softmax_channels", "torch.softmax(x, dim=1)", X, "", "images"),
    ],
    "activation": [
        ("gelu", "F.gelu(x)", X, "", "tokens"),
        ("gelu_tanh", "F.gelu(x, approximate='tanh')", X, "", "tokens"),
        ("gelu_by_hand", "0.5 * x * (1.0 + torch.tanh(0.79788456 * (x + 0.044715 * x ** 3)))", X, "", "tokens"),
        ("silu", "F.silu(x)", X, "", "images"),
        ("relu", "torch.relu(x)", X, "", "images"),
        ("bias_gelu", "F.gelu(x + self.weight)", X, _w(), "tokens"),
        ("squared_relu", "torch.relu(x) ** 2", X, "", "tokens"),
        ("hardswish", "x * F.relu6(x + 3) / 6", X, "", "images"),
        ("leaky_add", "F.leaky_relu(x + y, 0.1)", XY, "", "images"),
        ("quick_gelu", "x * torch.sigmoid(1.702 * x)", X, "", "tokens"),
        ("mish", "F.mish(x)", X, "", "images"),
        ("glu", "F.glu(x, dim=-1)", X, "", "even"),
        ("relu_residual", "torch.relu(x + y)", XY, "", "images"),
    ],
    "convolution": [
        ("conv3x3", "self.layer(x)", X, "self.layer = nn.Conv2d({1}, {1}, 3, padding=1)", "deep"),
        ("conv1x1", "self.layer(x)", X, "self.layer = nn.Conv2d({1}, 2 * {1}, 1, bias=False)", "deep"),
        ("strided", "self.layer(x)", X, "self.layer = nn.Conv2d({1}, {1}, 3, stride=2, padding=1)", "deep"),
        ("depthwise", "self.layer(x)", X, "self.layer = nn.Conv2d({1}, {1}, 5, padding=2, groups={1})", "deep"),
        ("grouped", "self.layer(x)", X, "self.layer = nn.Conv2d({1}, {1}, 3, padding=1, groups=8)", "deep"),
        ("conv1d", "self.layer(x)", X, "self.layer = nn.Conv1d({1}, {1}, 5, padding=2)", "lengths"),
        ("causal1d", "self.layer(x)", X, "self.layer = nn.Conv1d({1}, {1}, 4, padding=3, groups={1})", "lengths"),
        ("conv3d", "self.layer(x)", X, "self.layer = nn.Conv3d({1}, {1}, 3, padding=1)", "volumes"),
        ("transposed", "self.layer(x)", X,
         "self.layer = nn.ConvTranspose2d({1}, {1} // 2, 4, stride=2, padding=1)", "deep"),
        ("stem", "self.layer(x)", {"x": "torch.randn({0}, 3, 2 * {2}, 2 * {3}, dtype={d})"},
         "self.layer = nn.Conv2d(3, 64, 7, stride=2, padding=3)", "deep"),
    ],
    "reduction": [
        ("sum_rows_over", "x.sum(0)", X, "", "rows"),
        ("sum_last", "x.sum(-1)", X, "", "rows"),
        ("mean_middle", "x.mean(1)", X, "", "tokens"),
        ("mean_spatial", "x.mean((2, 3))", X, "", "images"),
        ("sum_all_but_channels", "x.sum((0, 2, 3))", X, "", "images"),
        ("max_middle", "x.amax(1)", X, "", "tokens"),
        ("max_with_places", "x.max(-1).values", X, "", "rows"),
        ("argmax", "torch.argmax(x, -1)", {"x": "torch.randn({s}, dtype={d})"}, "", "rows"),
        ("argmin_middle", "torch.argmin(x, 1)", {"x": "torch.randn({s}, dtype={d})"}, "", "tokens"),
        ("variance", "x.var(-1)", X, "", "rows"),
        ("logsumexp", "torch.logsumexp(x, -1)", X, "", "classes"),
        ("norm_all", "torch.linalg.vector_norm(x)", X, "", "rows"),
        ("product_last", "x.prod(-1)", {"x": "(1 + 0.01 * torch.randn({s})).to({d}).requires_grad_()"},
         "", "rows"),
        ("matrix_vector", "x @ self.weight", X, _w(), "rows"),
        ("cumsum", "torch.cumsum(x, -1)", X, "", "rows"),
        ("masked_mean", "(x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)",
         {**X, "mask": "torch.ones({0}, {1}, dtype={d})"}, "", "tokens"),
    ],
    "batch_norm": [
        ("train", "self.norm(x)", X, "self.norm = nn.BatchNorm2d({1})", "images"),
        ("train_relu", "torch.relu(self.norm(x))", X, "self.norm = nn.BatchNorm2d({1})", "images"),
        ("train_residual", "torch.relu(self.norm(x) + y)", XY, "self.norm = nn.BatchNorm2d({1})", "images"),
        ("train_rows", "self.norm(x)", X, "self.norm = nn.BatchNorm1d({1})", "rows"),
        ("train_lengths", "F.gelu(self.norm(x))", X, "self.norm = nn.BatchNorm1d({1})", "lengths"),
    ],
    "pool_pad": [
        ("max_pool", "F.max_pool2d(x, 3, 2, 1)", X, "", "images"),
        ("avg_pool", "F.avg_pool2d(x, 2)", X, "", "images"),
        ("global_pool", "F.adaptive_avg_pool2d(x, 1)", X, "", "images"),
        ("reflect", "F.pad(x, (1, 1, 1, 1), mode='reflect')", X, "", "images"),
        ("zeros", "F.pad(x, (1, 1, 1, 1))", X, "", "images"),
        ("nearest", "F.interpolate(x, scale_factor=2.0)", X, "", "deep"),
        ("bilinear", "F.interpolate(x, scale_factor=2.0, mode='bilinear')", X, "", "deep"),
        ("pixel_shuffle", "F.pixel_shuffle(x, 2)", X, "", "deep"),
    ],
    "lookup": [
        ("embedding", "F.embedding(ids, self.weight)", {"ids": IDS}, _w("{0}, {1}"), "tables"),
        ("embedding_position", "F.embedding(ids, self.weight) + self.place",
         {"ids": "torch.randint(0, {0}, (16, {2} // 16))"},
         _w("{0}, {1}") + "\n" + _w("{2} // 16, {1}", "place"), "tables"),
        ("embedding_bag", "F.embedding_bag(ids, self.weight, mode='sum')",
         {"ids": "torch.randint(0, {0}, ({2} // 16, 16))"}, _w("{0}, {1}"), "tables"),
        ("index_select", "x.index_select(0, ids)",
         {"x": "torch.randn({0}, {1}, G)", "ids": IDS}, "", "tables"),
        ("gather", "x.gather(-1, ids)",
         {**X, "ids": "torch.randint(0, {-1}, ({0}, 64))"}, "", "rows"),
        ("index_add", "torch.zeros_like(x).index_add(0, ids, x)",
         {**X, "ids": "torch.randint(0, {0}, ({0},))"}, "", "rows"),
    ],
    "norm": [
        ("layer_norm", "self.norm(x)", X, "self.norm = nn.LayerNorm({-1})", "tokens"),
        ("rms_norm", "F.rms_norm(x, ({-1},), self.weight)", X, _w(), "tokens"),
        ("rms_by_hand", "self.weight * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True)"
         " + 1e-6)).to(x.dtype)", X, _w(), "tokens"),
        ("residual_layer_norm", "self.norm(x + y)", XY, "self.norm = nn.LayerNorm({-1})", "tokens"),
        ("group_norm", "self.norm(x)", X, "self.norm = nn.GroupNorm(16, {1})", "images"),
        ("group_norm_silu", "F.silu(self.norm(x))", X, "self.norm = nn.GroupNorm(16, {1})", "images"),
        ("channel_norm", "F.normalize(x, dim=1)", X, "", "images"),
        ("channel_rms", "x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6) * self.weight[:, None, None]",
         X, _w("{1}"), "images"),
    ],
    "loss": [
        ("cross_entropy", "F.cross_entropy(x, y)", {**X, "y": "torch.randint(0, {1}, ({0},))"}, "", "classes"),
        ("cross_entropy_float", "F.cross_entropy(x.float(), y)",
         {**X, "y": "torch.randint(0, {1}, ({0},))"}, "", "classes"),
        ("smoothed", "F.cross_entropy(x, y, label_smoothing=0.1)",
         {**X, "y": "torch.randint(0, {1}, ({0},))"}, "", "classes"),
        ("mse", "F.mse_loss(x, y)", XY, "", "rows"),
        ("smooth_l1", "F.smooth_l1_loss(x, y)", XY, "", "rows"),
        ("bce", "F.binary_cross_entropy_with_logits(x, y)",
         {**X, "y": "torch.rand({s}).to({d})"}, "", "rows"),
        ("kl", "F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction='batchmean')",
         {**X, "y": "torch.randn({s}, dtype={d})"}, "", "classes"),
        ("cosine", "(1 - F.cosine_similarity(x, y, dim=-1)).mean()", XY, "", "rows"),
        ("triplet", "F.triplet_margin_loss(x, y, z)", XYZ, "", "rows"),
    ],
    "product": [
        ("linear", "self.layer(x)", {"x": "torch.randn({0}, {1}, G)"},
         "self.layer = nn.Linear({1}, {2})", "squares"),
        ("linear_bare", "F.linear(x, self.weight)", {"x": "torch.randn({0}, {1}, G)"},
         _w("{2}, {1}"), "squares"),
        ("scores", "torch.bmm(x, y.transpose(1, 2))",
         {"x": "torch.randn({0}, {1}, {3}, G)", "y": "torch.randn({0}, {2}, {3}, G)"}, "", "heads"),
        ("mixed", "torch.bmm(x, y)",
         {"x": "torch.randn({0}, {1}, {2}, G)", "y": "torch.randn({0}, {2}, {3}, G)"}, "", "heads"),
        ("matmul", "x @ y", {"x": "torch.randn({0}, {1}, G)", "y": "torch.randn({1}, {2}, G)"}, "", "squares"),
    ],
}  # fmt: skip
KINDS |= {
    "heads4": [(8, 12, 1024, 64), (4, 32, 2048, 128), (16, 16, 512, 64)],
    "tokens16": [(16, 1024, 1024), (8, 2048, 2048), (32, 512, 768)],
    "even": [(16384, 6144), (8, 2048, 8192), (65536, 1536)],
    "few": [(4, 8, 2048, 128), (8, 4, 1024, 64)],
    "fours": [(64, 64, 112, 112), (16, 96, 160, 160), (32, 3, 224, 224)],
}

ATTENTION = """
def turn(x):
    left, right = x.chunk(2, dim=-1)
    return torch.cat([-right, left], dim=-1)
"""
VOCABULARY: Sequence[TaskShape] = (
    (4096, 2048, 32000),
    (8192, 1024, 50257),
    (2048, 4096, 65536),
    (8192, 4096, 131072),
)
MIXERS: Sequence[TaskShape] = ((8, 1024, 1024), (16, 512, 768), (4, 2048, 2048), (32, 256, 1280))
KINDS |= {"vocabulary": VOCABULARY, "mixers": MIXERS}
QKV = dict.fromkeys("qkv", "torch.randn({s}, G)")
RMS = "x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype) * self.weight"

CHAIN_FORMS: dict[str, Sequence[TrainingForm]] = {
    "norm_linear": [
        ("layer_norm", "self.layer(self.norm(x))", X,
         "self.norm, self.layer = nn.LayerNorm({-1}), nn.Linear({-1}, {-1})", "mixers"),
        ("rms", f"self.layer({RMS})", X, _w() + "\nself.layer = nn.Linear({-1}, 2 * {-1}, bias=False)", "mixers"),
        ("layer_norm_gelu", "F.gelu(self.layer(self.norm(x)))", X,
         "self.norm, self.layer = nn.LayerNorm({-1}), nn.Linear({-1}, 4 * {-1})", "mixers"),
    ],
    "residual_norm": [
        ("layer_norm", "self.norm(x + y)", XY, "self.norm = nn.LayerNorm({-1})", "tokens"),
        ("both", "h = x + y\nreturn h, self.norm(h)", XY, "self.norm = nn.LayerNorm({-1})", "tokens"),
        ("rms", "x = x + y\nreturn x, " + RMS, XY, _w(), "tokens"),
        ("dropout", "self.norm(x + self.drop(y))", XY,
         "self.norm, self.drop = nn.LayerNorm({-1}), nn.Dropout(0.1)", "tokens"),
        ("scaled", "self.norm(x * 0.5 + self.weight * y)", XY, _w() + "\nself.norm = nn.LayerNorm({-1})", "tokens"),
    ],
    "gate": [
        ("swiglu", "self.down(F.silu(self.gate(x)) * self.up(x))", X,
         "self.gate, self.up, self.down = (nn.Linear({-1}, 2 * {-1}, bias=False), "
         "nn.Linear({-1}, 2 * {-1}, bias=False), nn.Linear(2 * {-1}, {-1}, bias=False))", "mixers"),
        ("geglu", "a, b = self.up(x).chunk(2, dim=-1)\nreturn a * F.gelu(b)", X,
         "self.up = nn.Linear({-1}, 4 * {-1})", "mixers"),
        ("pair", "F.gelu(x, approximate='tanh') * y", XY, "", "tokens"),
        ("sigmoid_residual", "z + torch.sigmoid(x) * torch.tanh(y)", XYZ, "", "tokens"),
        ("mlp", "x + self.down(F.gelu(self.up(x)))", X,
         "self.up, self.down = nn.Linear({-1}, 4 * {-1}), nn.Linear(4 * {-1}, {-1})", "mixers"),
    ],
    "attention": [
        ("masked", "scores = q @ k.transpose(-2, -1) * {-1} ** -0.5 + mask\n"
         "return torch.softmax(scores, dim=-1) @ v",
         {**QKV, "mask": "torch.zeros({0}, 1, 1, {2}, dtype={d})"}, "", "heads4"),
        ("causal", "hidden = torch.ones({2}, {2}, dtype=torch.bool, device=q.device).triu(1)\n"
         "scores = (q @ k.transpose(-2, -1) * {-1} ** -0.5).masked_fill(hidden, float('-inf'))\n"
         "return torch.softmax(scores, dim=-1) @ v", QKV, "", "heads4"),
        ("float_softmax", "scores = q @ k.transpose(-2, -1) / {-1} ** 0.5 + mask\n"
         "return torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype) @ v",
         {**QKV, "mask": "torch.zeros({0}, 1, 1, {2}, dtype={d})"}, "", "heads4"),
        ("rotary", "q, k = q * cos + turn(q) * sin, k * cos + turn(k) * sin\n"
         "return F.scaled_dot_product_attention(q, k, v, is_causal=True)",
         {**QKV, "cos": "torch.randn({2}, {3}, dtype={d})", "sin": "torch.randn({2}, {3}, dtype={d})"},
         "", "heads4"),
        ("rotate_only", "return q * cos + turn(q) * sin, k * cos + turn(k) * sin",
         {"q": QKV["q"], "k": QKV["k"], "cos": "torch.randn({2}, {3}, dtype={d})",
          "sin": "torch.randn({2}, {3}, dtype={d})"}, "", "heads4"),
    ],
    "conv_norm": [
        ("relu", "torch.relu(self.norm(self.layer(x)))", X,
         "self.layer, self.norm = nn.Conv2d({1}, {1}, 3, padding=1, bias=False), nn.BatchNorm2d({1})", "deep"),
        ("residual", "torch.relu(self.norm(self.layer(x)) + x)", X,
         "self.layer, self.norm = nn.Conv2d({1}, {1}, 3, padding=1, bias=False), nn.BatchNorm2d({1})", "deep"),
        ("group_silu", "self.layer(F.silu(self.norm(x)))", X,
         "self.layer, self.norm = nn.Conv2d({1}, {1}, 3, padding=1), nn.GroupNorm(16, {1})", "deep"),
        ("expand", "F.relu6(self.norm(self.layer(x)))", X,
         "self.layer, self.norm = nn.Conv2d({1}, 4 * {1}, 1, bias=False), nn.BatchNorm2d(4 * {1})", "deep"),
        ("depthwise", "F.hardswish(self.norm(self.layer(x)))", X,
         "self.layer, self.norm = nn.Conv2d({1}, {1}, 3, padding=1, groups={1}, bias=False), "
         "nn.BatchNorm2d({1})", "deep"),
    ],
    "linear_cross_entropy": [
        ("plain", "F.cross_entropy(self.head(x), y)",
         {"x": "torch.randn({0}, {1}, G)", "y": "torch.randint(0, {2}, ({0},))"},
         "self.head = nn.Linear({1}, {2}, bias=False)", "vocabulary"),
        ("float", "F.cross_entropy(self.head(x).float(), y)",
         {"x": "torch.randn({0}, {1}, G)", "y": "torch.randint(0, {2}, ({0},))"},
         "self.head = nn.Linear({1}, {2}, bias=False)", "vocabulary"),
        ("shifted", "logits = self.head(x)\n"
         "return F.cross_entropy(logits[:, :-1].reshape(-1, {2}), y[:, 1:].reshape(-1))",
         {"x": "torch.randn(8, {0} // 8, {1}, G)", "y": "torch.randint(0, {2}, (8, {0} // 8))"},
         "self.head = nn.Linear({1}, {2}, bias=False)", "vocabulary"),
        ("biased", "F.cross_entropy(self.head(x), y, label_smoothing=0.1)",
         {"x": "torch.randn({0}, {1}, G)", "y": "torch.randint(0, {2}, ({0},))"},
         "self.head = nn.Linear({1}, {2})", "vocabulary"),
    ],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _SuiteRow:
    family: str
    form: TrainingForm
    shape: TaskShape
    dtype: str
    """Of the tensors; ``autocast``: float32 ones, which autocast takes to bfloat16."""

    @property
    def stored(self) -> str:
        return "float32" if self.dtype == "autocast" else self.dtype


def operators(seed: int = 0, count: int = OPERATORS) -> list[SuiteTask]:
    """Single operators, forward and backward, by their families' weights."""
    counts = _shares(WEIGHTS, count)
    drawn = {family: _draw(family, FORMS[family], n, seed) for family, n in counts.items()}
    return _numbered(_by_turns(drawn))


def chains(seed: int = 0, count: int = CHAINS) -> list[SuiteTask]:
    """Chains as they stand in models; each kind as often as the others, all in half precision."""
    counts = _shares(dict.fromkeys(CHAIN_FORMS, 1.0), count)
    drawn = {
        family: _draw(family, CHAIN_FORMS[family], n, seed, CHAIN_DTYPES)
        for family, n in counts.items()
    }
    return _numbered(_by_turns(drawn))


def _shares(weights: dict[str, float], count: int) -> dict[str, int]:
    """``count`` divided by weight, each family with `MIN` at least; the rest goes to the largest
    remainders."""
    total = sum(Fraction(weight) for weight in weights.values())
    exact = {name: Fraction(weight) * count / total for name, weight in weights.items()}
    made = {name: max(min(MIN, count // len(weights)), int(n)) for name, n in exact.items()}
    order = sorted(weights, key=lambda name: exact[name] - made[name], reverse=True)
    while sum(made.values()) != count:
        short = sum(made.values()) < count
        step = 1 if short else -1
        for name in order if short else sorted(made, key=lambda name: -made[name])[:1]:
            if sum(made.values()) != count:
                made[name] += step
    return made


def _draw(
    family: str,
    forms: Sequence[TrainingForm],
    count: int,
    seed: int,
    dtypes: Sequence[str] = DTYPES,
) -> list[_SuiteRow]:
    """``count`` different rows: forms by turns, the shapes and dtypes of each in a drawn order."""
    generator = random.Random(f"{family} {seed}")
    order = list(forms)
    generator.shuffle(order)
    waiting: list[list[tuple[TrainingForm, TaskShape]]] = []
    for form in order:
        shapes = list(KINDS[form[4]])
        generator.shuffle(shapes)
        waiting.append([(form, shape) for shape in shapes])
    turns = [
        row
        for turn in range(max(map(len, waiting)))
        for rows in waiting
        for row in rows[turn : turn + 1]
    ]
    kinds = [_kinds(form, dtypes) for form, _ in turns]
    rows: list[_SuiteRow] = []
    for lap in range(len(dtypes)):
        for place, (form, shape) in enumerate(turns):
            dtype = kinds[place][(place + lap) % len(kinds[place])]
            row = _SuiteRow(family, form, shape, dtype)
            if row not in rows:
                rows.append(row)
    if len(rows) < count:
        raise ValueError(f"{family} has {len(rows)} tasks, not {count}: add forms or shapes")
    return rows[:count]


def _kinds(form: TrainingForm, dtypes: Sequence[str]) -> Sequence[str]:
    return ("float32",) if form[0] == "cast_down" else ("bfloat16", "float16") if form[0] in (
        "cast_up", "softmax_float", "cross_entropy_float", "float") else dtypes  # fmt: skip


def _by_turns(drawn: dict[str, list[_SuiteRow]]) -> Iterable[_SuiteRow]:
    """Families by turns in proportion to their sizes."""
    places = [
        ((place + 0.5) / len(rows), family, row)
        for family, rows in drawn.items()
        for place, row in enumerate(rows)
    ]
    return [row for _, _, row in sorted(places, key=lambda item: item[:2])]


def _numbered(rows: Iterable[_SuiteRow]) -> list[SuiteTask]:
    return [_task(number, row) for number, row in enumerate(rows)]


def _task(number: int, row: _SuiteRow) -> SuiteTask:
    name, forward, inputs, setup, _ = row.form
    size = "x".join(map(str, row.shape))
    made = [_fill(setup, row)] if setup else []
    if any("nn." in line and "nn.Parameter" not in line for line in setup.split("\n")):
        made.append(f"self.to(torch.{row.stored})")
    sentence = f"{row.family.replace('_', ' ')}: {name.replace('_', ' ')}".capitalize()
    return SuiteTask(
        name=f"{number:03}_{row.family}_{name}_{size}_{row.dtype}",
        doc=f"{sentence}, {row.dtype}, with its gradients.",
        family=f"{row.family}",
        forward=_body(forward, row),
        inputs={argument: _fill(text, row) for argument, text in inputs.items()},
        setup="\n".join(made) or "pass",
        helpers=ATTENTION if "turn(" in forward else "",
    )


def _body(forward: str, row: _SuiteRow) -> str:
    body = _fill(forward, row)
    if row.dtype != "autocast":
        return body
    lines = body if body.lstrip().startswith("return") or "\n" in body else f"return {body}"
    return 'with torch.autocast("cuda", dtype=torch.bfloat16):\n' + textwrap.indent(lines, "    ")


def _fill(text: str, row: _SuiteRow) -> str:
    """Sizes and dtype in the place of their names."""
    names = {str(i): str(n) for i, n in enumerate(row.shape)}
    names |= {
        "-1": str(row.shape[-1]),
        "s": ", ".join(map(str, row.shape)),
        "h": str(row.shape[-1] // 2),
        "d": f"torch.{row.stored}",
    }
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", value)
    return text.replace(", G)", f", dtype=torch.{row.stored}, requires_grad=True)")
