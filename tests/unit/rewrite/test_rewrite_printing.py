"""Every way to spell an op: a captured graph, printed without any rewrite, computes what eager
does."""

from dataclasses import replace

import pytest
import torch
from rewrite_helpers import instance, module, session

from kernel_lsp.records import SourceEdit
from kernel_lsp.rewrite.edit import apply_edit
from kernel_lsp.rewrite.printing.forward import emit

pytestmark = pytest.mark.torch

TOKENS, IMAGES, ROWS = "torch.randn(4, 6, 8)", "torch.randn(4, 3, 16, 16)", "torch.randn(6, 8)"

CASES = [
    (
        "return self.m(x, x, x)[0]",
        "self.m = nn.MultiheadAttention(8, 2, batch_first=True)",
        TOKENS,
    ),
    (
        "return self.m(x)",
        "self.m = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)",
        TOKENS,
    ),
    (
        "out, (h, c) = self.m(x)\nreturn out[:, -1], h",
        "self.m = nn.LSTM(8, 16, batch_first=True)",
        TOKENS,
    ),
    (
        "q, k, v = self.qkv(x).chunk(3, dim=-1)\n"
        "att = (q @ k.transpose(-2, -1)) * (1.0 / 8 ** 0.5)\n"
        "mask = torch.tril(torch.ones(6, 6, device=x.device))\n"
        "att = att.masked_fill(mask == 0, float('-inf'))\n"
        "att = F.softmax(att, dim=-1)\n"
        "return att @ v",
        "self.qkv = nn.Linear(8, 24)",
        TOKENS,
    ),
    (
        "b, c, h, w = x.shape\n"
        "y = self.c(x)\n"
        "y = F.max_pool2d(F.relu(self.bn(y)), 2)\n"
        "return torch.flatten(y, 1)",
        "self.c = nn.Conv2d(3, 8, 3)\nself.bn = nn.BatchNorm2d(8)",
        IMAGES,
    ),
    (
        "return torch.einsum('bij,bjk->bik', x, x.transpose(1, 2)).logsumexp(-1)",
        "pass",
        TOKENS,
    ),
    (
        "y = self.ct(x)\ny = F.gelu(self.gn(y))\nreturn torch.clamp(y, min=0.1) + self.b",
        "self.ct = nn.ConvTranspose2d(3, 8, 3, stride=2, output_padding=1)\n"
        "self.gn = nn.GroupNorm(2, 8)\n"
        "self.b = nn.Parameter(torch.randn(8, 1, 1))",
        IMAGES,
    ),
    (
        "return F.cross_entropy(self.fc(x), torch.zeros(6, dtype=torch.long))",
        "self.fc = nn.Linear(8, 10)",
        ROWS,
    ),
    (
        "idx = torch.topk(x, 3, dim=1)\nreturn torch.gather(x, 1, idx.indices) + idx[0]",
        "pass",
        ROWS,
    ),
    (
        "return self.e(torch.arange(8, device=x.device)) + x.unsqueeze(-1)",
        "self.e = nn.Embedding(10, 4)",
        ROWS,
    ),
    (
        "y = x[:, None, ::2]\n"
        "z = x[1:-1, -1]\n"
        "return y.std(dim=-1).var(0, unbiased=False), z.cumsum(0).flip(0), torch.where(x > 0, x, "
        "-x.abs()), x.norm(dim=1)",
        "pass",
        ROWS,
    ),
    (
        "y = F.interpolate(x, scale_factor=2)\nreturn F.adaptive_avg_pool2d(y, "
        "1).view(x.size(0), -1)",
        "pass",
        IMAGES,
    ),
    (
        "for l in self.ls:\n    x = F.silu(l(x))\nreturn x.view(-1).max()",
        "self.ls = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])",
        ROWS,
    ),
    (
        "return F.instance_norm(x) * 2 ** x.sigmoid() - (1 - x) / (x - 3) ** 2",
        "pass",
        IMAGES,
    ),
    (
        "a, b = x.split([3, 5], dim=1)\n"
        "return torch.cat([b, a], 1) % 2, torch.stack([x, -x]), x.round(decimals=1), ~(x > 0) & (x "
        "< 1)",
        "pass",
        ROWS,
    ),
    (
        "return F.rms_norm(x, (8,), self.w) + F.layer_norm(x, (8,)) + F.softplus(x, beta=2.0) + "
        "F.elu(x, 0.7) + F.hardtanh(x) + F.selu(x) + F.threshold(x, 0.1, 20) + F.softsign(x) + "
        "F.celu(x, 0.4) + F.prelu(x, self.w[:1])",
        "self.w = nn.Parameter(torch.ones(8))",
        ROWS,
    ),
    (  # layers with several results, of which one is used
        "out, _ = self.m(x)\nreturn F.relu(self.fc(out[:, -1])), self.p(x)[0]",
        "self.m = nn.LSTM(8, 16)\nself.fc = nn.Linear(16, 4)\nself.p = nn.MaxPool1d(2, "
        "return_indices=True)",
        TOKENS,
    ),
    (  # a loss without a reduction means one thing to aten and another to torch's own function
        "y, t = x.flip(1), x[:, 0].sign()\n"
        "return (F.binary_cross_entropy_with_logits(x, y.sigmoid(), pos_weight=x[0].abs()), "
        "F.hinge_embedding_loss(x, y.sign()), F.triplet_margin_loss(x, y, -x, swap=True), "
        "F.cosine_embedding_loss(x, y, t), F.margin_ranking_loss(x[:, 1], y[:, 0], t), "
        "F.kl_div(x, y.exp(), reduction='batchmean'), F.soft_margin_loss(x, y.sign()), "
        "F.l1_loss(x, y, reduction='sum'), F.huber_loss(x, y), F.nll_loss(x, t.long().abs()), "
        "F.cross_entropy(x, y.softmax(1)))",
        "pass",
        ROWS,
    ),
    (
        "return torch.convolution(x, self.w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1) * 2",
        "self.w = nn.Parameter(torch.ones(8, 3, 3, 3))",
        IMAGES,
    ),
]


@pytest.mark.parametrize("by_layer", [True, False], ids=["layers", "functions"])
@pytest.mark.parametrize("forward, init, inputs", CASES)
def test_a_printed_graph_computes_what_the_original_does(
    forward: str, init: str, inputs: str, by_layer: bool
) -> None:
    opened = session(module(forward, init, inputs), training=False)
    graph = opened.graph.copy()
    if not by_layer:
        graph.origin = replace(graph.origin, calls=())
    made = emit(graph, generic_batch=True)
    edit = SourceEdit(
        qualname="Model", imports=made.imports, definitions=made.definitions, target=made.target
    )
    printed = apply_edit(opened.program.source, made.span, edit)
    before = instance(opened.program.source, False, torch.float32)
    after = instance(printed, False, torch.float32)

    def never(*_args: object) -> None:
        raise AssertionError("the guard refused the verified workload")

    after._forward_eager = never
    x = eval(inputs, {"torch": torch})
    with torch.no_grad():
        torch.testing.assert_close(after(x), before(x), equal_nan=True)
