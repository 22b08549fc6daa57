"""The references: the class `Model`, and what it is called with."""

from benchmarks.gating.blind.writing import plain, weighted

_QKV = ", ".join(["torch.randn(2, 2, 24, 24, dtype=DT)"] * 3)
PROGRAMS = {
    "norm": (
        weighted(
            "torch.randn(40, dtype=DT)",
            "torch.randn(40, dtype=DT)",
            "x",
            """
            f = x.float()
            d = f - f.mean(-1, keepdim=True)
            v = d.square().mean(-1, keepdim=True)
            return (d * torch.rsqrt(v + 1e-5) * self.weight + self.bias).to(x.dtype)
            """,
        ),
        "torch.randn(14, 40, dtype=DT)",
    ),
    "linear": (
        weighted(
            "torch.randn(24, 36, dtype=DT) / 6",
            "torch.randn(24, dtype=DT)",
            "x",
            "return F.gelu(F.linear(x, self.weight, self.bias))",
        ),
        "torch.randn(18, 36, dtype=DT)",
    ),
    "loss": (
        weighted(
            "torch.randn(50, 16, dtype=DT) / 4",
            "torch.randn(50, dtype=DT)",
            "x, t",
            """
            z = F.linear(x, self.weight, self.bias).float()
            lse = z.logsumexp(-1)
            nll = F.cross_entropy(z, t, ignore_index=-100)
            return nll + 1e-3 * lse.square().mean()
            """,
        ),
        "torch.randn(32, 16, dtype=DT), "
        "torch.randint(50, (32,)).masked_fill(torch.arange(32) % 5 == 0, -100)",
    ),
    "entropy": (
        plain("x, t", "return F.cross_entropy(x.float(), t).to(x.dtype)"),
        "torch.randn(24, 33, dtype=DT), torch.randint(33, (24,))",
    ),
    "attention": (
        plain(
            "q, k, v",
            """
            s = (q.float() @ k.float().transpose(-1, -2)) / math.sqrt(q.shape[-1])
            n = s.shape[-1]
            mask = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
            p = s.masked_fill(~mask, float('-inf')).softmax(-1)
            return (p @ v.float()).to(q.dtype)
            """,
        ),
        _QKV,
    ),
    "masked": (
        plain(
            "x, keep",
            """
            p = x.float().masked_fill(~keep, float('-inf')).softmax(-1)
            return torch.nan_to_num(p, nan=0.0).to(x.dtype)
            """,
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
        weighted(
            "torch.randn(32, dtype=DT)",
            "torch.randn(32, dtype=DT)",
            "x",
            """
            y = F.dropout(x * self.weight, 0.2, self.training)
            return x + F.dropout(y + self.bias, 0.1, self.training)
            """,
        ),
        "torch.randn(12, 32, dtype=DT)",
    ),
    "scan": (
        weighted(
            "torch.randn(4, dtype=DT)",
            "torch.randn(4, dtype=DT)",
            "x",
            "return (torch.cumsum(x.float() * self.weight[:, None], -1) + self.bias[:, None])"
            ".to(x.dtype)",
        ),
        "torch.randn(3, 4, 65, dtype=DT)",
    ),
    "select": (
        plain(
            "x",
            """
            values, places = torch.topk(x, 5, dim=-1)
            return values, places, x.argmax(-1)
            """,
        ),
        "torch.randn(12, 30, dtype=DT)",
    ),
    "views": (
        plain(
            "x",
            """
            a, b = x.chunk(2, -1)
            return a, b.clone(), x.transpose(0, 1)
            """,
        ),
        "torch.randn(10, 16, dtype=DT)",
    ),
    "shared": (
        weighted(
            "torch.randn(20, dtype=DT)",
            "torch.randn(20, dtype=DT)",
            "x",
            """
            y = torch.sigmoid(x + self.bias)
            return y * x, y.clone(), self.weight.clone()
            """,
        ),
        "torch.randn(9, 20, dtype=DT)",
    ),
    "signs": (
        plain(
            "x, y",
            "return torch.copysign(torch.ones_like(x), x), torch.maximum(x, y), torch.sign(y)",
        ),
        "torch.randn(16, 16, dtype=DT), torch.randn(16, 16, dtype=DT)",
    ),
    "pointwise": (
        weighted(
            "torch.randn(24, dtype=DT)",
            "torch.randn(24, dtype=DT)",
            "x",
            """
            y = F.softplus(x * self.weight) + torch.round(x * 2)
            return y + torch.remainder(x, 3.0) * self.bias
            """,
        ),
        "torch.randn(16, 24, dtype=DT) * 3",
    ),
    "logadd": (
        plain(
            "x, y", "return torch.logaddexp(x.float(), y.float()).to(x.dtype), F.hardtanh(x) * y"
        ),
        "torch.randn(8, 40, dtype=DT), torch.randn(8, 40, dtype=DT)",
    ),
    "relu": (plain("x", "return F.relu(x)"), "torch.rand(16, 24, dtype=DT) + 0.1"),
    "unit": (
        plain("x", "return F.normalize(x.float(), dim=-1).to(x.dtype)"),
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
        plain(
            "p, g, m",
            """
            m2 = 0.9 * m.float() + 0.1 * g.float()
            q = p.float() * (1 - 1e-2) - 1e-1 * m2 / (m2.abs() + 1e-4)
            return q.to(p.dtype), m2.to(m.dtype)
            """,
        ),
        ", ".join(["torch.randn(33, 17, dtype=DT)"] * 3),
    ),
    "mean": (
        weighted(
            "torch.randn(48, dtype=DT)",
            "torch.randn(48, dtype=DT)",
            "x",
            """
            d = (x * self.weight - self.bias).float()
            return d.square().mean(0).to(x.dtype), d.sum().to(x.dtype)
            """,
        ),
        "torch.randn(40, 48, dtype=DT)",
    ),
    "pool": (
        plain("x", "return F.avg_pool2d(x, 2), F.max_pool2d(x, 3, stride=2, padding=1)"),
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
        weighted(
            "torch.randn(40, 20, dtype=DT) / 4",
            "torch.randn(40, dtype=DT)",
            "x",
            """
            a, b = F.linear(x, self.weight, self.bias).chunk(2, -1)
            return F.silu(a) * b
            """,
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
