"""The references: the class `Model`, and what it is called with."""

from benchmarks.gating.blind.writing import plain, weighted

PROGRAMS = {
    "rms": (
        weighted(
            "torch.randn(32, dtype=DT)",
            "torch.randn(32, dtype=DT)",
            "x, r",
            """
            s = x + r
            f = s.float()
            y = f * torch.rsqrt(f.square().mean(-1, keepdim=True) + 1e-6)
            return (y * self.weight.float()).to(x.dtype), s
            """,
        ),
        "torch.randn(13, 32, dtype=DT), torch.randn(13, 32, dtype=DT)",
    ),
    "instance": (
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = nn.InstanceNorm2d(5, affine=True, dtype=DT)

            def forward(self, x):
                return F.leaky_relu(self.norm(x), 0.1)
        """,
        "torch.randn(3, 5, 6, 7, dtype=DT)",
    ),
    "ownnorm": (
        weighted(
            "torch.randn(6, dtype=DT)",
            "torch.randn(6, dtype=DT)",
            "x",
            """
            m = x.mean((0, 2, 3), keepdim=True)
            v = (x - m).pow(2).mean((0, 2, 3), keepdim=True)
            y = (x - m) / torch.sqrt(v + 1e-5)
            return y * self.weight[:, None, None] + self.bias[:, None, None]
            """,
        ),
        "torch.randn(4, 6, 5, 8, dtype=DT)",
    ),
    "deconv": (
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.up = nn.ConvTranspose2d(
                    4, 3, 3, stride=2, padding=1, output_padding=1, dtype=DT
                )

            def forward(self, x):
                return F.leaky_relu(self.up(x), 0.2)
        """,
        "torch.randn(2, 4, 6, 5, dtype=DT)",
    ),
    "causal": (
        weighted(
            "torch.randn(6, 1, 4, dtype=DT) / 2",
            "torch.randn(6, dtype=DT)",
            "x",
            """
            y = F.conv1d(F.pad(x, (3, 0)), self.weight, self.bias, groups=6)
            return F.silu(y)
            """,
        ),
        "torch.randn(2, 6, 19, dtype=DT)",
    ),
    "resize": (
        plain(
            "x",
            """
            smooth = F.interpolate(x, scale_factor=2, mode='bilinear', align_corners=False)
            return smooth, F.interpolate(x, scale_factor=2, mode='nearest')
            """,
        ),
        "torch.randn(2, 3, 5, 6, dtype=DT)",
    ),
    "shuffle": (
        plain("x, y", "return F.pixel_shuffle(x, 2) + 0.5 * y"),
        "torch.randn(2, 8, 4, 5, dtype=DT), torch.randn(2, 2, 8, 10, dtype=DT)",
    ),
    "huber": (
        plain("x, y", "return F.smooth_l1_loss(x.float(), y.float(), beta=0.5).to(x.dtype)"),
        "torch.randn(15, 21, dtype=DT), torch.randn(15, 21, dtype=DT)",
    ),
    "divergence": (
        plain(
            "p, q",
            """
            a, b = F.log_softmax(p.float(), -1), F.log_softmax(q.float(), -1)
            return F.kl_div(a, b, reduction='batchmean', log_target=True).to(p.dtype)
            """,
        ),
        "torch.randn(14, 23, dtype=DT), torch.randn(14, 23, dtype=DT)",
    ),
    "preference": (
        plain("a, b, t", "return F.cross_entropy(a, t) - F.cross_entropy(b, t)"),
        "torch.randn(20, 17, dtype=DT), torch.randn(20, 17, dtype=DT), torch.randint(17, (20,))",
    ),
    "softmax": (
        plain("x", "return torch.softmax(x - x.amax(-1, keepdim=True), -1)"),
        "torch.randn(12, 37, dtype=DT)",
    ),
    "heads": (
        plain(
            "q, k, v",
            """
            s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
            return torch.softmax(s, -1) @ v
            """,
        ),
        ", ".join(["torch.randn(2, 2, 20, 16, dtype=DT)"] * 3),
    ),
    "grouped": (
        plain(
            "q, k, v",
            """
            n = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(n, 1).float(), v.repeat_interleave(n, 1).float()
            s = (q.float() @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
            return (torch.tanh(s / 5) * 5).softmax(-1).matmul(v).to(q.dtype)
            """,
        ),
        "torch.randn(2, 4, 9, 8, dtype=DT), "
        "torch.randn(2, 2, 11, 8, dtype=DT), torch.randn(2, 2, 11, 8, dtype=DT)",
    ),
    "kernels": (
        plain(
            "q, k, v",
            """
            a, b = F.elu(q.float()) + 1, F.elu(k.float()) + 1
            made = a @ (b.transpose(-1, -2) @ v.float())
            return (made / (a @ b.sum(-2)[..., None] + 1e-4)).to(q.dtype)
            """,
        ),
        ", ".join(["torch.randn(2, 2, 14, 8, dtype=DT)"] * 3),
    ),
    "graph": (
        weighted(
            "torch.randn(12, dtype=DT)",
            "torch.randn(12, dtype=DT)",
            "x, a, b",
            """
            m = x[a].float() * self.weight
            total = torch.zeros_like(x, dtype=torch.float32).index_add(0, b, m)
            count = torch.bincount(b, minlength=len(x)).clamp(min=1)
            return (total / count[:, None] + self.bias).to(x.dtype)
            """,
        ),
        "torch.randn(14, 12, dtype=DT), torch.randint(14, (40,)), torch.randint(12, (40,))",
    ),
    "cell": (
        weighted(
            "torch.randn(40, 16, dtype=DT) / 4",
            "torch.randn(40, dtype=DT)",
            "x, h, c",
            """
            z = F.linear(torch.cat([x, h], -1), self.weight, self.bias)
            i, f, g, o = z.chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            return torch.sigmoid(o) * torch.tanh(c), c
            """,
        ),
        "torch.randn(11, 6, dtype=DT), torch.randn(11, 10, dtype=DT), "
        "torch.randn(11, 10, dtype=DT)",
    ),
    "recurrence": (
        plain(
            "a, b",
            """
            h, made = torch.zeros_like(b[:, :1]).float(), []
            for t in range(b.shape[1]):
                h = torch.sigmoid(a[:, t : t + 1].float()) * h + b[:, t : t + 1].float()
                made.append(h)
            return (torch.cat(made, 1) if made else b.float()).to(b.dtype)
            """,
        ),
        "torch.randn(2, 17, 8, dtype=DT), torch.randn(2, 17, 8, dtype=DT)",
    ),
    "borders": (
        plain(
            "x",
            """
            w = F.pad(x, (2, 2), mode='reflect').unfold(-1, 5, 1)
            return w.mean(-1), w.amin(-1)
            """,
        ),
        "torch.randn(2, 3, 21, dtype=DT)",
    ),
    "buckets": (
        plain("x, e", "return torch.searchsorted(e, x, right=True), x.clamp(-0.5, 0.75)"),
        "torch.randn(9, 20, dtype=DT), torch.linspace(-2, 2, 9).to(DT)",
    ),
    "order": (
        plain(
            "x",
            """
            v, i = torch.sort(x, dim=-1, stable=True, descending=True)
            return v.float().cumsum(-1).to(x.dtype), i
            """,
        ),
        "torch.randn(10, 24, dtype=DT)",
    ),
    "products": (
        plain("c, a, b", "return torch.baddbmm(c, a, b, beta=0.5, alpha=2.0)"),
        "torch.randn(3, 7, 9, dtype=DT), torch.randn(3, 7, 20, dtype=DT), "
        "torch.randn(3, 20, 9, dtype=DT)",
    ),
    "distances": (
        plain(
            "a, b",
            """
            d = (a.float()[:, None] - b.float()[None]).square().sum(-1)
            return torch.exp(-0.1 * d).to(a.dtype)
            """,
        ),
        "torch.randn(11, 8, dtype=DT), torch.randn(13, 8, dtype=DT)",
    ),
    "noisy": (
        weighted(
            "torch.randn(18, dtype=DT)",
            "torch.randn(18, dtype=DT)",
            "x",
            """
            if self.training:
                x = x + 0.1 * torch.randn_like(x)
            return torch.tanh(x * self.weight + self.bias)
            """,
        ),
        "torch.randn(12, 18, dtype=DT)",
    ),
    "quantized": (
        plain(
            "x",
            """
            s = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
            return (x.float() / s).round().clamp(-127, 127).to(torch.int8), s
            """,
        ),
        "torch.randn(9, 26, dtype=DT)",
    ),
    "experts": (
        weighted(
            "torch.randn(4, 12, 12, dtype=DT) / 4",
            "torch.randn(4, 12, dtype=DT)",
            "x",
            """
            p = F.linear(x, self.bias).float().softmax(-1)
            w, i = p.topk(2, -1)
            w = w / w.sum(-1, keepdim=True)
            y = torch.einsum('nd,edf->nef', x.float(), self.weight.float())
            y = y.gather(1, i[..., None].expand(-1, -1, y.shape[-1]))
            return (y * w[..., None]).sum(1).to(x.dtype)
            """,
        ),
        "torch.randn(15, 12, dtype=DT)",
    ),
    "curves": (
        weighted(
            "torch.rand(16, dtype=DT)",
            "torch.randn(16, dtype=DT)",
            "x",
            "return F.mish(x), F.hardswish(x + self.bias), F.prelu(x, self.weight), F.elu(x, 1.5)",
        ),
        "torch.randn(14, 16, dtype=DT) * 2",
    ),
    "moments": (
        plain("x", "return x.std(-1), x.var(0, correction=0), x.prod(-1)"),
        "torch.randn(9, 11, dtype=DT)",
    ),
    "spectrum": (
        plain(
            "x",
            """
            f = torch.fft.rfft(x, norm='ortho')
            return f.real.square() + f.imag.square(), torch.fft.irfft(f * 0.5, n=x.shape[-1])
            """,
        ),
        "torch.randn(5, 24, dtype=DT)",
    ),
    "lengths": (
        weighted(
            "torch.randn(14, 20, dtype=DT)",
            "torch.randn(14, dtype=DT)",
            "x",
            """
            w = self.weight.float()
            w = w / torch.linalg.vector_norm(w, dim=1, keepdim=True)
            return F.linear(x.float(), w * self.bias.float()[:, None]).to(x.dtype)
            """,
        ),
        "torch.randn(9, 20, dtype=DT)",
    ),
    "logsum": (
        plain("x", "return torch.logcumsumexp(x.float(), -1).to(x.dtype)"),
        "torch.randn(7, 33, dtype=DT)",
    ),
    "cosine": (
        plain("x, y", "return F.cosine_similarity(x.float(), y.float(), dim=-1).to(x.dtype)"),
        "torch.randn(19, 15, dtype=DT), torch.randn(19, 15, dtype=DT)",
    ),
}
