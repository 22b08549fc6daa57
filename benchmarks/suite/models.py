"""Whole models: small ones of every kind that people train, hand-written where people write them by hand."""

from __future__ import annotations

from benchmarks.suite.task import SuiteTask

TOKENS = "torch.randn(8, 512, 512)"

BLOCK = """
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x):
        h = torch.relu(self.norm1(self.first(x)))
        return torch.relu(self.norm2(self.second(h)) + x)
"""

INVERTED = """
class Inverted(nn.Module):
    def __init__(self, width, factor):
        super().__init__()
        inner = width * factor
        self.body = nn.Sequential(
            nn.Conv2d(width, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU6(),
            nn.Conv2d(inner, inner, 3, padding=1, groups=inner, bias=False), nn.BatchNorm2d(inner), nn.ReLU6(),
            nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width),
        )

    def forward(self, x):
        return x + self.body(x)
"""

DENSE = """
class Dense(nn.Module):
    def __init__(self, width, growth):
        super().__init__()
        self.norm = nn.BatchNorm2d(width)
        self.conv = nn.Conv2d(width, growth, 3, padding=1, bias=False)

    def forward(self, x):
        return torch.cat([x, self.conv(torch.relu(self.norm(x)))], dim=1)
"""

ATTENTION = """
class Attention(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5
        if self.causal:
            hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(hidden, float("-inf"))
        mixed = torch.softmax(scores, dim=-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))
"""

RMS = """
class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
"""


def _perceptrons() -> list[SuiteTask]:
    gated = "self.gate, self.up, self.down = nn.Linear({0}), nn.Linear({0}), nn.Linear({1})"
    return [
        SuiteTask(name="mlp_deep", family="mlp", doc="Eight narrow layers: the launches are the time.",
             setup="self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(8))",
             forward="for layer in self.layers:\n    x = torch.relu(layer(x))\nreturn x",
             inputs={"x": "torch.randn(256, 256)"}),
        SuiteTask(name="mlp_wide", family="mlp", doc="Two wide layers.",
             setup="self.up, self.down = nn.Linear(2048, 8192), nn.Linear(8192, 2048)",
             forward="self.down(F.gelu(self.up(x)))", inputs={"x": "torch.randn(1024, 2048)"}),
        SuiteTask(name="mlp_dropout_eval", family="mlp", doc="A classifier in eval mode.",
             setup="self.up, self.down, self.drop = nn.Linear(4096, 4096), nn.Linear(4096, 1000), nn.Dropout(0.5)\n"
             "self.eval()",
             forward="torch.softmax(self.down(self.drop(torch.relu(self.up(x)))), dim=1)",
             inputs={"x": "torch.randn(1024, 4096)"}),
        SuiteTask(name="swiglu", family="mlp", doc="The gated feed-forward layer of language models.",
             setup=gated.format("1024, 4096, bias=False", "4096, 1024, bias=False"),
             forward="self.down(F.silu(self.gate(x)) * self.up(x))", inputs={"x": "torch.randn(4096, 1024)"}),
        SuiteTask(name="geglu", family="mlp", doc="The same with GELU and biases.",
             setup=gated.format("768, 3072", "3072, 768"),
             forward="self.down(F.gelu(self.gate(x)) * self.up(x))", inputs={"x": "torch.randn(4096, 768)"}),
        SuiteTask(name="highway", family="mlp", doc="Highway layers: gates between a layer and its input.",
             setup="self.gates = nn.ModuleList(nn.Linear(512, 512) for _ in range(4))\n"
             "self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(4))",
             forward="for gate, layer in zip(self.gates, self.layers):\n    t = torch.sigmoid(gate(x))\n"
             "    x = t * torch.relu(layer(x)) + (1 - t) * x\nreturn x",
             inputs={"x": "torch.randn(4096, 512)"}),
        SuiteTask(name="residual_mlp", family="mlp", doc="Residual layers with a norm in front.",
             setup="self.norms = nn.ModuleList(nn.LayerNorm(1024) for _ in range(4))\n"
             "self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(4))",
             forward="for norm, layer in zip(self.norms, self.layers):\n    x = x + F.gelu(layer(norm(x)))\nreturn x",
             inputs={"x": "torch.randn(4096, 1024)"}),
        SuiteTask(name="recommender", family="mlp", doc="Embeddings, pairwise products, a perceptron.",
             setup="self.table = nn.Embedding(100000, 64)\nself.top = nn.Linear(26 * 26, 256)\nself.out = nn.Linear(256, 1)",
             forward="e = self.table(index)\nh = torch.bmm(e, e.transpose(1, 2)).flatten(1)\n"
             "return torch.sigmoid(self.out(torch.relu(self.top(h))))",
             inputs={"index": "torch.randint(0, 100000, (4096, 26))"}),
        SuiteTask(name="mixture_dense", family="mlp", doc="Four experts, all of them computed and weighed.",
             setup="self.gate = nn.Linear(512, 4)\nself.experts = nn.ModuleList(nn.Linear(512, 512) for _ in range(4))",
             forward="weights = torch.softmax(self.gate(x), dim=-1)\n"
             "h = torch.stack([torch.relu(expert(x)) for expert in self.experts], dim=-1)\n"
             "return (h * weights.unsqueeze(-2)).sum(-1)",
             inputs={"x": "torch.randn(4096, 512)"}),
        SuiteTask(name="autoencoder", family="mlp", doc="A bottleneck of features.",
             setup="sizes = [2048, 512, 64, 512, 2048]\n"
             "self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))",
             forward="for layer in self.layers[:-1]:\n    x = torch.tanh(layer(x))\nreturn torch.sigmoid(self.layers[-1](x))",
             inputs={"x": "torch.randn(4096, 2048)"}),
    ]  # fmt: skip


def _images() -> list[SuiteTask]:
    return [
        SuiteTask(name="residual_cnn_eval", family="cnn", doc="Residual blocks in eval mode.", helpers=BLOCK,
             setup="self.stem = nn.Conv2d(3, 64, 3, padding=1)\n"
             "self.blocks = nn.Sequential(*[Block(64) for _ in range(3)])\nself.head = nn.Linear(64, 10)\nself.eval()",
             forward="h = self.blocks(torch.relu(self.stem(x)))\nreturn self.head(h.mean(dim=(2, 3)))",
             inputs={"x": "torch.randn(32, 3, 64, 64)"}),
        SuiteTask(name="residual_cnn_train", family="cnn", doc="Near miss: the same with batch statistics.", helpers=BLOCK,
             setup="self.stem = nn.Conv2d(3, 64, 3, padding=1)\nself.blocks = nn.Sequential(*[Block(64) for _ in range(2)])",
             forward="self.blocks(torch.relu(self.stem(x)))", inputs={"x": "torch.randn(32, 3, 64, 64)"}),
        SuiteTask(name="inverted_residual_eval", family="cnn", doc="Inverted residuals in eval mode.", helpers=INVERTED,
             setup="self.blocks = nn.Sequential(*[Inverted(32, 6) for _ in range(3)])\nself.eval()",
             forward="self.blocks(x)", inputs={"x": "torch.randn(32, 32, 56, 56)"}),
        SuiteTask(name="dense_block_eval", family="cnn", doc="Densely connected layers: concatenations everywhere.",
             helpers=DENSE, setup="self.layers = nn.ModuleList(Dense(64 + 32 * i, 32) for i in range(4))\nself.eval()",
             forward="for layer in self.layers:\n    x = layer(x)\nreturn x", inputs={"x": "torch.randn(32, 64, 32, 32)"}),
        SuiteTask(name="squeeze_excite", family="cnn", doc="Channels weighed by their own means.",
             setup="self.squeeze, self.excite = nn.Linear(256, 16), nn.Linear(16, 256)",
             forward="s = torch.sigmoid(self.excite(torch.relu(self.squeeze(x.mean(dim=(2, 3))))))\n"
             "return x * s[:, :, None, None]", inputs={"x": "torch.randn(32, 256, 56, 56)"}),
        SuiteTask(name="plain_cnn", family="cnn", doc="Convolutions, pools, a classifier.",
             setup="self.conv1, self.conv2 = nn.Conv2d(3, 32, 5), nn.Conv2d(32, 64, 5)\nself.head = nn.Linear(64 * 29 * 29, 10)",
             forward="h = F.max_pool2d(torch.relu(self.conv1(x)), 2)\nh = F.max_pool2d(torch.relu(self.conv2(h)), 2)\n"
             "return self.head(h.flatten(1))", inputs={"x": "torch.randn(64, 3, 128, 128)"}),
        SuiteTask(name="convnext_like", family="cnn", doc="Depthwise 7x7, LayerNorm over channels, a perceptron.",
             setup="self.mix = nn.Conv2d(96, 96, 7, padding=3, groups=96)\nself.norm = nn.LayerNorm(96)\n"
             "self.up, self.down = nn.Linear(96, 384), nn.Linear(384, 96)",
             forward="h = self.mix(x).permute(0, 2, 3, 1)\nh = self.down(F.gelu(self.up(self.norm(h))))\n"
             "return x + h.permute(0, 3, 1, 2)", inputs={"x": "torch.randn(16, 96, 56, 56)"}),
        SuiteTask(name="u_net", family="cnn", doc="Down, up, and a skip.",
             setup="self.down1, self.down2 = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)\n"
             "self.up = nn.ConvTranspose2d(64, 32, 2, stride=2)\nself.out = nn.Conv2d(64, 1, 1)",
             forward="a = torch.relu(self.down1(x))\nb = torch.relu(self.down2(F.max_pool2d(a, 2)))\n"
             "return torch.sigmoid(self.out(torch.cat([a, torch.relu(self.up(b))], dim=1)))",
             inputs={"x": "torch.randn(16, 3, 128, 128)"}),
        SuiteTask(name="generator", family="cnn", doc="Transposed convolutions from a code to an image.",
             setup="self.layers = nn.Sequential(\n    nn.ConvTranspose2d(128, 128, 4), nn.BatchNorm2d(128), nn.ReLU(),\n"
             "    nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.BatchNorm2d(64), nn.ReLU(),\n"
             "    nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh(),\n)\nself.eval()",
             forward="self.layers(z)", inputs={"z": "torch.randn(512, 128, 1, 1)"}),
        SuiteTask(name="wave_net_like", family="cnn", doc="Gated dilated convolutions of signals.",
             setup="self.filters = nn.ModuleList(nn.Conv1d(64, 64, 3, dilation=2**i, padding=2**i) for i in range(4))\n"
             "self.gates = nn.ModuleList(nn.Conv1d(64, 64, 3, dilation=2**i, padding=2**i) for i in range(4))",
             forward="for f, g in zip(self.filters, self.gates):\n    x = x + torch.tanh(f(x)) * torch.sigmoid(g(x))\nreturn x",
             inputs={"x": "torch.randn(16, 64, 4096)"}),
        SuiteTask(name="pixel_shuffle_upsampler", family="cnn", doc="Upsampling by a shuffle of channels.",
             setup="self.conv1, self.conv2 = nn.Conv2d(3, 64, 5, padding=2), nn.Conv2d(64, 12, 3, padding=1)",
             forward="F.pixel_shuffle(self.conv2(torch.tanh(self.conv1(x))), 2)",
             inputs={"x": "torch.randn(16, 3, 96, 96)"}),
        SuiteTask(name="shuffle_block", family="cnn", doc="Grouped convolutions and a shuffle of channels.",
             setup="self.reduce = nn.Conv2d(240, 240, 1, groups=3)\nself.spatial = nn.Conv2d(240, 240, 3, padding=1, groups=240)",
             forward="h = torch.relu(self.reduce(x))\nn, c, height, width = h.shape\n"
             "h = h.view(n, 3, c // 3, height, width).transpose(1, 2).reshape(n, c, height, width)\n"
             "return torch.relu(x + self.spatial(h))", inputs={"x": "torch.randn(32, 240, 28, 28)"}),
    ]  # fmt: skip


def _transformers() -> list[SuiteTask]:
    block = (
        "self.norm1, self.norm2 = nn.LayerNorm(512), nn.LayerNorm(512)\nself.attention = Attention(512, 8, {causal})\n"
        "self.up, self.down = nn.Linear(512, 2048), nn.Linear(2048, 512)"
    )
    pre = "x = x + self.attention(self.norm1(x))\nreturn x + self.down({activation}(self.up(self.norm2(x))))"
    post = "x = self.norm1(x + self.attention(x))\nreturn self.norm2(x + self.down(torch.relu(self.up(x))))"
    rope = (
        "batch, length, width = x.shape\nq, k, v = self.qkv(x).view(batch, length, 3, 8, 64).permute(2, 0, 3, 1, 4)\n"
        "q = q * self.cos + torch.cat([-q[..., 32:], q[..., :32]], dim=-1) * self.sin\n"
        "k = k * self.cos + torch.cat([-k[..., 32:], k[..., :32]], dim=-1) * self.sin\n"
        "h = F.scaled_dot_product_attention(q, k, v, is_causal=True)\n"
        "return self.out(h.transpose(1, 2).reshape(batch, length, width))"
    )
    tables = (
        "angle = torch.outer(torch.arange(512.0), 10000 ** (-torch.arange(32) / 32))\n"
        'self.register_buffer("cos", torch.cat([angle, angle], dim=1).cos())\n'
        'self.register_buffer("sin", torch.cat([angle, angle], dim=1).sin())\n'
    )
    return [
        SuiteTask(name="transformer_pre_norm", family="transformer", doc="A pre-norm encoder block.", helpers=ATTENTION,
             setup=block.format(causal=False), forward=pre.format(activation="F.gelu"), inputs={"x": TOKENS}),
        SuiteTask(name="transformer_post_norm", family="transformer", doc="A post-norm block.", helpers=ATTENTION,
             setup=block.format(causal=False), forward=post, inputs={"x": TOKENS}),
        SuiteTask(name="transformer_causal", family="transformer", doc="A causal block with a hand-written mask.",
             helpers=ATTENTION, setup=block.format(causal=True), forward=pre.format(activation="F.gelu"),
             inputs={"x": TOKENS}),
        SuiteTask(name="transformer_new_gelu", family="transformer", doc="A causal block with GELU's tanh form by hand.",
             helpers=ATTENTION, setup=block.format(causal=True),
             forward="x = x + self.attention(self.norm1(x))\nh = self.up(self.norm2(x))\n"
             "h = 0.5 * h * (1 + torch.tanh(0.7978845608 * (h + 0.044715 * h**3)))\nreturn x + self.down(h)",
             inputs={"x": TOKENS}),
        SuiteTask(name="language_block", family="transformer", doc="RMSNorm, rotary attention, no biases.", helpers=RMS,
             setup=tables + "self.norm = RMSNorm(512)\nself.qkv = nn.Linear(512, 1536, bias=False)\n"
             "self.out = nn.Linear(512, 512, bias=False)",
             forward="kept = x\nx = self.norm(x)\n" + rope.replace("return self.out", "return kept + self.out"),
             inputs={"x": TOKENS}),
        SuiteTask(name="rotary_attention", family="transformer", doc="Rotary embeddings written out.",
             setup=tables + "self.qkv, self.out = nn.Linear(512, 1536), nn.Linear(512, 512)", forward=rope,
             inputs={"x": TOKENS}),
        SuiteTask(name="relu_attention", family="transformer", doc="Near miss: causal attention with ReLU, not softmax.",
             setup="self.qkv = nn.Linear(512, 1536)",
             forward="batch, length, width = x.shape\n"
             "q, k, v = self.qkv(x).view(batch, length, 3, 8, 64).permute(2, 0, 3, 1, 4)\n"
             "hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)\n"
             "scores = torch.relu((q @ k.transpose(-2, -1) * 0.125).masked_fill(hidden, 0.0))\n"
             "return (scores @ v).transpose(1, 2).reshape(batch, length, width)", inputs={"x": TOKENS}),
        SuiteTask(name="grouped_query_attention", family="transformer", doc="Eight queries share two keys.",
             forward="k = k.repeat_interleave(4, dim=1)\nv = v.repeat_interleave(4, dim=1)\n"
             "return torch.softmax(q @ k.transpose(-2, -1) * 0.125, dim=-1) @ v",
             inputs={"q": "torch.randn(8, 8, 1024, 64)", "k": "torch.randn(8, 2, 1024, 64)",
                     "v": "torch.randn(8, 2, 1024, 64)"}),
        SuiteTask(name="cross_attention", family="transformer", doc="Few queries, long memory.",
             setup="self.q, self.kv = nn.Linear(512, 512), nn.Linear(512, 1024)",
             forward="q = self.q(x).view(8, 64, 8, 64).transpose(1, 2)\n"
             "k, v = self.kv(y).view(8, 2048, 2, 8, 64).permute(2, 0, 3, 1, 4)\n"
             "return torch.softmax(q @ k.transpose(-2, -1) * 0.125, dim=-1) @ v",
             inputs={"x": "torch.randn(8, 64, 512)", "y": "torch.randn(8, 2048, 512)"}),
        SuiteTask(name="patch_embedding", family="transformer", doc="Patches by a strided convolution, a class token.",
             setup="self.patches = nn.Conv2d(3, 384, 16, stride=16)\nself.token = nn.Parameter(torch.randn(1, 1, 384))\n"
             "self.place = nn.Parameter(torch.randn(1, 197, 384))",
             forward="h = self.patches(x).flatten(2).transpose(1, 2)\n"
             "return torch.cat([self.token.expand(len(h), -1, -1), h], dim=1) + self.place",
             inputs={"x": "torch.randn(64, 3, 224, 224)"}),
        SuiteTask(name="mixer_block", family="transformer", doc="Perceptrons over tokens and over channels.",
             setup="self.norm1, self.norm2 = nn.LayerNorm(384), nn.LayerNorm(384)\n"
             "self.tokens1, self.tokens2 = nn.Linear(196, 384), nn.Linear(384, 196)\n"
             "self.up, self.down = nn.Linear(384, 1536), nn.Linear(1536, 384)",
             forward="h = self.norm1(x).transpose(1, 2)\n"
             "x = x + self.tokens2(F.gelu(self.tokens1(h))).transpose(1, 2)\n"
             "return x + self.down(F.gelu(self.up(self.norm2(x))))", inputs={"x": "torch.randn(64, 196, 384)"}),
    ]  # fmt: skip


def _recurrent() -> list[SuiteTask]:
    sequence = {"x": "torch.randn(128, 64, 256)"}
    loop = "h = x.new_zeros(x.shape[1], 256)\nfor step in x:\n    {step}\nreturn h"
    return [
        SuiteTask(name="lstm", family="recurrent", doc="Two layers of the library's LSTM.",
             setup="self.layers = nn.LSTM(256, 256, 2)", forward="self.layers(x)[0]", inputs=sequence),
        SuiteTask(name="gru", family="recurrent", doc="The library's GRU.", setup="self.layers = nn.GRU(256, 256)",
             forward="self.layers(x)[0]", inputs=sequence),
        SuiteTask(name="gru_bidirectional", family="recurrent", doc="Both directions, the last state only.",
             setup="self.layers = nn.GRU(256, 128, bidirectional=True)", forward="self.layers(x)[1]", inputs=sequence),
        SuiteTask(name="rnn_by_hand", family="recurrent", doc="A tanh recurrence in a Python loop.",
             setup="self.inner, self.outer = nn.Linear(256, 256), nn.Linear(256, 256, bias=False)",
             forward=loop.format(step="h = torch.tanh(self.inner(step) + self.outer(h))"), inputs=sequence),
        SuiteTask(name="rnn_concatenated", family="recurrent", doc="The same with a concatenation in every step.",
             setup="self.layer = nn.Linear(512, 256)",
             forward=loop.format(step="h = torch.tanh(self.layer(torch.cat([step, h], dim=1)))"), inputs=sequence),
        SuiteTask(name="gru_cell_loop", family="recurrent", doc="A loop over a cell.", setup="self.cell = nn.GRUCell(256, 256)",
             forward=loop.format(step="h = self.cell(step, h)"), inputs=sequence),
        SuiteTask(name="state_space_scan", family="recurrent", doc="A diagonal state space model, step by step.",
             setup="self.decay = nn.Parameter(torch.randn(256))",
             forward="a = torch.sigmoid(self.decay)\nh = torch.zeros_like(x[0])\nout = []\nfor step in x:\n"
             "    h = a * h + (1 - a) * step\n    out.append(h)\nreturn torch.stack(out)", inputs=sequence),
        SuiteTask(name="selective_scan", family="recurrent", doc="A state space whose decay depends on the input.",
             setup="self.gate = nn.Linear(256, 256)",
             forward="a = torch.sigmoid(self.gate(x))\nh = torch.zeros_like(x[0])\nout = []\n"
             "for decay, step in zip(a, x):\n    h = decay * h + step\n    out.append(h)\nreturn torch.stack(out)",
             inputs=sequence),
        SuiteTask(name="chunked_state_space", family="recurrent", doc="Sums of decays by a masked difference of running sums.",
             forward="total = torch.cumsum(x, dim=-1)\ndifference = total[..., :, None] - total[..., None, :]\n"
             "keep = torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool, device=x.device).tril()\n"
             'return torch.exp(difference.masked_fill(~keep, float("-inf")))',
             inputs={"x": "-torch.rand(64, 8, 128)"}),
        SuiteTask(name="character_model", family="recurrent", doc="Embedding, LSTM, a classifier.",
             setup="self.table, self.layers = nn.Embedding(256, 128), nn.LSTM(128, 256, batch_first=True)\n"
             "self.head = nn.Linear(256, 256)",
             forward="self.head(self.layers(self.table(index))[0][:, -1])",
             inputs={"index": "torch.randint(0, 256, (64, 128))"}),
    ]  # fmt: skip


TASKS: list[SuiteTask] = [*_perceptrons(), *_images(), *_transformers(), *_recurrent()]
