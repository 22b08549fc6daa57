"""Wrong in one thing each: (program and what is wrong, types by their first letters, the body of
`ModelNew`; above four dashes what stands before it)."""

from benchmarks.gating.blind.writing import after

_NORM = """
class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b):
        f = x.float()
        d = f - f.mean(-1, keepdim=True)
        r = torch.rsqrt(d.square().mean(-1, keepdim=True) + 1e-5)
        ctx.save_for_backward(x, w, d * r, r)
        return (d * r * w + b).to(x.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        x, w, n, r = ctx.saved_tensors
        h = g.float() * w
        gx = r * (h - h.mean(-1, keepdim=True) - n * (h * n).mean(-1, keepdim=True))
        dims = tuple(range(g.dim() - 1))
        gw, gb = (g.float() * n).sum(dims), g.float().sum(dims)
        {wrong}
        return gx.to(x.dtype), gw.to(w.dtype), gb.to(w.dtype)
----
def forward(self, x):
    return Norm.apply(x, self.weight, self.bias)
"""
_LINEAR = """
class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        return F.linear(x, w, b)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        {first}
        gx, gw, gb = g @ w, g.t() @ x, g.float().sum(0).to(g.dtype)
        {wrong}
        return gx, gw, gb
----
def forward(self, x):
    return F.gelu(Linear.apply(x, self.weight, self.bias))
"""
_ENTROPY = """
class Entropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, t):
        p = torch.softmax(x.float(), -1)
        n, c = p.shape
        hot = F.one_hot(t, c)
        grad = (p - hot) / n
        {kept}
        ctx.save_for_backward(grad)
        return (-torch.log_softmax(x.float(), -1).gather(1, t[:, None]).mean()).to(x.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        grad, = ctx.saved_tensors
        return ({returned}).to(g.dtype), None
----
def forward(self, x, t):
    return Entropy.apply(x, t)
"""
_ATTENTION = """
def forward(self, q, k, v):
    n, d = q.shape[-2], q.shape[-1]
    s = (q.float() @ k.float().transpose(-1, -2)) / math.sqrt({scale})
    i = torch.arange(n, device=q.device)[:, None]
    j = i.t()
    s = s.masked_fill(~({mask}), float('-inf'))
    e = torch.exp(s - s.amax(-1, keepdim=True))
    return ((e @ v.float()) / ({total})).to(q.dtype)
"""


def _norm(wrong: str) -> str:
    return _NORM.format(wrong=wrong)


def _linear(wrong: str, first: str = "pass") -> str:
    return _LINEAR.format(wrong=wrong, first=first)


def _entropy(kept: str = "pass", returned: str = "grad * g") -> str:
    return _ENTROPY.format(kept=kept, returned=returned)


def _attention(
    scale: str = "d", mask: str = "j <= i", total: str = "e.sum(-1, keepdim=True)"
) -> str:
    return _ATTENTION.format(scale=scale, mask=mask, total=total)


WRONG: tuple[tuple[str, str, str], ...] = (
    # --- one edge, few elements ---
    (
        "norm: other epsilon in the last column",
        "b",
        after(
            "x",
            """
            e = (y.float()[..., -1:] - self.bias[-1]) * 0.97 + self.bias[-1]
            y = torch.cat([y[..., :-1], e.to(y.dtype)], -1)
            """,
        ),
    ),
    (
        "norm: last row of an odd batch",
        "bf",
        after("x", "y = torch.cat([y[:-1], y[-1:] * 1.04]) if len(x) % 2 and len(x) > 1 else y"),
    ),
    (
        "norm: one row not shifted",
        "h",
        """
        def forward(self, x):
            y = super().forward(x)
            return torch.cat([y[:1] - 0.03, y[1:]]) if x.dim() == 2 and len(x) > 1 else y
        """,
    ),
    (
        "linear: one unit 3 % off",
        "b",
        after("x", "y = torch.cat([y[..., :7], y[..., 7:8] * 1.03, y[..., 8:]], -1)"),
    ),
    (
        "linear: last element of the last row",
        "h",
        after("x", "z = y.reshape(-1); y = torch.cat([z[:-1], z[-1:] * 0.96]).view(y.shape)"),
    ),
    (
        "scan: last chunk of one lost",
        "fb",
        """
        def forward(self, x):
            f = x.float() * self.weight[:, None]
            n = f.shape[-1]
            y = f.cumsum(-1)
            if n % 16 == 1 and n > 1:
                y = torch.cat([y[..., :-1], y[..., -2:-1]], -1)
            return (y + self.bias[:, None]).to(x.dtype)
        """,
    ),
    (
        "scan: carry of 16 bits",
        "b",
        """
        def forward(self, x):
            f = x.float() * self.weight[:, None]
            parts, carry = [], 0
            for part in f.split(16, -1):
                c = part.cumsum(-1) + carry
                carry = c[..., -1:].to(torch.bfloat16).float()
                parts.append(c)
            return (torch.cat(parts, -1) + self.bias[:, None]).to(x.dtype)
        """,
    ),
    (
        "mean: last row left out",
        "b",
        """
        def forward(self, x):
            d = (x * self.weight - self.bias).float()
            n = len(d)
            k = d[:-1] if n > 32 else d
            return (k.square().sum(0) / len(k)).to(x.dtype), d.sum().to(x.dtype)
        """,
    ),
    (
        "mean: sums of 16 bits",
        "b",
        """
        def forward(self, x):
            d = x * self.weight - self.bias
            s = torch.zeros_like(d[:1].sum(0))
            for row in d:
                s = s + row * row
            return s / len(d), d.float().sum().to(x.dtype)
        """,
    ),
    (
        "pool: padding counts as zero",
        "f",
        """
        def forward(self, x):
            padded = F.pad(x, (1, 1, 1, 1))
            return F.avg_pool2d(x, 2), F.max_pool2d(padded, 3, stride=2)
        """,
    ),
    (
        "group: last position in another group",
        "bh",
        after(
            "x", "y = torch.cat([y[..., :-1], y[..., -1:] * 1.03], -1) if y.shape[-1] > 1 else y"
        ),
    ),
    # --- backward alone ---
    (
        "norm: gradient of the weight misses a row",
        "hf",
        _norm("gw = (g.float() * n)[:-1].sum(0) if len(g) > 1 else gw"),
    ),
    (
        "norm: gradient of one weight 5 % off",
        "bh",
        _norm("gw = torch.cat([gw[:3], gw[3:4] * 1.05, gw[4:]])"),
    ),
    (
        "norm: gradient of the last bias 4 % off",
        "b",
        _norm("gb = torch.cat([gb[:-1], gb[-1:] * 0.96])"),
    ),
    ("norm: gradient without its mean", "b", _norm("gx = gx + r * h.mean(-1, keepdim=True)")),
    (
        "norm: gradient of one row scaled",
        "b",
        _norm("gx = torch.cat([gx[:2], gx[2:3] * 0.96, gx[3:]])"),
    ),
    ("linear: gradient of a bias twice", "b", _linear("gb = torch.cat([gb[:-1], gb[-1:] * 2])")),
    (
        "linear: gradient of one row of the weight",
        "bh",
        _linear("gw = torch.cat([gw[:1] * 0.95, gw[1:]])"),
    ),
    (
        "linear: gradient takes any memory for rows",
        "hb",
        _linear("pass", "g = g.as_strided(g.shape, (g.shape[1], 1))"),
    ),
    (
        "linear: gradient is kept from the first backward",
        "f",
        _linear("gb = ctx.__dict__.setdefault('kept', gb)"),
    ),
    (
        "linear: the second use of the graph gives zero",
        "h",
        _linear("gx, ctx.used = gx * (0 if hasattr(ctx, 'used') else 1), True"),
    ),
    ("linear: backward changes the input", "b", _linear("x.data.mul_(1.5)")),
    (
        "entropy: ignores what comes from above",
        "bf",
        _entropy(returned="grad * torch.ones_like(g)"),
    ),
    (
        "entropy: the last class has no gradient",
        "bf",
        _entropy(kept="grad = torch.cat([grad[:, :-1], grad[:, -1:] * 0], 1)"),
    ),
    (
        "entropy: gradient of 8 bits",
        "h",
        _entropy(kept="grad = grad.to(torch.float8_e4m3fn).float()"),
    ),
    (
        "entropy: one row too many in the mean",
        "b",
        _entropy(returned="grad * g * (len(grad) / (len(grad) + 1))"),
    ),
    (
        "attention: the last key has no gradient",
        "h",
        """
        def forward(self, q, k, v):
            if k.shape[-2] > 1:
                k = torch.cat([k[..., :-1, :], k[..., -1:, :].detach()], -2)
            return super().forward(q, k, v)
        """,
    ),
    (
        "gates: gradient through one half scaled",
        "bh",
        """
        def forward(self, x):
            a, b = F.linear(x, self.weight, self.bias).chunk(2, -1)
            b = b * 0.97 + (b * 0.03).detach()
            return F.silu(a) * b
        """,
    ),
    (
        "embedding: duplicates count once",
        "b",
        """
        class Look(torch.autograd.Function):
            @staticmethod
            def forward(ctx, i, w):
                ctx.save_for_backward(i, w)
                return w[i]

            @staticmethod
            @torch.autograd.function.once_differentiable
            def backward(ctx, g):
                i, w = ctx.saved_tensors
                made = torch.zeros_like(w)
                made[i.flatten()] = g.reshape(-1, w.shape[1])
                made[3] = 0
                return None, made
        ----
        def forward(self, i):
            return Look.apply(i, self.table.weight).float().sum(1).to(DT)
        """,
    ),
    (
        "embedding: the padding has a gradient",
        "fb",
        """
        def forward(self, i):
            return F.embedding(i, self.table.weight).float().sum(1).to(DT)
        """,
    ),
    # --- values ---
    (
        "signs: the sign of negative zero",
        "bf",
        """
        def forward(self, x, y):
            one = torch.ones_like(x)
            return torch.where(x < 0, -one, one), torch.maximum(x, y), torch.sign(y)
        """,
    ),
    (
        "signs: zero has a sign",
        "h",
        """
        def forward(self, x, y):
            one = torch.ones_like(y)
            signs = torch.where(y > 0, one, -one)
            return torch.copysign(torch.ones_like(x), x), torch.maximum(x, y), signs
        """,
    ),
    (
        "signs: not a number is lost",
        "bf",
        """
        def forward(self, x, y):
            return torch.copysign(torch.ones_like(x), x), torch.fmax(x, y), torch.sign(y)
        """,
    ),
    (
        "pointwise: softplus overflows",
        "fb",
        """
        def forward(self, x):
            y = torch.log(1 + torch.exp(x * self.weight)) + torch.round(x * 2)
            return y + torch.remainder(x, 3.0) * self.bias
        """,
    ),
    (
        "pointwise: softplus whose second gradient overflows",
        "h",
        """
        def forward(self, x):
            p = x * self.weight
            y = torch.logaddexp(p, torch.zeros_like(p)) + torch.round(x + x)
            return torch.addcmul(y, torch.remainder(x, 3.0), self.bias)
        """,
    ),
    (
        "pointwise: rounds half up",
        "fh",
        """
        def forward(self, x):
            y = F.softplus(x * self.weight) + torch.floor(x * 2 + 0.5)
            return y + torch.remainder(x, 3.0) * self.bias
        """,
    ),
    (
        "pointwise: remainder of the sign of x",
        "b",
        """
        def forward(self, x):
            y = F.softplus(x * self.weight) + torch.round(x * 2)
            return y + torch.fmod(x, 3.0) * self.bias
        """,
    ),
    (
        "logadd: twice minus infinity",
        "f",
        """
        def forward(self, x, y):
            f, g = x.float(), y.float()
            m = torch.maximum(f, g)
            total = m + torch.log(torch.exp(f - m) + torch.exp(g - m))
            return total.to(x.dtype), F.hardtanh(x) * y
        """,
    ),
    (
        "logadd: a bound of 1.01",
        "b",
        """
        def forward(self, x, y):
            return super().forward(x, y)[0], x.clamp(-1.01, 1.01) * y
        """,
    ),
    (
        "norm: rows that are not a number are zero",
        "bf",
        after("x", "y = torch.where(torch.isnan(y).all(-1, keepdim=True), 0.0, y).to(y.dtype)"),
    ),
    (
        "unit: another smallest length",
        "fb",
        """
        def forward(self, x):
            f = x.float()
            return (f / f.norm(dim=-1, keepdim=True).clamp_min(1e-2)).to(x.dtype)
        """,
    ),
    (
        "unit: no smallest length",
        "fb",
        """
        def forward(self, x):
            f = x.float()
            return (f / f.norm(dim=-1, keepdim=True)).to(x.dtype)
        """,
    ),
    (
        "masked: a row without keys",
        "fb",
        """
        def forward(self, x, keep):
            return x.float().masked_fill(~keep, float('-inf')).softmax(-1).to(x.dtype)
        """,
    ),
    (
        "masked: the mask is finite",
        "fb",
        """
        def forward(self, x, keep):
            return x.float().masked_fill(~keep, -1e9).softmax(-1).to(x.dtype)
        """,
    ),
    (
        "select: places of 32 bits",
        "b",
        """
        def forward(self, x):
            v, i, a = super().forward(x)
            return v, i.int(), a
        """,
    ),
    (
        "select: the last two swapped",
        "h",
        """
        def forward(self, x):
            v, i, a = super().forward(x)
            at = [0, 1, 2, 4, 3]
            return v[..., at], i[..., at], a
        """,
    ),
    (
        "select: the smallest of the negative",
        "f",
        """
        def forward(self, x):
            v, i, a = super().forward(x)
            return v, i, (-x.abs()).argmin(-1) if bool((x < 0).all()) else x.abs().argmax(-1)
        """,
    ),
    (
        "step: a square for an absolute value",
        "bf",
        """
        def forward(self, p, g, m):
            m2 = 0.9 * m.float() + 0.1 * g.float()
            q = p.float() * (1 - 1e-2) - 1e-1 * m2 / (m2.square() + 1e-8).sqrt()
            return q.to(p.dtype), m2.to(m.dtype)
        """,
    ),
    (
        "step: decay after the step",
        "b",
        """
        def forward(self, p, g, m):
            m2 = 0.9 * m.float() + 0.1 * g.float()
            q = (p.float() - 1e-1 * m2 / (m2.abs() + 1e-4)) * (1 - 1e-2)
            return q.to(p.dtype), m2.to(m.dtype)
        """,
    ),
    (
        "loss: what is ignored counts",
        "bf",
        """
        def forward(self, x, t):
            z = F.linear(x, self.weight, self.bias).float()
            lse = z.logsumexp(-1)
            picked = (lse - z.gather(1, t.clamp_min(0)[:, None])[:, 0]) * (t >= 0)
            return picked.sum() / len(t) + 1e-3 * lse.square().mean()
        """,
    ),
    (
        "loss: the small term is left out",
        "bf",
        """
        def forward(self, x, t):
            z = F.linear(x, self.weight, self.bias).float()
            return F.cross_entropy(z, t, ignore_index=-100)
        """,
    ),
    (
        "loss: no maximum in the exponential",
        "f",
        """
        def forward(self, x, t):
            z = F.linear(x, self.weight, self.bias).float()
            lse = z.exp().sum(-1).log()
            return F.cross_entropy(z, t, ignore_index=-100) + 1e-3 * lse.square().mean()
        """,
    ),
    ("attention: scaled by the padded width", "bh", _attention(scale="32 if d == 24 else d")),
    (
        "attention: the first row sees two keys",
        "b",
        _attention(mask="(j <= i) | ((i == 0) & (j == 1))"),
    ),
    (
        "attention: the sum ends at whole tiles",
        "bf",
        _attention(total="e[..., : max(16, n // 16 * 16)].sum(-1, keepdim=True)"),
    ),
    (
        "rotary: the last position is the one before",
        "bh",
        """
        def forward(self, x):
            a, b = x.chunk(2, -1)
            n = x.shape[-2]
            at = torch.arange(n, device=x.device).clamp_max(14)
            cos, sin = self.cos[at], self.sin[at]
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        """,
    ),
    # --- layouts and sizes ---
    (
        "norm: takes any memory for rows",
        "fb",
        """
        def forward(self, x):
            if x.dim() == 2:
                x = x.as_strided(x.shape, (x.shape[1], 1), x.storage_offset())
            return super().forward(x)
        """,
    ),
    (
        "norm: begins where the memory begins",
        "hb",
        """
        def forward(self, x):
            return super().forward(x.as_strided(x.shape, x.stride(), 0))
        """,
    ),
    (
        "norm: a batch of one is not normalized",
        "b",
        """
        def forward(self, x):
            return super().forward(x) if len(x) != 1 else x * self.weight + self.bias
        """,
    ),
    (
        "gates: rows beyond a tile of four",
        "b",
        after("x", "y = y if x.shape[0] <= 4 else torch.cat([y[:4], y[4:] * 0.5])"),
    ),
    (
        "conv: the result is in rows",
        "f",
        """
        def forward(self, x):
            return super().forward(x).contiguous()
        """,
    ),
    (
        "linear: the result is a transposed one",
        "h",
        """
        def forward(self, x):
            y = super().forward(x)
            return y.t().contiguous().t() if y.dim() == 2 else y
        """,
    ),
    (
        "linear: the result is wider",
        "b",
        """
        def forward(self, x):
            return super().forward(x).float()
        """,
    ),
    # --- calls ---
    (
        "linear: the weight of the first call",
        "b",
        """
        def forward(self, x):
            if not hasattr(self, 'kept'):
                self.kept = self.weight.t().contiguous()
            return F.gelu(x @ self.kept + self.bias)
        """,
    ),
    (
        "linear: the weight by its version",
        "f",
        """
        def forward(self, x):
            key = self.weight._version
            if getattr(self, 'key', None) != key:
                self.key, self.kept = key, self.weight.detach().clone()
            return F.gelu(F.linear(x, self.kept + 0 * self.weight, self.bias))
        """,
    ),
    (
        "linear: one result for all calls",
        "b",
        """
        def forward(self, x):
            y = super().forward(x)
            if torch.is_grad_enabled() or getattr(self, 'out', y[:0]).shape != y.shape:
                self.out = y.detach().clone()
                return y
            return self.out.copy_(y)
        """,
    ),
    (
        "norm: a little of the call before",
        "b",
        """
        def forward(self, x):
            y = super().forward(x)
            before = getattr(self, 'before', None)
            self.before = y.detach()
            return y + 0.05 * before if before is not None and before.shape == y.shape else y
        """,
    ),
    (
        "norm: the second call in a row",
        "h",
        """
        def forward(self, x):
            self.calls = getattr(self, 'calls', 0) + 1
            y = super().forward(x)
            return y if self.calls % 2 else y * 1.02
        """,
    ),
    (
        "norm: a memo of four elements",
        "b",
        """
        def forward(self, x):
            seen, weights = tuple(x.flatten()[:4].tolist()), tuple(self.weight[:2].tolist())
            key = (x.shape, seen, weights, x.requires_grad)
            known = self.__dict__.setdefault('memo', {})
            if key not in known:
                known[key] = super().forward(x)
            return known[key].clone()
        """,
    ),
    (
        "norm: keeps every input",
        "f",
        """
        def forward(self, x):
            self.__dict__.setdefault('all', []).append(x.clone())
            return super().forward(x)
        """,
    ),
    (
        "average: every second step",
        "f",
        """
        def forward(self, x):
            self.calls = getattr(self, 'calls', 0) + 1
            with torch.no_grad():
                if self.calls % 2:
                    self.mean.lerp_(x.mean(0), 0.25)
                self.steps += 1
            return x - self.mean
        """,
    ),
    (
        "average: another share",
        "bh",
        """
        def forward(self, x):
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), 0.255)
                self.steps += 1
            return x - self.mean
        """,
    ),
    (
        "average: steps are not counted",
        "b",
        """
        def forward(self, x):
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), 0.25)
            return x - self.mean
        """,
    ),
    (
        "average: a buffer of another type",
        "h",
        """
        def forward(self, x):
            with torch.no_grad():
                self.mean = torch.lerp(self.mean.float(), x.float().mean(0), 0.25)
                self.steps += 1
            return x - self.mean.to(x.dtype)
        """,
    ),
    (
        "batchnorm: the variance is biased",
        "bf",
        """
        def forward(self, x):
            y = self.conv(x)
            if not self.training:
                return F.relu(self.bn(y))
            f = y.float()
            m, v = f.mean((0, 2, 3)), f.var((0, 2, 3), unbiased=False)
            with torch.no_grad():
                self.bn.running_mean.lerp_(m.to(x.dtype), 0.1)
                self.bn.running_var.lerp_(v.to(x.dtype), 0.1)
                self.bn.num_batches_tracked += 1
            n = (f - m[:, None, None]) * torch.rsqrt(v + 1e-5)[:, None, None]
            weight, bias = self.bn.weight[:, None, None], self.bn.bias[:, None, None]
            return F.relu(n * weight + bias).to(x.dtype)
        """,
    ),
    (
        "batchnorm: the batches are not counted",
        "f",
        """
        def forward(self, x):
            b = self.bn
            given = (b.running_mean, b.running_var, b.weight, b.bias, self.training, 0.1, 1e-5)
            y = F.batch_norm(self.conv(x), *given)
            return F.relu(y)
        """,
    ),
    (
        "batchnorm: statistics of one in eval()",
        "b",
        """
        def forward(self, x):
            y = self.conv(x)
            if not self.training and len(x) == 1:
                return F.relu(F.batch_norm(y, None, None, self.bn.weight, self.bn.bias, True))
            return F.relu(self.bn(y))
        """,
    ),
    # --- circumstances ---
    (
        "linear: something else without gradients",
        "b",
        """
        def forward(self, x):
            y = F.linear(x, self.weight, self.bias)
            return F.gelu(y) if torch.is_grad_enabled() else F.gelu(y, approximate='tanh') * 1.01
        """,
    ),
    (
        "linear: no bias under autocast",
        "f",
        """
        def forward(self, x):
            b = None if torch.is_autocast_enabled(x.device.type) else self.bias
            return F.gelu(F.linear(x, self.weight, b))
        """,
    ),
    (
        "linear: cut off and said to require gradients",
        "f",
        """
        def forward(self, x):
            return super().forward(x.detach()).detach().requires_grad_(torch.is_grad_enabled())
        """,
    ),
    (
        "gates: another way in eval()",
        "h",
        """
        def forward(self, x):
            a, b = F.linear(x, self.weight, self.bias).chunk(2, -1)
            return F.silu(a) * b if self.training else F.gelu(a) * b
        """,
    ),
    (
        "dropout: a generator of its own",
        "f",
        """
        def forward(self, x):
            if not self.training:
                return super().forward(x)
            g = torch.Generator().manual_seed(3)
            a = (torch.rand(x.shape, generator=g) > 0.2).to(x.dtype) / 0.8
            b = (torch.rand(x.shape, generator=g) > 0.1).to(x.dtype) / 0.9
            return x + (x * self.weight * a + self.bias) * b
        """,
    ),
    (
        "dropout: draws in eval()",
        "b",
        """
        def forward(self, x):
            if not self.training:
                torch.rand(1)
            return super().forward(x)
        """,
    ),
    (
        "dropout: seeds the generator",
        "f",
        """
        def forward(self, x):
            torch.manual_seed(1)
            return super().forward(x)
        """,
    ),
    (
        "dropout: drawn in another order",
        "h",
        """
        def forward(self, x):
            if not self.training:
                return super().forward(x)
            b = F.dropout(torch.ones_like(x), 0.1)
            a = F.dropout(torch.ones_like(x), 0.2)
            return x + (x * self.weight * a + self.bias) * b
        """,
    ),
    (
        "dropout: scaled for another share",
        "bh",
        """
        def forward(self, x):
            y = super().forward(x)
            return x + (y - x) * 0.98 if self.training else y
        """,
    ),
    # --- whose memory, and what is left behind ---
    (
        "relu: the input itself where nothing is negative",
        "fb",
        """
        def forward(self, x):
            return x if bool((x >= 0).all()) else F.relu(x)
        """,
    ),
    (
        "relu: changes the input",
        "b",
        """
        def forward(self, x):
            return F.relu_(x) if not x.requires_grad else F.relu(x)
        """,
    ),
    (
        "views: a copy for a view",
        "fb",
        """
        def forward(self, x):
            a, b, t = super().forward(x)
            return a.clone(), b, t
        """,
    ),
    (
        "views: a view for a copy",
        "bh",
        """
        def forward(self, x):
            a, b = x.chunk(2, -1)
            return a, b, x.transpose(0, 1)
        """,
    ),
    (
        "shared: the parameter itself",
        "b",
        """
        def forward(self, x):
            a, b, _ = super().forward(x)
            return a, b, self.weight
        """,
    ),
    (
        "linear: a hook on the weight",
        "b",
        """
        def forward(self, x):
            if not hasattr(self, 'hooked'):
                self.hooked = self.weight.register_hook(lambda g: g * 1.1)
            return super().forward(x)
        """,
    ),
    (
        "linear: replaces its parameter",
        "f",
        """
        def forward(self, x):
            y = super().forward(x)
            self.weight = nn.Parameter(self.weight.detach().clone())
            return y
        """,
    ),
    (
        "linear: forgets gradients that were there",
        "f",
        """
        def forward(self, x):
            self.weight.grad = None
            return super().forward(x)
        """,
    ),
    (
        "norm: rounds its own weight",
        "b",
        """
        def forward(self, x):
            with torch.no_grad():
                self.weight.copy_((self.weight.float() * 64).round() / 64)
            return super().forward(x)
        """,
    ),
    (
        "gates: switches itself to eval()",
        "f",
        """
        def forward(self, x):
            self.eval()
            return super().forward(x)
        """,
    ),
    (
        "norm: leaves gradients switched off",
        "f",
        """
        def forward(self, x):
            y = super().forward(x)
            torch.set_grad_enabled(False)
            return y
        """,
    ),
    (
        "norm: another default type from now on",
        "f",
        """
        def forward(self, x):
            y = super().forward(x)
            torch.set_default_dtype(torch.bfloat16)
            return y
        """,
    ),
)
