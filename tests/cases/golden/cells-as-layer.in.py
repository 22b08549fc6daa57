"""A tagger that reads words from the end, cell by cell."""

import torch
import torch.nn as nn


# kernel-lsp: workload words=bf16[32,64,128]
class Tagger(nn.Module):
    def __init__(self, width=128, tags=16):
        super().__init__()
        self.embed = nn.Linear(width, width, dtype=torch.bfloat16)
        self.cell = nn.LSTMCell(width, width, dtype=torch.bfloat16)
        self.score = nn.Linear(width, tags, dtype=torch.bfloat16)

    def forward(self, words):
        hidden = memory = words.new_zeros(words.size(0), 128)
        scores = []
        for t in reversed(range(words.size(1))):
            seen = torch.relu(self.embed(words[:, t]))
            hidden, memory = self.cell(seen, (hidden, memory))
            scores.append(self.score(hidden))
        return torch.stack(scores[::-1], dim=1), memory
