"""One file that trains at import and then writes: float16 with scaled losses, micro-batches, a cache of its own."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

small = "--small" in sys.argv
width, depth, length, batch, micro = (64, 2, 64, 4, 2) if small else (768, 12, 1024, 8, 4)
device = "cuda" if torch.cuda.is_available() else "cpu"


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x, cache=None, at=0):
        q, k, v = (y.unflatten(-1, (-1, 32)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        if cache is not None:
            cache[0][:, :, at : at + x.shape[1]], cache[1][:, :, at : at + x.shape[1]] = k, v
            k, v = cache[0][:, :, : at + x.shape[1]], cache[1][:, :, : at + x.shape[1]]
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=x.shape[1] > 1).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms, self.attention = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)]), Attention()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, cache=None, at=0):
        x = x + self.attention(self.norms[0](x), cache, at)
        return x + self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(2 * length, width)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(depth)), nn.LayerNorm(width)

    def forward(self, tokens, targets=None, caches=None, at=0):
        x = self.tokens(tokens) + self.places(torch.arange(at, at + tokens.shape[1], device=tokens.device))
        for number, block in enumerate(self.blocks):
            x = block(x, caches[number] if caches else None, at)
        scores = self.norm(x) @ self.tokens.weight.T
        return scores if targets is None else F.cross_entropy(scores.flatten(0, 1).float(), targets.flatten())


model = Model().to(device)
optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=3e-4), torch.amp.GradScaler(device)
data = torch.randint(256, (batch * (length + 1),), device=device).view(batch, -1)
for step in range(0 if "--write" in sys.argv else 100):
    for _ in range(micro):
        with torch.autocast(device, torch.float16):
            loss = model(data[:, :-1], data[:, 1:]) / micro
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
with torch.no_grad():
    caches = [torch.zeros(2, batch, width // 32, 2 * length, 32, device=device) for _ in range(depth)]
    written, at = data[:, :length], 0
    for _ in range(length // 2):
        scores = model(written[:, at:], caches=caches, at=at)
        at = written.shape[1]
        written = torch.cat([written, scores[:, -1].softmax(-1).multinomial(1)], 1)
