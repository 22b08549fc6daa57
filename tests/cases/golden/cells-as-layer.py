"""A tagger that reads words from the end, cell by cell."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def lstm_steps(x, h, c, weight_ih, weight_hh, bias_ih, bias_hh):
    """64 steps of LSTMCell as one layer of the library: weights lie alike."""
    states, h, c = torch.lstm(
        x, (h[None].contiguous(), c[None].contiguous()), (weight_ih, weight_hh, bias_ih, bias_hh),
        has_biases=True, num_layers=1, dropout=0.0, train=torch.is_grad_enabled(), bidirectional=False,
        batch_first=True,
    )
    return states.contiguous(), c[0]


# kernel-lsp: workload words=bf16[32,64,128]
class Tagger(nn.Module):
    def __init__(self, width=128, tags=16):
        super().__init__()
        self.embed = nn.Linear(width, width, dtype=torch.bfloat16)
        self.cell = nn.LSTMCell(width, width, dtype=torch.bfloat16)
        self.score = nn.Linear(width, tags, dtype=torch.bfloat16)

    def _forward_eager(self, words):
        hidden = memory = words.new_zeros(words.size(0), 128)
        scores = []
        for t in reversed(range(words.size(1))):
            seen = torch.relu(self.embed(words[:, t]))
            hidden, memory = self.cell(seen, (hidden, memory))
            scores.append(self.score(hidden))
        return torch.stack(scores[::-1], dim=1), memory

    def forward(self, words):
        # Verified on cuda for words: bfloat16 (32, 64, 128).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            words.is_cuda
            and words.dtype == torch.bfloat16
            and words.shape == (32, 64, 128)
            and not torch.is_autocast_enabled("cuda")
            and type(embed := self.embed) is torch.nn.Linear
            and not (embed._forward_hooks or embed._forward_pre_hooks)
            and type(cell := self.cell) is torch.nn.LSTMCell
            and not (cell._forward_hooks or cell._forward_pre_hooks)
            and type(score := self.score) is torch.nn.Linear
            and not (score._forward_hooks or score._forward_pre_hooks)
            and (weight_hh := cell.weight_hh).dtype == torch.bfloat16
            and weight_hh.shape == (512, 128)
            and (weight_ih := cell.weight_ih).dtype == torch.bfloat16
            and weight_ih.shape == (512, 128)
            and (embed_weight := embed.weight).dtype == torch.bfloat16
            and embed_weight.shape == (128, 128)
            and (score_weight := score.weight).dtype == torch.bfloat16
            and score_weight.shape == (16, 128)
            and not torch._C._are_functorch_transforms_active()
            and (bias_ih := cell.bias_ih) is not None
            and (bias_hh := cell.bias_hh) is not None
        ):
            return self._forward_eager(words)
        new_zeros = torch.ops.aten.new_zeros.default(words, (32, 128), pin_memory=False)
        hidden = F.linear(torch.flip(words, dims=(1,)), embed_weight, embed.bias)
        relu = F.relu(hidden)
        results = lstm_steps(relu, new_zeros, new_zeros, weight_ih, weight_hh, bias_ih, bias_hh)
        hidden = F.linear(results[0], score_weight, score.bias)
        return torch.flip(hidden, dims=(1,)), results[1]
