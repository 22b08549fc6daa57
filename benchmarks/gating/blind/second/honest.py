"""Right, in styles that people and models use; as in `first/honest.py`."""

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
        gx = (gx + gs.float()).to(g.dtype)
        return gx, gx, gw
----
def forward(self, x, r):
    return Rms.apply(x, r, self.weight)
"""
_CAUSAL = """
def forward(self, x):
    n = x.shape[-1]
    padded = F.pad(x.float(), (3, 0))
    w = self.weight.float()
    taps = [padded[..., i : i + n] * w[:, 0, i, None] for i in range(w.shape[-1])]
    y = sum(taps) + self.bias.float()[:, None]
    return (y * torch.sigmoid(y)).to(x.dtype)
"""
_ONLINE = """
def forward(self, q, k, v):
    f, top = q.float() / math.sqrt(q.shape[-1]), None
    for ks, vs in zip(k.float().split(6, -2), v.float().split(6, -2)):
        s = f @ ks.transpose(-1, -2)
        new = s.amax(-1, keepdim=True) if top is None else torch.maximum(top, s.amax(-1, True))
        e = torch.exp(s - new)
        if top is None:
            total, made = e.sum(-1, keepdim=True), e @ vs
        else:
            scale = torch.exp(top - new)
            total, made = total * scale + e.sum(-1, keepdim=True), made * scale + e @ vs
        top = new
    return (made / total).to(q.dtype)
"""

HONEST: tuple[tuple[str, str, str], ...] = (
    ("rms: a backward of its own", "bhf", _RMS),
    (
        "rms: in float64",
        "bf",
        """
        def forward(self, x, r):
            s = x + r
            f = s.double()
            y = f / (f.square().mean(-1, keepdim=True) + 1e-6).sqrt() * self.weight.double()
            return y.to(x.dtype), s
        """,
    ),
    (
        "rms: torch's own",
        "f",
        """
        def forward(self, x, r):
            s = x + r
            return F.rms_norm(s, (s.shape[-1],), self.weight, 1e-6), s
        """,
    ),
    (
        "instance: by hand",
        "bf",
        """
        def forward(self, x):
            f = x.float()
            d = f - f.mean((-2, -1), keepdim=True)
            v = d.square().mean((-2, -1), keepdim=True)
            w, b = self.norm.weight.float(), self.norm.bias.float()
            y = d * torch.rsqrt(v + self.norm.eps) * w[:, None, None] + b[:, None, None]
            return torch.where(y > 0, y, 0.1 * y).to(x.dtype)
        """,
    ),
    (
        "instance: as groups",
        "hf",
        """
        def forward(self, x):
            y = F.group_norm(x, x.shape[1], self.norm.weight, self.norm.bias, self.norm.eps)
            return F.leaky_relu(y, 0.1)
        """,
    ),
    (
        "ownnorm: in float32",
        "bhf",
        """
        def forward(self, x):
            v, m = torch.var_mean(x.float(), (0, 2, 3), keepdim=True, correction=0)
            y = (x.float() - m) * torch.rsqrt(v + 1e-5)
            y = y * self.weight.float()[:, None, None] + self.bias.float()[:, None, None]
            return y.to(x.dtype)
        """,
    ),
    (
        "ownnorm: torch's own",
        "bf",
        """
        def forward(self, x):
            return F.batch_norm(x, None, None, self.weight, self.bias, True, 0.1, 1e-5)
        """,
    ),
    (
        "deconv: a convolution of what is spread",
        "bf",
        """
        def forward(self, x):
            b, c, h, w = x.shape
            spread = x.new_zeros(b, c, 2 * h + 2, 2 * w + 2)
            spread[:, :, 1:-1:2, 1:-1:2] = x
            turned = self.up.weight.transpose(0, 1).flip(-2, -1)
            return F.leaky_relu(F.conv2d(spread, turned, self.up.bias), 0.2)
        """,
    ),
    ("causal: tap by tap", "bhf", _CAUSAL),
    (
        "causal: padded by the convolution",
        "bf",
        """
        def forward(self, x):
            y = F.conv1d(x, self.weight, self.bias, padding=3, groups=6)[..., : x.shape[-1]]
            return F.silu(y)
        """,
    ),
    (
        "resize: repeated",
        "bf",
        """
        def forward(self, x):
            size = (2 * x.shape[-2], 2 * x.shape[-1])
            smooth = F.interpolate(x, size=size, mode='bilinear', align_corners=False)
            return smooth, x.repeat_interleave(2, -1).repeat_interleave(2, -2)
        """,
    ),
    (
        "shuffle: permuted",
        "bf",
        """
        def forward(self, x, y):
            b, c, h, w = x.shape
            z = x.view(b, c // 4, 2, 2, h, w).permute(0, 1, 4, 2, 5, 3)
            return torch.add(z.reshape(b, c // 4, 2 * h, 2 * w), y, alpha=0.5)
        """,
    ),
    (
        "huber: without a condition",
        "bhf",
        """
        def forward(self, x, y):
            d = (x.float() - y.float()).abs()
            near = d.clamp(max=0.5)
            return (near * (d - 0.5 * near) / 0.5).mean().to(x.dtype)
        """,
    ),
    (
        "divergence: from the logarithm of sums",
        "bf",
        """
        def forward(self, p, q):
            p, q, t = p.float(), q.float(), p.dtype
            a = p - p.logsumexp(-1, keepdim=True)
            b = q - q.logsumexp(-1, keepdim=True)
            return ((b.exp() * (b - a)).sum() / len(p)).to(t)
        """,
    ),
    (
        "preference: in float32",
        "bhf",
        """
        def forward(self, a, b, t):
            first = F.cross_entropy(a.float(), t)
            return (first - F.cross_entropy(b.float(), t)).to(a.dtype)
        """,
    ),
    (
        "preference: one mean of differences",
        "bf",
        """
        def forward(self, a, b, t):
            one = F.cross_entropy(a.float(), t, reduction='none')
            two = F.cross_entropy(b.float(), t, reduction='none')
            return (one - two).mean().to(a.dtype)
        """,
    ),
    (
        "softmax: exponentials in float32",
        "bhf",
        """
        def forward(self, x):
            f = x.float()
            e = torch.exp(f - f.amax(-1, keepdim=True))
            return (e / e.sum(-1, keepdim=True)).to(x.dtype)
        """,
    ),
    ("softmax: torch's own", "bhf", "def forward(self, x):\n    return torch.softmax(x, -1)"),
    (
        "heads: torch's own",
        "bhf",
        """
        def forward(self, q, k, v):
            return F.scaled_dot_product_attention(q, k, v)
        """,
    ),
    ("heads: part by part", "bhf", _ONLINE),
    (
        "heads: the query scaled first",
        "bf",
        """
        def forward(self, q, k, v):
            s = (q.float() / math.sqrt(q.shape[-1])) @ k.float().transpose(-1, -2)
            return (s.softmax(-1) @ v.float()).to(q.dtype)
        """,
    ),
    (
        "grouped: one product for a group",
        "bf",
        """
        def forward(self, q, k, v):
            b, h, n, d = q.shape
            f = q.float().reshape(b, k.shape[1], -1, d)
            s = (f @ k.float().transpose(-1, -2)) * d**-0.5
            p = (5 * torch.tanh(0.2 * s)).softmax(-1)
            return (p @ v.float()).reshape(b, h, n, d).to(q.dtype)
        """,
    ),
    (
        "kernels: the sum as one more column",
        "bf",
        """
        def forward(self, q, k, v):
            a, b = F.elu(q.float()) + 1, F.elu(k.float()) + 1
            more = torch.cat([v.float(), torch.ones_like(v[..., :1]).float()], -1)
            made = a @ (b.transpose(-1, -2) @ more)
            return (made[..., :-1] / (made[..., -1:] + 1e-4)).to(q.dtype)
        """,
    ),
    (
        "graph: sorted by where edges end",
        "bf",
        """
        def forward(self, x, a, b):
            order = b.argsort(stable=True)
            m = (x.float() * self.weight)[a[order]]
            total = torch.zeros_like(x, dtype=torch.float32).index_add(0, b[order], m)
            count = torch.zeros_like(total[:, 0]).index_add(0, b, torch.ones_like(m[:, 0]))
            return (total / count.clamp(min=1)[:, None] + self.bias).to(x.dtype)
        """,
    ),
    (
        "cell: two products, in float32",
        "bhf",
        """
        def forward(self, x, h, c):
            w, n = self.weight.float(), x.shape[-1]
            z = x.float() @ w[:, :n].t() + h.float() @ w[:, n:].t() + self.bias.float()
            i, f, g, o = z.chunk(4, -1)
            c = torch.sigmoid(f) * c.float() + torch.sigmoid(i) * torch.tanh(g)
            return (torch.sigmoid(o) * torch.tanh(c)).to(x.dtype), c.to(x.dtype)
        """,
    ),
    (
        "recurrence: by its products",
        "bf",
        """
        def forward(self, a, b):
            h = b.float()
            s = torch.sigmoid(a.float())
            step = 1
            while step < b.shape[1]:
                h = torch.cat([h[:, :step], h[:, step:] + s[:, step:] * h[:, :-step]], 1)
                s = torch.cat([s[:, :step], s[:, step:] * s[:, :-step]], 1)
                step *= 2
            return h.to(b.dtype, copy=True)
        """,
    ),
    (
        "borders: gathered",
        "bf",
        """
        def forward(self, x):
            n = x.shape[-1]
            i = torch.arange(n, device=x.device)[:, None] + torch.arange(-2, 3, device=x.device)
            i = i.abs()
            i = torch.where(i >= n, 2 * (n - 1) - i, i)
            if n < 3:
                return super().forward(x)
            w = x[..., i]
            return w.float().sum(-1).div(5).to(x.dtype), w.amin(-1)
        """,
    ),
    (
        "buckets: counted",
        "f",
        """
        def forward(self, x, e):
            found = (x[..., None] >= e).sum(-1)
            found = torch.where(x.isnan(), len(e), found)
            return found, torch.clamp(x, min=-0.5, max=0.75)
        """,
    ),
    (
        "order: sorted places",
        "bf",
        """
        def forward(self, x):
            i = torch.argsort(x, dim=-1, stable=True, descending=True)
            return torch.cumsum(x.gather(-1, i), -1, dtype=torch.float32).to(x.dtype), i
        """,
    ),
    (
        "products: added afterwards",
        "bf",
        """
        def forward(self, c, a, b):
            return (0.5 * c.float() + 2 * torch.bmm(a.float(), b.float())).to(c.dtype)
        """,
    ),
    (
        "distances: row by row",
        "bf",
        """
        def forward(self, a, b):
            f = b.float()
            rows = [torch.exp(-0.1 * (f - one).square().sum(-1)) for one in a.float()]
            return (torch.stack(rows) if rows else f.new_zeros(0, len(b))).to(a.dtype)
        """,
    ),
    (
        "noisy: one call for both",
        "bf",
        """
        def forward(self, x):
            if self.training:
                x = torch.add(x, torch.randn_like(x), alpha=0.1)
            return torch.tanh(torch.addcmul(self.bias, x, self.weight))
        """,
    ),
    (
        "quantized: from the largest and the smallest",
        "bf",
        """
        def forward(self, x):
            f = x.float()
            top = torch.maximum(f.amax(-1, keepdim=True), -f.amin(-1, keepdim=True))
            s = top.clamp(min=1e-5) / 127
            return torch.clamp(torch.round(f / s), -127, 127).to(torch.int8), s
        """,
    ),
    (
        "experts: expert by expert",
        "bf",
        """
        def forward(self, x):
            p = F.linear(x, self.bias).float().softmax(-1)
            w, i = p.topk(2, -1)
            w = w / w.sum(-1, keepdim=True)
            made = torch.zeros_like(x, dtype=torch.float32)
            for e in range(len(self.weight)):
                rows, which = torch.nonzero(i == e, as_tuple=True)
                y = x[rows].float() @ self.weight[e].float()
                made = made.index_add(0, rows, y * w[rows, which][:, None])
            return made.to(x.dtype)
        """,
    ),
    (
        "curves: written out",
        "bf",
        """
        def forward(self, x):
            f = x.float()
            z = f + self.bias.float()
            mish = f * torch.tanh(F.softplus(f))
            swish = z * (z + 3).clamp(0, 6) / 6
            slope = torch.where(f > 0, f, self.weight.float() * f)
            elu = torch.where(f > 0, f, 1.5 * torch.expm1(f.clamp(max=0)))
            return tuple(one.to(x.dtype) for one in (mish, swish, slope, elu))
        """,
    ),
    (
        "moments: from their means",
        "bf",
        """
        def forward(self, x):
            f = x.float()
            n = f.shape[-1]
            d = f - f.mean(-1, keepdim=True)
            std = (d.square().sum(-1) / (n - 1)).sqrt() if n > 1 else f.std(-1)
            e = f - f.mean(0)
            return std.to(x.dtype), e.square().mean(0).to(x.dtype), f.prod(-1).to(x.dtype)
        """,
    ),
    (
        "spectrum: all frequencies, cut",
        "f",
        """
        def forward(self, x):
            n = x.shape[-1]
            f = torch.fft.fft(x, norm='ortho')[..., : n // 2 + 1]
            return (f * f.conj()).real.contiguous(), torch.fft.irfft(0.5 * torch.fft.rfft(x, norm='ortho'), n=n)
        """,
    ),
    (
        "lengths: scaled afterwards",
        "bf",
        """
        def forward(self, x):
            w = self.weight.float()
            r = self.bias.float() * torch.rsqrt(w.square().sum(1))
            return (F.linear(x.float(), w) * r).to(x.dtype)
        """,
    ),
    (
        "logsum: one after the other",
        "bf",
        """
        def forward(self, x):
            made = [one := x[..., 0].float()] if x.shape[-1] else []
            for i in range(1, x.shape[-1]):
                one = torch.logaddexp(one, x[..., i].float())
                made.append(one)
            return (torch.stack(made, -1) if made else x.float()).to(x.dtype)
        """,
    ),
    (
        "cosine: of unit vectors",
        "bf",
        """
        def forward(self, x, y):
            a, b = (F.normalize(one.float(), dim=-1, eps=1e-8) for one in (x, y))
            return (a * b).sum(-1).to(x.dtype)
        """,
    ),
)
