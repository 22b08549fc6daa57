"""Tasks of our own: references with a second way to compute the same thing. Texts only, no torch.

Sizes are chosen for an H200, where eager takes 20 us to 2 ms (`tasks`) or both programs keep the
device busy for at least 50 us (`pairs`); on a CPU the first dimension of the inputs is a
sixteenth. Every task keeps all its numbers informative: nothing saturates, nothing is constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

SHRINK = {"cuda": 1, "cpu": 16}
TEXT = """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, {arguments}):
        {body}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class GateTask:
    """A reference and, as ``other``, another program that computes the same."""

    name: str
    inputs: tuple[str, ...]
    """Expressions; arguments are called x, y, z in their order."""
    body: str
    other: str
    init: str = "pass"

    @property
    def reference(self) -> str:
        return self._text("Model", self.body)

    @property
    def candidate(self) -> str:
        return self._text("ModelNew", self.other)

    def itself(self, number: int) -> str:
        """The reference again; the number makes the text another one, so that no cache answers."""
        return self._text("ModelNew", self.body) + f"\nTRIAL = {number}\n"

    def _text(self, name: str, body: str) -> str:
        arguments, inputs = ", ".join("xyz"[: len(self.inputs)]), ", ".join(self.inputs)
        return TEXT.format(name=name, init=self.init, arguments=arguments, body=body, inputs=inputs)


def _normal(shrink: int, *shape: int) -> str:
    first, *rest = shape
    return f"torch.randn({', '.join(map(str, (max(1, first // shrink), *rest)))})"


def tasks(device: str) -> tuple[GateTask, ...]:
    """Twenty tasks for the comparison of a program with itself."""
    normal = partial(_normal, SHRINK[device])

    def same(name: str, body: str, *inputs: str, init: str = "pass") -> GateTask:
        return GateTask(name=name, inputs=inputs, body=body, other=body, init=init)

    image, rows = normal(16, 64, 32, 32), normal(4096, 512)
    chain = "return torch.tanh(x) * torch.sigmoid(x) + torch.exp(-x * x)"
    return (
        same("pointwise chain, 1024x1024", chain, normal(1024, 1024)),
        same("pointwise chain, 2048x2048", chain, normal(2048, 2048)),
        same(
            "gated unit, 1024x4096",
            "a, b = x.chunk(2, -1); return F.silu(a) * b",
            normal(1024, 4096),
        ),
        same("sum of squares, 1024x4096", "return (x * x).sum(-1)", normal(1024, 4096)),
        same("logsumexp, 2048x2048", "return torch.logsumexp(x, -1)", normal(2048, 2048)),
        same("deviation of columns, 4096x512", "return x.std(0)", rows),
        same("softmax, 2048x2048", "return torch.softmax(x, -1)", normal(2048, 2048)),
        same("log-softmax, 256x16384", "return torch.log_softmax(x, -1)", normal(256, 16384)),
        same(
            "layer norm, 4096x512",
            "return self.norm(x)",
            rows,
            init="self.norm = nn.LayerNorm(512)",
        ),
        same(
            "group norm, 16x64x32x32",
            "return self.norm(x)",
            image,
            init="self.norm = nn.GroupNorm(8, 64)",
        ),
        same(
            "batch norm, training",
            "return self.norm(x)",
            image,
            init="self.norm = nn.BatchNorm2d(64)",
        ),
        same(
            "root-mean-square norm",
            "return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)",
            rows,
        ),
        same("matrix product, 1024", "return x @ y", normal(1024, 1024), "torch.randn(1024, 1024)"),
        same(
            "linear, 256x2048",
            "return self.a(x)",
            normal(256, 2048),
            init="self.a = nn.Linear(2048, 512)",
        ),
        same("matrix product, 2048", "return x @ y", normal(2048, 2048), "torch.randn(2048, 1024)"),
        same("batched product", "return x @ y", normal(32, 256, 64), normal(32, 64, 256)),
        same(
            "convolution",
            "return self.a(x)",
            image,
            init="self.a = nn.Conv2d(64, 64, 3, padding=1)",
        ),
        same(
            "depthwise", "return self.a(x)", image, init="self.a = nn.Conv2d(64, 64, 3, groups=64)"
        ),
        same(
            "attention",
            "return F.scaled_dot_product_attention(x, y, z)",
            *[normal(16, 8, 256, 64)] * 3,
        ),
        same(
            "three layers",
            "return self.c(F.gelu(self.b(F.gelu(self.a(x)))))",
            normal(1024, 512),
            init="self.a = nn.Linear(512, 512); self.b = nn.Linear(512, 512); self.c = "
            "nn.Linear(512, 64)",
        ),
    )


ROWS = ((4096, 2048), (8192, 1024), (2048, 4096), (1024, 8192))
TWICE = """\
def once(x):
            {body}
        return once(x) + once(0.5 * x)"""
"""Four kernels at least, on 32 MiB: the faster program, too, is bound by the device and not by
launches."""
BY_HAND: dict[str, tuple[str, str, str]] = {
    # name: (reference, other, __init__) over one matrix x with {n} columns
    "softmax": (
        "e = torch.exp(x - x.amax(-1, keepdim=True)); return e / e.sum(-1, keepdim=True)",
        "return torch.softmax(x, -1)",
        "pass",
    ),
    "log-softmax": (
        "d = x - x.amax(-1, keepdim=True); return d - torch.log(torch.exp(d).sum(-1, "
        "keepdim=True))",
        "return torch.log_softmax(x, -1)",
        "pass",
    ),
    "layer norm": (
        "d = x - x.mean(-1, keepdim=True); v = (d * d).mean(-1, keepdim=True); "
        "return d / torch.sqrt(v + 1e-5) * self.norm.weight + self.norm.bias",
        "return self.norm(x)",
        "self.norm = nn.LayerNorm({n})",
    ),
    "rms norm": (
        "return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale",
        "return F.rms_norm(x, ({n},), self.scale, 1e-6)",
        "self.scale = nn.Parameter(torch.rand({n}))",
    ),
    "gelu": (
        "return 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))",
        "return F.gelu(x, approximate='tanh')",
        "pass",
    ),
    "mish": ("return x * torch.tanh(F.softplus(x)) + x + 1", "return F.mish(x) + x + 1", "pass"),
    "gated unit": (
        "g, u = x.chunk(2, -1); s = 1 / (1 + torch.exp(-g)); return g * s * u + g",
        "g, u = x.chunk(2, -1); return torch.addcmul(g, F.silu(g), u)",
        "pass",
    ),
    "hard swish": (
        "return x * torch.clamp(x + 3, 0, 6) / 6 + x * 0.5 + 1",
        "return torch.add(F.hardswish(x), x, alpha=0.5) + 1",
        "pass",
    ),
    "columns made standard": (
        "m = x.mean(0); d = x - m; return d / torch.sqrt((d * d).mean(0) + 1e-5)",
        "return F.batch_norm(x, None, None, training=True, eps=1e-5)",
        "pass",
    ),
    "linear, relu": (
        "y = x @ self.a.weight.t() + self.a.bias; return torch.where(y > 0, y, "
        "torch.zeros_like(y))",
        "return torch.relu(self.a(x))",
        "self.a = nn.Linear({n}, 1024)",
    ),
}


def pairs(device: str) -> tuple[GateTask, ...]:
    """Forty tasks whose ``other`` takes another time than the reference."""
    return tuple(
        GateTask(
            name=f"{name}, {rows}x{columns}",
            inputs=(_normal(SHRINK[device], rows, columns),),
            body=TWICE.format(body=body.format(n=columns)),
            other=TWICE.format(body=other.format(n=columns)),
            init=init.format(n=columns),
        )
        for rows, columns in ROWS
        for name, (body, other, init) in BY_HAND.items()
    )
