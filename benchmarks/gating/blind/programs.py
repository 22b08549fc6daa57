"""The references: the class `Model`, and what it is called with."""

HEAD = """\
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

DT = DTYPE


"""
_WEIGHTS = """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter({weight})
        self.bias = nn.Parameter({bias})

    def forward(self, {given}):
{body}
"""
_NOTHING = """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, {given}):
{body}
"""


def _lines(text: str) -> str:
    return "\n".join("        " + line for line in text.strip().split("\n"))


def _weighted(weight: str, bias: str, given: str, body: str) -> str:
    return _WEIGHTS.format(weight=weight, bias=bias, given=given, body=_lines(body))


def _plain(given: str, body: str) -> str:
    return _NOTHING.format(given=given, body=_lines(body))


_QKV = ", ".join(["torch.randn(2, 2, 24, 24, dtype=DT)"] * 3)
PROGRAMS = {
    "norm": (
        _weighted(
            "torch.randn(40, dtype=DT)",
            "torch.randn(40, dtype=DT)",
            "x",
            "f = x.float()\nd = f - f.mean(-1, keepdim=True)\n"
            "v = d.square().mean(-1, keepdim=True)\n"
            "return (d * torch.rsqrt(v + 1e-5) * self.weight + self.bias).to(x.dtype)",
        ),
        "torch.randn(14, 40, dtype=DT)",
    ),
    "linear": (
        _weighted(
            "torch.randn(24, 36, dtype=DT) / 6",
            "torch.randn(24, dtype=DT)",
            "x",
            "return F.gelu(F.linear(x, self.weight, self.bias))",
        ),
        "torch.randn(18, 36, dtype=DT)",
    ),
    "loss": (
        _weighted(
            "torch.randn(50, 16, dtype=DT) / 4",
            "torch.randn(50, dtype=DT)",
            "x, t",
            "z = F.linear(x, self.weight, self.bias).float()\n"
            "lse = z.logsumexp(-1)\n"
            "nll = F.cross_entropy(z, t, ignore_index=-100)\n"
            "return nll + 1e-3 * lse.square().mean()",
        ),
        "torch.randn(32, 16, dtype=DT), "
        "torch.randint(50, (32,)).masked_fill(torch.arange(32) % 5 == 0, -100)",
    ),
    "entropy": (
        _plain("x, t", "return F.cross_entropy(x.float(), t).to(x.dtype)"),
        "torch.randn(24, 33, dtype=DT), torch.randint(33, (24,))",
    ),
    "attention": (
        _plain(
            "q, k, v",
            "s = (q.float() @ k.float().transpose(-1, -2)) / math.sqrt(q.shape[-1])\n"
            "n = s.shape[-1]\n"
            "mask = torch.ones(n, n, dtype=torch.bool).tril()\n"
            "p = s.masked_fill(~mask, float('-inf')).softmax(-1)\n"
            "return (p @ v.float()).to(q.dtype)",
        ),
        _QKV,
    ),
    "masked": (
        _plain(
            "x, keep",
            "p = x.float().masked_fill(~keep, float('-inf')).softmax(-1)\n"
            "return torch.nan_to_num(p, nan=0.0).to(x.dtype)",
        ),
        "torch.randn(16, 20, dtype=DT), torch.rand(16, 20) > torch.rand(16, 1) * 1.2",
    ),
    "embedding": (
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 16, padding_idx=3, dtype=DT)

    def forward(self, i):
        return self.table(i).float().sum(1).to(DT)
""",
        "torch.randint(11, (12, 9))",
    ),
    "batchnorm": (
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1, dtype=DT)
        self.bn = nn.BatchNorm2d(6, dtype=DT)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))
""",
        "torch.randn(4, 3, 7, 9, dtype=DT)",
    ),
    "conv": (
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, padding=1, dtype=DT)

    def forward(self, x):
        return F.silu(self.conv(x))
""",
        "torch.randn(2, 4, 8, 8, dtype=DT).to(memory_format=torch.channels_last)",
    ),
    "dropout": (
        _weighted(
            "torch.randn(32, dtype=DT)",
            "torch.randn(32, dtype=DT)",
            "x",
            "y = F.dropout(x * self.weight, 0.2, self.training)\n"
            "return x + F.dropout(y + self.bias, 0.1, self.training)",
        ),
        "torch.randn(12, 32, dtype=DT)",
    ),
    "scan": (
        _weighted(
            "torch.randn(4, dtype=DT)",
            "torch.randn(4, dtype=DT)",
            "x",
            "return (torch.cumsum(x.float() * self.weight[:, None], -1) + self.bias[:, None])"
            ".to(x.dtype)",
        ),
        "torch.randn(3, 4, 65, dtype=DT)",
    ),
    "select": (
        _plain(
            "x", "values, places = torch.topk(x, 5, dim=-1)\nreturn values, places, x.argmax(-1)"
        ),
        "torch.randn(12, 30, dtype=DT)",
    ),
    "views": (
        _plain("x", "a, b = x.chunk(2, -1)\nreturn a, b.clone(), x.transpose(0, 1)"),
        "torch.randn(10, 16, dtype=DT)",
    ),
    "shared": (
        _weighted(
            "torch.randn(20, dtype=DT)",
            "torch.randn(20, dtype=DT)",
            "x",
            "y = torch.sigmoid(x + self.bias)\nreturn y * x, y.clone(), self.weight.clone()",
        ),
        "torch.randn(9, 20, dtype=DT)",
    ),
    "signs": (
        _plain(
            "x, y",
            "return torch.copysign(torch.ones_like(x), x), torch.maximum(x, y), torch.sign(y)",
        ),
        "torch.randn(16, 16, dtype=DT), torch.randn(16, 16, dtype=DT)",
    ),
    "pointwise": (
        _weighted(
            "torch.randn(24, dtype=DT)",
            "torch.randn(24, dtype=DT)",
            "x",
            "y = F.softplus(x * self.weight) + torch.round(x * 2)\n"
            "return y + torch.remainder(x, 3.0) * self.bias",
        ),
        "torch.randn(16, 24, dtype=DT) * 3",
    ),
    "logadd": (
        _plain(
            "x, y", "return torch.logaddexp(x.float(), y.float()).to(x.dtype), F.hardtanh(x) * y"
        ),
        "torch.randn(8, 40, dtype=DT), torch.randn(8, 40, dtype=DT)",
    ),
    "relu": (_plain("x", "return F.relu(x)"), "torch.rand(16, 24, dtype=DT) + 0.1"),
    "unit": (
        _plain("x", "return F.normalize(x.float(), dim=-1).to(x.dtype)"),
        "torch.randn(12, 24, dtype=DT)",
    ),
    "average": (
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(20, dtype=DT))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.25)
            self.steps += 1
        return x - self.mean
""",
        "torch.randn(16, 20, dtype=DT)",
    ),
    "step": (
        _plain(
            "p, g, m",
            "m2 = 0.9 * m.float() + 0.1 * g.float()\n"
            "q = p.float() * (1 - 1e-2) - 1e-1 * m2 / (m2.abs() + 1e-4)\n"
            "return q.to(p.dtype), m2.to(m.dtype)",
        ),
        ", ".join(["torch.randn(33, 17, dtype=DT)"] * 3),
    ),
    "mean": (
        _weighted(
            "torch.randn(48, dtype=DT)",
            "torch.randn(48, dtype=DT)",
            "x",
            "d = (x * self.weight - self.bias).float()\n"
            "return d.square().mean(0).to(x.dtype), d.sum().to(x.dtype)",
        ),
        "torch.randn(40, 48, dtype=DT)",
    ),
    "pool": (
        _plain("x", "return F.avg_pool2d(x, 2), F.max_pool2d(x, 3, stride=2, padding=1)"),
        "torch.randn(2, 5, 10, 10, dtype=DT)",
    ),
    "group": (
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(3, 12, dtype=DT)

    def forward(self, x):
        return F.silu(self.norm(x))
""",
        "torch.randn(3, 12, 19, dtype=DT)",
    ),
    "gates": (
        _weighted(
            "torch.randn(40, 20, dtype=DT) / 4",
            "torch.randn(40, dtype=DT)",
            "x",
            "a, b = F.linear(x, self.weight, self.bias).chunk(2, -1)\nreturn F.silu(a) * b",
        ),
        "torch.randn(2, 11, 20, dtype=DT)",
    ),
    "rotary": (
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        angle = torch.arange(16)[:, None] / 10 ** (torch.arange(8)[None, :] / 4)
        self.register_buffer("cos", angle.cos().to(DT))
        self.register_buffer("sin", angle.sin().to(DT))

    def forward(self, x):
        a, b = x.chunk(2, -1)
        n = x.shape[-2]
        cos, sin = self.cos[:n], self.sin[:n]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
""",
        "torch.randn(2, 3, 16, 16, dtype=DT)",
    ),
}
