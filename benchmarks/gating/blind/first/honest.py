"""Right, in styles that people and models use and that a judge may not be used to; as in
`wrong.py`."""

_LINEAR_GELU = """
class Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w, b)
        return F.gelu(F.linear(x, w, b))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        x, w, b = ctx.saved_tensors
        with torch.enable_grad():
            again = [one.detach().requires_grad_(True) for one in (x, w, b)]
            y = F.gelu(F.linear(*again))
        return torch.autograd.grad(y, again, g)
----
def forward(self, x):
    return Fused.apply(x, self.weight, self.bias)
"""
_ENTROPY = """
class Entropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, t):
        total, grads = x.new_zeros((), dtype=torch.float32), []
        for rows, aims in zip(x.split(7), t.split(7)):
            f = rows.float()
            lse = f.logsumexp(-1, keepdim=True)
            total += (lse[:, 0] - f.gather(1, aims[:, None])[:, 0]).sum()
            p = torch.exp(f - lse)
            p.scatter_add_(1, aims[:, None], -torch.ones_like(aims[:, None], dtype=p.dtype))
            grads.append(p / len(t))
        ctx.save_for_backward(torch.cat(grads))
        return (total / len(t)).to(x.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        grad, = ctx.saved_tensors
        return (grad * g).to(g.dtype), None
----
def forward(self, x, t):
    return Entropy.apply(x, t) if len(t) else super().forward(x, t)
"""
_ONLINE = """
def forward(self, q, k, v):
    n, d = q.shape[-2], q.shape[-1]
    f, i = q.float() / math.sqrt(d), torch.arange(n, device=q.device)[:, None]
    top = torch.full_like(f[..., :1], float('-inf'))
    total, made = torch.zeros_like(top), torch.zeros_like(f)
    for first in range(0, n, 8):
        ks, vs = k[..., first : first + 8, :].float(), v[..., first : first + 8, :].float()
        j = first + torch.arange(ks.shape[-2], device=q.device)[None, :]
        s = (f @ ks.transpose(-1, -2)).masked_fill(j > i, float('-inf'))
        new = torch.maximum(top, s.amax(-1, keepdim=True))
        scale, e = torch.exp(top - new), torch.exp(s - new)
        total, made, top = total * scale + e.sum(-1, keepdim=True), made * scale + e @ vs, new
    return (made / total).to(q.dtype)
"""
_BATCHNORM = """
def forward(self, x):
    b, y = self.bn, self.conv(x)
    if not self.training:
        scale = b.weight.float() * torch.rsqrt(b.running_var.float() + b.eps)
        shift = b.bias.float() - b.running_mean.float() * scale
        return F.relu(y.float() * scale[:, None, None] + shift[:, None, None]).to(x.dtype)
    f = y.float()
    v, m = torch.var_mean(f, (0, 2, 3), correction=0)
    n = f.numel() // f.shape[1]
    with torch.no_grad():
        b.running_mean.copy_(b.running_mean.float() * 0.9 + 0.1 * m)
        b.running_var.copy_(b.running_var.float() * 0.9 + 0.1 * v * n / max(n - 1, 1))
        b.num_batches_tracked.add_(1)
    r = torch.rsqrt(v + b.eps)[:, None, None]
    z = (f - m[:, None, None]) * r * b.weight[:, None, None] + b.bias[:, None, None]
    return F.relu(z).to(x.dtype)
"""

HONEST: tuple[tuple[str, str, str], ...] = (
    (
        "norm: torch's own",
        "bhf",
        """
        def forward(self, x):
            return F.layer_norm(x, (x.shape[-1],), self.weight, self.bias, 1e-5)
        """,
    ),
    (
        "norm: computed again in backward",
        "bf",
        """
        def forward(self, x):
            from torch.utils.checkpoint import checkpoint
            return checkpoint(super().forward, x, use_reentrant=False)
        """,
    ),
    (
        "norm: by parts of a row",
        "bh",
        """
        def forward(self, x):
            f = x.float()
            n = f.shape[-1]
            parts = f.split(16, -1)
            m = sum(p.sum(-1, keepdim=True) for p in parts) / n
            v = sum((p - m).square().sum(-1, keepdim=True) for p in parts) / n
            r = torch.rsqrt(v + 1e-5)
            y = torch.cat([(p - m) * r for p in parts], -1)
            return torch.addcmul(self.bias.float(), y, self.weight.float()).to(x.dtype)
        """,
    ),
    (
        "norm: scale and shift",
        "bf",
        """
        def forward(self, x):
            f = x.float()
            v, m = torch.var_mean(f, -1, keepdim=True, correction=0)
            r = torch.rsqrt(v + 1e-5)
            return ((f - m) * (r * self.weight) + self.bias).to(x.dtype)
        """,
    ),
    (
        "norm: in float64",
        "bf",
        """
        def forward(self, x):
            f = x.double()
            d = f - f.mean(-1, keepdim=True)
            y = d / (d.square().mean(-1, keepdim=True) + 1e-5).sqrt()
            return (y * self.weight + self.bias).to(x.dtype)
        """,
    ),
    ("linear: computed again in backward", "bhf", _LINEAR_GELU),
    (
        "linear: parts of the sum",
        "bf",
        """
        def forward(self, x):
            a, w = x.float().split(12, -1), self.weight.float().split(12, -1)
            y = sum(p @ q.t() for p, q in zip(a, w)) + self.bias
            return F.gelu(y).to(x.dtype)
        """,
    ),
    (
        "linear: rows by rows",
        "bf",
        """
        def forward(self, x):
            rows = [F.gelu(F.linear(r, self.weight, self.bias)) for r in x.split(5)]
            return torch.cat(rows)
        """,
    ),
    (
        "linear: the error function",
        "hf",
        """
        def forward(self, x):
            y = F.linear(x, self.weight, self.bias).float()
            return (y * 0.5 * (1 + torch.erf(y * 0.7071067811865476))).to(x.dtype)
        """,
    ),
    (
        "linear: the other way around",
        "bf",
        """
        def forward(self, x):
            y = torch.addmm(self.bias[:, None], self.weight, x.t())
            return F.gelu(y).t().contiguous()
        """,
    ),
    (
        "linear: einsum",
        "bh",
        """
        def forward(self, x):
            y = torch.einsum('mk,nk->mn', x.float(), self.weight.float()) + self.bias.float()
            return F.gelu(y).to(x.dtype)
        """,
    ),
    (
        "loss: chosen by hand",
        "bf",
        """
        def forward(self, x, t):
            z = F.linear(x, self.weight, self.bias).float()
            lse = torch.logsumexp(z, -1)
            picked = z.gather(1, t.clamp_min(0)[:, None])[:, 0]
            kept = t != -100
            nll = torch.where(kept, lse - picked, 0.0).sum() / kept.sum()
            return nll + 1e-3 * lse.square().mean()
        """,
    ),
    (
        "loss: by parts of the classes",
        "bf",
        """
        def forward(self, x, t):
            tops, sums, picked = [], [], 0.0
            for first in range(0, 50, 16):
                w, b = self.weight[first : first + 16], self.bias[first : first + 16]
                z = F.linear(x, w, b).float()
                tops.append(z.logsumexp(-1))
                at = (t - first)[:, None]
                inside = (at >= 0) & (at < z.shape[1])
                found = z.gather(1, at.clamp(0, z.shape[1] - 1))
                picked = picked + torch.where(inside, found, 0.0)[:, 0]
            lse = torch.stack(tops).logsumexp(0)
            kept = t != -100
            nll = torch.where(kept, lse - picked, 0.0).sum() / kept.sum()
            return nll + 1e-3 * lse.square().mean()
        """,
    ),
    ("entropy: its gradient in the forward", "bhf", _ENTROPY),
    (
        "entropy: through log_softmax",
        "bf",
        """
        def forward(self, x, t):
            return F.nll_loss(torch.log_softmax(x.float(), -1), t).to(x.dtype)
        """,
    ),
    ("attention: online softmax", "bhf", _ONLINE),
    (
        "attention: torch's own",
        "f",
        """
        def forward(self, q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        """,
    ),
    (
        "attention: head by head",
        "bf",
        """
        def forward(self, q, k, v):
            one = super().forward
            heads = [one(q[:, h], k[:, h], v[:, h]) for h in range(q.shape[1])]
            return torch.stack(heads, 1)
        """,
    ),
    (
        "attention: divided at the end",
        "bh",
        """
        def forward(self, q, k, v):
            s = torch.einsum('bhid,bhjd->bhij', q.float(), k.float()) * q.shape[-1] ** -0.5
            n = s.shape[-1]
            later = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
            s = s.masked_fill(later, float('-inf'))
            e = (s - s.amax(-1, keepdim=True)).exp()
            made = torch.einsum('bhij,bhjd->bhid', e, v.float())
            return (made / e.sum(-1, keepdim=True)).to(q.dtype)
        """,
    ),
    (
        "masked: the sum of what is kept",
        "bf",
        """
        def forward(self, x, keep):
            f = x.float().masked_fill(~keep, float('-inf'))
            top = f.amax(-1, keepdim=True)
            e = torch.exp(f - torch.where(top == float('-inf'), 0.0, top))
            s = e.sum(-1, keepdim=True)
            return torch.nan_to_num(torch.where(s == 0, 0.0, e / s), nan=0.0).to(x.dtype)
        """,
    ),
    (
        "embedding: a product with ones",
        "bf",
        """
        def forward(self, i):
            w = self.table.weight
            w = torch.cat([w[:3], w[3:4].detach(), w[4:]])
            counts = F.one_hot(i, 11).sum(1).float()
            return (counts @ w.float()).to(DT)
        """,
    ),
    (
        "embedding: summed by index",
        "bf",
        """
        def forward(self, i):
            rows = F.embedding(i.reshape(-1), self.table.weight, padding_idx=3).float()
            owner = torch.arange(len(i), device=i.device).repeat_interleave(i.shape[1])
            out = rows.new_zeros(len(i), 16).index_add(0, owner, rows)
            return out.to(DT)
        """,
    ),
    ("batchnorm: by hand", "bf", _BATCHNORM),
    (
        "batchnorm: torch's function",
        "bhf",
        """
        def forward(self, x):
            b = self.bn
            if self.training:
                b.num_batches_tracked.add_(1)
            given = (b.running_mean, b.running_var, b.weight, b.bias, self.training, 0.1, b.eps)
            y = F.batch_norm(self.conv(x), *given)
            return F.relu_(y)
        """,
    ),
    (
        "conv: columns and a product",
        "f",
        """
        def forward(self, x):
            n, _, h, w = x.shape
            columns = F.unfold(x, 3, padding=1)
            y = self.conv.weight.flatten(1) @ columns + self.conv.bias[:, None]
            y = F.silu(y).view(n, 8, h, w)
            return y.contiguous(memory_format=torch.channels_last)
        """,
    ),
    (
        "conv: silu by its sigmoid",
        "bf",
        """
        def forward(self, x):
            y = self.conv(x)
            return (y.float() * torch.sigmoid(y.float())).to(y.dtype)
        """,
    ),
    (
        "dropout: one pass",
        "bf",
        """
        def forward(self, x):
            if not self.training:
                return torch.add(torch.addcmul(self.bias, x, self.weight), x)
            y = F.dropout(x * self.weight, 0.2, True)
            return torch.add(F.dropout(y + self.bias, 0.1, True), x)
        """,
    ),
    (
        "scan: chunks with a carry",
        "bhf",
        """
        def forward(self, x):
            f = x.float() * self.weight[:, None]
            parts, carry = [], 0.0
            for part in f.split(16, -1):
                parts.append(part.cumsum(-1) + carry)
                carry = parts[-1][..., -1:]
            return (torch.cat(parts, -1) + self.bias[:, None]).to(x.dtype)
        """,
    ),
    (
        "select: sorted first",
        "bf",
        """
        def forward(self, x):
            v, i = torch.topk(x, 5, dim=-1, sorted=True)
            return v, i, torch.max(x, -1).indices
        """,
    ),
    (
        "views: narrowed",
        "bf",
        """
        def forward(self, x):
            h = (x.shape[-1] + 1) // 2
            turned = x.mT if x.dim() == 2 else x.transpose(0, 1)
            return x.narrow(-1, 0, h), x[..., h:].clone(), turned
        """,
    ),
    (
        "pointwise: a stable softplus",
        "bf",
        """
        def forward(self, x):
            p = x * self.weight
            y = torch.logaddexp(p, torch.zeros_like(p)) + torch.round(x + x)
            return torch.addcmul(y, torch.remainder(x, 3.0), self.bias)
        """,
    ),
    (
        "logadd: of the larger",
        "bf",
        """
        def forward(self, x, y):
            f, g = x.float(), y.float()
            return torch.logaddexp(g, f).to(x.dtype), torch.clamp(x, -1, 1) * y
        """,
    ),
    (
        "unit: a reciprocal root",
        "bf",
        """
        def forward(self, x):
            f = x.float()
            r = 1 / torch.linalg.vector_norm(f, dim=-1, keepdim=True).clamp_min(1e-12)
            return (f * r).to(x.dtype)
        """,
    ),
    (
        "average: written out",
        "bf",
        """
        def forward(self, x):
            with torch.no_grad():
                self.mean.add_((x.mean(0) - self.mean) * 0.25)
                self.steps.add_(1)
            return torch.sub(x, self.mean)
        """,
    ),
    (
        "step: foreach",
        "bf",
        """
        def forward(self, p, g, m):
            m2, = torch._foreach_lerp([m.float()], [g.float()], 0.1)
            d, = torch._foreach_abs([m2])
            torch._foreach_add_([d], 1e-4)
            q, = torch._foreach_mul([p.float()], 0.99)
            q, = torch._foreach_addcdiv([q], [m2], [d], -0.1)
            return q.to(p.dtype), m2.to(m.dtype)
        """,
    ),
    (
        "mean: two stages",
        "bhf",
        """
        def forward(self, x):
            d = (x * self.weight - self.bias).float()
            parts = torch.stack([p.square().sum(0) for p in d.split(8)]) if len(d) else d.square()
            return (parts.sum(0) / len(d)).to(x.dtype), d.sum(0).sum().to(x.dtype)
        """,
    ),
    (
        "mean: the square written out",
        "f",
        """
        def forward(self, x):
            d = (x * self.weight - self.bias).float()
            squares = torch.einsum('mn,mn->n', d, d).div(len(d))
            return squares.to(x.dtype), d.sum(1).sum().to(x.dtype)
        """,
    ),
    (
        "pool: reshaped",
        "bf",
        """
        def forward(self, x):
            n, c, h, w = x.shape
            cut = x[:, :, : h // 2 * 2, : w // 2 * 2].float()
            a = cut.reshape(n, c, h // 2, 2, w // 2, 2).mean((3, 5)).to(x.dtype)
            padded = F.pad(x, (1, 1, 1, 1), value=float('-inf'))
            return a, F.max_pool2d(padded, 3, stride=2)
        """,
    ),
    (
        "group: by hand",
        "bf",
        """
        def forward(self, x):
            n, g = self.norm, x.float().reshape(x.shape[0], 3, -1)
            v, m = torch.var_mean(g, -1, keepdim=True, correction=0)
            y = ((g - m) * torch.rsqrt(v + 1e-5)).view(x.shape)
            y = y * n.weight.float()[:, None] + n.bias.float()[:, None]
            return (y * torch.sigmoid(y)).to(x.dtype)
        """,
    ),
    (
        "gates: two products",
        "bhf",
        """
        def forward(self, x):
            (u, w), (c, b) = self.weight.chunk(2), self.bias.chunk(2)
            return F.silu(F.linear(x, u, c)) * F.linear(x, w, b)
        """,
    ),
    (
        "gates: in float32 throughout",
        "bh",
        """
        def forward(self, x):
            a, b = F.linear(x.float(), self.weight.float(), self.bias.float()).chunk(2, -1)
            return (a * torch.sigmoid(a) * b).to(x.dtype)
        """,
    ),
    (
        "rotary: complex numbers",
        "bf",
        """
        def forward(self, x):
            a, b = x.float().chunk(2, -1)
            n = x.shape[-2]
            z = torch.complex(a, b) * torch.complex(self.cos[:n].float(), self.sin[:n].float())
            return torch.cat([z.real, z.imag], -1).to(x.dtype)
        """,
    ),
    (
        "rotary: half turned",
        "bhf",
        """
        def forward(self, x):
            a, b = x.chunk(2, -1)
            n = x.shape[-2]
            cos, sin = (torch.cat([t[:n], t[:n]], -1) for t in (self.cos, self.sin))
            return x * cos + torch.cat([-b, a], -1) * sin
        """,
    ),
)
