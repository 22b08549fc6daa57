"""Wrong in one thing each; as in `first/wrong.py`."""

from textwrap import indent

from benchmarks.gating.blind.writing import after, lines

_RMS = """
class Rms(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, r, w):
        s = x + r
        f = s.float()
        n = torch.rsqrt(f.square().mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(f, n, w)
        return (f * n * w.float()).to(x.dtype), s

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g, gs):
        f, n, w = ctx.saved_tensors
        h = g.float() * w.float()
        gw = (g.float() * f * n).sum(tuple(range(g.dim() - 1))).to(w.dtype)
        gx = n * (h - f * n * n * (h * f).mean(-1, keepdim=True))
        {wrong}
----
def forward(self, x, r):
    return Rms.apply(x, r, self.weight)
"""
_CAUSAL = """
class Causal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w, b)
        return F.silu(F.conv1d(F.pad(x, (3, 0)), w, b, groups=6))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        x, w, b = ctx.saved_tensors
        with torch.enable_grad():
            again = [one.detach().requires_grad_(True) for one in (x, w, b)]
            y = F.silu(F.conv1d(F.pad(again[0], (3, 0)), again[1], again[2], groups=6))
            gx, gw, gb = torch.autograd.grad(y, again, g)
        {wrong}
        return gx, gw, gb
----
def forward(self, x):
    return Causal.apply(x, self.weight, self.bias)
"""


def _rms(wrong: str) -> str:
    return _RMS.format(wrong=indent(lines(wrong), " " * 8).strip())


def _causal(wrong: str) -> str:
    return _CAUSAL.format(wrong=wrong)


WRONG: tuple[tuple[str, str, str], ...] = (
    # --- values: few elements, one edge, another rounding ---
    (
        "rms: the mean square of all but the last",
        "f",
        """
        def forward(self, x, r):
            s = x + r
            f = s.float()
            k = max(f.shape[-1] - 1, 1)
            n = torch.rsqrt(f[..., :k].square().mean(-1, keepdim=True) + 1e-6)
            return (f * n * self.weight.float()).to(x.dtype), s
        """,
    ),
    (
        "rms: an epsilon of 1e-3",
        "b",
        """
        def forward(self, x, r):
            f = x.float() + r.float()
            n = torch.rsqrt(f.square().mean(-1, keepdim=True) + 1e-3)
            return (f * n * self.weight.float()).to(x.dtype), f.to(x.dtype)
        """,
    ),
    (
        "instance: the variance is unbiased",
        "fh",
        """
        def forward(self, x):
            f = x.float()
            v, m = torch.var_mean(f, (-2, -1), keepdim=True)
            y = (f - m) * torch.rsqrt(v + 1e-5) * self.norm.weight[:, None, None]
            return F.leaky_relu(y + self.norm.bias[:, None, None], 0.1).to(x.dtype)
        """,
    ),
    (
        "instance: the slope of another layer",
        "b",
        "def forward(self, x):\n    return F.leaky_relu(self.norm(x), 0.104)",
    ),
    (
        "deconv: the last column is the one before",
        "bf",
        after("x", "y = torch.cat([y[..., :-1], y[..., -2:-1]], -1)"),
    ),
    (
        "causal: the last step 5 % off",
        "hf",
        after("x", "y = torch.cat([y[..., :-1], y[..., -1:] * 1.05], -1)"),
    ),
    (
        "causal: the first step has no history of zeros",
        "f",
        """
        def forward(self, x):
            padded = torch.cat([x[..., :1], x[..., :1], x[..., :1], x], -1)
            return F.silu(F.conv1d(padded, self.weight, self.bias, groups=6))
        """,
    ),
    (
        "resize: corners are aligned",
        "f",
        """
        def forward(self, x):
            size = (2 * x.shape[-2], 2 * x.shape[-1])
            smooth = F.interpolate(x, size=size, mode='bilinear', align_corners=True)
            return smooth, F.interpolate(x, scale_factor=2, mode='nearest')
        """,
    ),
    (
        "resize: one corner is its neighbor",
        "bh",
        """
        def forward(self, x):
            smooth, near = super().forward(x)
            flat = smooth.flatten()
            return torch.cat([flat[1:2], flat[1:]]).view(smooth.shape), near
        """,
    ),
    (
        "shuffle: channels in another order",
        "f",
        """
        def forward(self, x, y):
            b, c, h, w = x.shape
            z = x.view(b, c // 4, 2, 2, h, w).permute(0, 1, 4, 3, 5, 2)
            return z.reshape(b, c // 4, 2 * h, 2 * w) + 0.5 * y
        """,
    ),
    (
        "shuffle: the second factor is 0.502",
        "b",
        "def forward(self, x, y):\n    return F.pixel_shuffle(x, 2) + 0.502 * y",
    ),
    (
        "huber: the linear part begins later",
        "f",
        """
        def forward(self, x, y):
            d = (x.float() - y.float()).abs()
            small = d.square() / (2 * 0.5)
            return torch.where(d < 0.52, small, d - 0.25).mean().to(x.dtype)
        """,
    ),
    (
        "huber: the mean of six elements fewer",
        "b",
        "def forward(self, x, y):\n    return super().forward(x, y) * (1 + 6 / max(x.numel(), 1))",
    ),
    (
        "divergence: the other way around",
        "fb",
        """
        def forward(self, p, q):
            a, b = F.log_softmax(p.float(), -1), F.log_softmax(q.float(), -1)
            return ((a - b) * a.exp()).sum().div(len(p)).to(p.dtype)
        """,
    ),
    (
        "divergence: the last row is left out",
        "h",
        """
        def forward(self, p, q):
            a, b = F.log_softmax(p.float(), -1), F.log_softmax(q.float(), -1)
            return ((b - a) * b.exp()).sum(-1)[: max(len(p) - 1, 1)].mean().to(p.dtype)
        """,
    ),
    (
        "preference: a factor for the second",
        "f",
        """
        def forward(self, a, b, t):
            return F.cross_entropy(a, t) - 1.001 * F.cross_entropy(b, t)
        """,
    ),
    (
        "preference: the smoothing of labels",
        "b",
        """
        def forward(self, a, b, t):
            first = F.cross_entropy(a.float(), t, label_smoothing=0.05)
            return (first - F.cross_entropy(b.float(), t)).to(a.dtype)
        """,
    ),
    (
        "softmax: the sum leaves out the last",
        "bf",
        """
        def forward(self, x):
            e = torch.exp(x.float() - x.float().amax(-1, keepdim=True))
            k = max(x.shape[-1] - 1, 1)
            return (e / e[..., :k].sum(-1, keepdim=True)).to(x.dtype)
        """,
    ),
    (
        "softmax: no maximum",
        "fh",
        """
        def forward(self, x):
            e = torch.exp(x.float())
            return (e / e.sum(-1, keepdim=True)).to(x.dtype)
        """,
    ),
    (
        "heads: the scale of one dimension more",
        "b",
        """
        def forward(self, q, k, v):
            s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1] + 1)
            return torch.softmax(s.float(), -1).to(q.dtype) @ v
        """,
    ),
    (
        "heads: the sum of probabilities in 16 bits, one after the other",
        "b",
        """
        def forward(self, q, k, v):
            s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
            e = torch.exp(s - s.amax(-1, keepdim=True))
            total = torch.zeros_like(e[..., :1])
            for one in range(e.shape[-1]):
                total = total + e[..., one : one + 1]
            return (e / total) @ v
        """,
    ),
    (
        "grouped: heads in another order",
        "fb",
        """
        def forward(self, q, k, v):
            n = q.shape[1] // k.shape[1]
            k, v = k.repeat(1, n, 1, 1).float(), v.repeat(1, n, 1, 1).float()
            s = (q.float() @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
            return (torch.tanh(s / 5) * 5).softmax(-1).matmul(v).to(q.dtype)
        """,
    ),
    (
        "grouped: the cap is left out",
        "h",
        """
        def forward(self, q, k, v):
            n = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(n, 1).float(), v.repeat_interleave(n, 1).float()
            s = (q.float() @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
            return s.softmax(-1).matmul(v).to(q.dtype)
        """,
    ),
    (
        "kernels: without what keeps the sum from zero",
        "f",
        """
        def forward(self, q, k, v):
            a, b = F.elu(q.float()) + 1, F.elu(k.float()) + 1
            made = a @ (b.transpose(-1, -2) @ v.float())
            return (made / (a @ b.sum(-2)[..., None])).to(q.dtype)
        """,
    ),
    (
        "graph: of several edges to one the last wins",
        "bf",
        """
        def forward(self, x, a, b):
            m = x[a].float() * self.weight
            total = torch.zeros_like(x, dtype=torch.float32)
            total = total.index_put((b,), m)
            count = torch.bincount(b, minlength=len(x)).clamp(min=1)
            return (total / count[:, None] + self.bias).to(x.dtype)
        """,
    ),
    (
        "graph: a product with ones spreads what is infinite",
        "bf",
        """
        def forward(self, x, a, b):
            hot = F.one_hot(b, len(x)).float().t()
            total = hot @ (x[a].float() * self.weight)
            count = hot.sum(-1, keepdim=True).clamp(min=1)
            return (total / count + self.bias).to(x.dtype)
        """,
    ),
    (
        "graph: who has no edge has no bias",
        "h",
        """
        def forward(self, x, a, b):
            y = super().forward(x, a, b)
            count = torch.bincount(b, minlength=len(x))
            return torch.where(count[:, None] > 0, y, torch.zeros_like(y))
        """,
    ),
    (
        "cell: the candidate's gate is a sigmoid of twice",
        "b",
        """
        def forward(self, x, h, c):
            z = F.linear(torch.cat([x, h], -1), self.weight, self.bias)
            i, f, g, o = z.chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * (2 * torch.sigmoid(1.96 * g) - 1)
            return torch.sigmoid(o) * torch.tanh(c), c
        """,
    ),
    (
        "cell: gates in another order",
        "f",
        """
        def forward(self, x, h, c):
            z = F.linear(torch.cat([x, h], -1), self.weight, self.bias)
            f, i, g, o = z.chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            return torch.sigmoid(o) * torch.tanh(c), c
        """,
    ),
    (
        "recurrence: the state is cut at the eighth step",
        "f",
        """
        def forward(self, a, b):
            y = super().forward(a, b)
            if b.shape[1] <= 16:
                return y
            return torch.cat([y[:, :16], super().forward(a[:, 16:], b[:, 16:])], 1)
        """,
    ),
    (
        "recurrence: the state has 16 bits",
        "b",
        """
        def forward(self, a, b):
            h, made = torch.zeros_like(b[:, :1]), []
            for t in range(b.shape[1]):
                h = torch.sigmoid(a[:, t : t + 1]) * h + b[:, t : t + 1]
                made.append(h)
            return torch.cat(made, 1) if made else b.clone()
        """,
    ),
    (
        "borders: repeats the edge",
        "bf",
        """
        def forward(self, x):
            w = F.pad(x, (2, 2), mode='replicate').unfold(-1, 5, 1)
            return w.mean(-1), w.amin(-1)
        """,
    ),
    (
        "buckets: the other side of a bound",
        "f",
        "def forward(self, x, e):\n"
        "    return torch.searchsorted(e, x, right=False), x.clamp(-0.5, 0.75)",
    ),
    (
        "buckets: no gradient at the bounds",
        "fb",
        """
        def forward(self, x, e):
            inside = (x > -0.5) & (x < 0.75)
            kept = torch.where(inside, x, x.detach().clamp(-0.5, 0.75))
            return torch.searchsorted(e, x, right=True), kept
        """,
    ),
    (
        "order: equal values in any order",
        "b",
        """
        def forward(self, x):
            v, i = torch.sort(x.flip(-1), dim=-1, stable=True, descending=True)
            return v.float().cumsum(-1).to(x.dtype), x.shape[-1] - 1 - i
        """,
    ),
    (
        "products: the factor of the sum on both",
        "bf",
        "def forward(self, c, a, b):\n    return torch.baddbmm(c, a, b, beta=0.5, alpha=2.01)",
    ),
    (
        "products: what is infinite becomes finite",
        "f",
        """
        def forward(self, c, a, b):
            return 0.5 * torch.nan_to_num(c, posinf=3e38, neginf=-3e38) + 2 * torch.bmm(a, b)
        """,
    ),
    (
        "distances: squares written out in 16 bits",
        "b",
        """
        def forward(self, a, b):
            d = a.square().sum(-1)[:, None] + b.square().sum(-1)[None] - 2 * (a @ b.t())
            return torch.exp(-0.1 * d.float()).to(a.dtype)
        """,
    ),
    (
        "noisy: the noise is uniform",
        "f",
        """
        def forward(self, x):
            if self.training:
                x = x + 0.1 * (2 * torch.rand_like(x) - 1)
            return torch.tanh(x * self.weight + self.bias)
        """,
    ),
    (
        "noisy: no noise in the last row",
        "b",
        """
        def forward(self, x):
            if self.training:
                n = torch.randn_like(x)
                x = x + 0.1 * torch.cat([n[:-1], torch.zeros_like(n[-1:])])
            return torch.tanh(x * self.weight + self.bias)
        """,
    ),
    (
        "quantized: cut instead of rounded",
        "f",
        """
        def forward(self, x):
            s = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
            return (x.float() / s).clamp(-127, 127).to(torch.int8), s
        """,
    ),
    (
        "quantized: the smallest scale",
        "b",
        """
        def forward(self, x):
            s = x.float().abs().amax(-1, keepdim=True) / 127
            s = torch.where(s == 0, torch.ones_like(s), s)
            return (x.float() / s).round().clamp(-127, 127).to(torch.int8), s
        """,
    ),
    (
        "experts: the weights do not sum to one",
        "fh",
        """
        def forward(self, x):
            p = F.linear(x, self.bias).float().softmax(-1)
            w, i = p.topk(2, -1)
            y = torch.einsum('nd,edf->nef', x.float(), self.weight.float())
            y = y.gather(1, i[..., None].expand(-1, -1, y.shape[-1]))
            return (y * w[..., None]).sum(1).to(x.dtype)
        """,
    ),
    (
        "experts: an expert takes eleven rows at most",
        "b",
        """
        def forward(self, x):
            p = F.linear(x, self.bias).float().softmax(-1)
            w, i = p.topk(min(2, p.shape[-1]), -1)
            w = w / w.sum(-1, keepdim=True)
            made = torch.zeros_like(x, dtype=torch.float32)
            for e in range(len(self.weight)):
                rows, which = torch.nonzero(i == e, as_tuple=True)
                rows, which = rows[:11], which[:11]
                y = x[rows].float() @ self.weight[e].float()
                made = made.index_add(0, rows, y * w[rows, which][:, None])
            return made.to(x.dtype)
        """,
    ),
    (
        "curves: mish without its bound overflows",
        "f",
        """
        def forward(self, x):
            _, b, c, d = super().forward(x)
            return x * torch.tanh(torch.log(1 + torch.exp(x))), b, c, d
        """,
    ),
    (
        "curves: the slope of the first channel for all",
        "b",
        """
        def forward(self, x):
            a, b, _, d = super().forward(x)
            return a, b, F.prelu(x, self.weight[:1]), d
        """,
    ),
    (
        "curves: elu's slope at zero is one",
        "fh",
        """
        def forward(self, x):
            a, b, c, _ = super().forward(x)
            return a, b, c, torch.where(x >= 0, x, 1.5 * torch.expm1(x))
        """,
    ),
    (
        "moments: the product has no gradient at zero",
        "f",
        """
        def forward(self, x):
            sign = torch.where(x < 0, -1.0, 1.0).to(x.dtype).prod(-1)
            return x.std(-1), x.var(0, correction=0), sign * x.abs().log().sum(-1).exp()
        """,
    ),
    (
        "moments: both of one kind",
        "b",
        """
        def forward(self, x):
            _, v, p = super().forward(x)
            return x.float().std(-1, correction=0).to(x.dtype), v, p
        """,
    ),
    (
        "spectrum: the last frequency counts once too often",
        "f",
        """
        def forward(self, x):
            power, y = super().forward(x)
            return torch.cat([power[..., :-1], 2 * power[..., -1:]], -1), y
        """,
    ),
    (
        "lengths: the length has no gradient",
        "fb",
        """
        def forward(self, x):
            w = self.weight.float()
            w = w / torch.linalg.vector_norm(w.detach(), dim=1, keepdim=True)
            return F.linear(x.float(), w * self.bias.float()[:, None]).to(x.dtype)
        """,
    ),
    (
        "lengths: lengths of another call",
        "f",
        """
        def forward(self, x):
            if not hasattr(self, 'made'):
                w = self.weight.detach().float()
                object.__setattr__(self, 'made', w.norm(dim=1, keepdim=True))
            w = self.weight.float() / self.made
            return F.linear(x.float(), w * self.bias.float()[:, None]).to(x.dtype)
        """,
    ),
    (
        "logsum: the maximum of the whole row",
        "f",
        """
        def forward(self, x):
            f = x.float()
            m = f.amax(-1, keepdim=True).clamp(min=-1e30)
            return ((f - m).exp().cumsum(-1).log() + m).to(x.dtype)
        """,
    ),
    (
        "cosine: another smallest length",
        "fb",
        """
        def forward(self, x, y):
            a, b = x.float(), y.float()
            n = a.norm(dim=-1).clamp(min=1e-2) * b.norm(dim=-1).clamp(min=1e-2)
            return ((a * b).sum(-1) / n).to(x.dtype)
        """,
    ),
    # --- the backward alone ---
    ("rms: the sum has no gradient of its own", "fb", _rms("return (gx.to(g.dtype),) * 2 + (gw,)")),
    (
        "rms: the second input's gradient is halved in one row",
        "h",
        _rms(
            """
            gx = (gx + gs).to(g.dtype)
            return gx, torch.cat([gx[:-1], gx[-1:] / 2]), gw
            """
        ),
    ),
    (
        "rms: the gradient of the weight is summed in 16 bits",
        "b",
        _rms(
            """
            gx, gw = (gx + gs).to(g.dtype), torch.zeros_like(w)
            for one in (g.float() * f * n).to(g.dtype).reshape(-1, len(w)):
                gw = gw + one
            return gx, gx, gw
            """
        ),
    ),
    (
        "causal: the first tap has no gradient",
        "fb",
        _causal("gw = torch.cat([torch.zeros_like(gw[..., :1]), gw[..., 1:]], -1)"),
    ),
    (
        "causal: the gradient of the input is one step late",
        "h",
        _causal("gx = torch.cat([gx[..., -1:], gx[..., :-1]], -1)"),
    ),
    ("causal: the gradient of the bias is 2 % off", "bf", _causal("gb = gb * 1.02")),
)
