"""A recurrence written by hand."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def recurrent_steps(projected, memory, remember_weight):
    """64 steps; what each input adds to its product is computed already."""
    for projected_t in projected:
        hidden = F.linear(memory, remember_weight)
        shifted = projected_t + hidden
        memory = torch.tanh(shifted)
    return memory


# kernel-lsp: workload words=f32[64,32,128]
class Reader(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.see, self.remember = nn.Linear(width, width), nn.Linear(width, width, bias=False)

    def _forward_eager(self, words):
        memory = torch.zeros_like(words[0])
        for word in words:
            memory = torch.tanh(self.see(word) + self.remember(memory))
        return memory

    def forward(self, words):
        # Verified on cuda for words: float32 (64, 32, 128).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            words.is_cuda
            and words.dtype == torch.float32
            and words.shape == (64, 32, 128)
            and not torch.is_autocast_enabled("cuda")
            and type(see := self.see) is torch.nn.Linear
            and not (see._forward_hooks or see._forward_pre_hooks)
            and type(remember := self.remember) is torch.nn.Linear
            and not (remember._forward_hooks or remember._forward_pre_hooks)
            and (remember_weight := remember.weight).dtype == torch.float32
            and remember_weight.shape == (128, 128)
            and (see_weight := see.weight).dtype == torch.float32
            and see_weight.shape == (128, 128)
        ):
            return self._forward_eager(words)
        memory = torch.zeros_like(words[0])
        projected = F.linear(words, see_weight, see.bias)
        return recurrent_steps(projected, memory, remember_weight)
