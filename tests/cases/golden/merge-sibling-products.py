"""Query, key and value of an attention layer, each with a layer of its own."""

import torch.nn as nn
import torch
import torch.nn.functional as F


# kernel-lsp: workload tokens=f32[32,512,256]
class Projections(nn.Module):
    def __init__(self, width=256, heads=8):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def _forward_eager(self, tokens):
        batch, length, width = tokens.shape
        shape = batch, length, self.heads, width // self.heads
        query = self.query(tokens).view(shape).transpose(1, 2)
        key = self.key(tokens).view(shape).transpose(1, 2)
        value = self.value(tokens).view(shape).transpose(1, 2)
        return (query @ key.transpose(-2, -1)).softmax(-1) @ value

    def forward(self, tokens):
        # Verified on cuda for tokens: float32 (32, 512, 256).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            tokens.is_cuda
            and tokens.dtype == torch.float32
            and tokens.shape == (32, 512, 256)
            and not torch.is_autocast_enabled("cuda")
            and self.heads == 8
            and type(query_2 := self.query) is torch.nn.Linear
            and not (query_2._forward_hooks or query_2._forward_pre_hooks)
            and type(key_2 := self.key) is torch.nn.Linear
            and not (key_2._forward_hooks or key_2._forward_pre_hooks)
            and type(value_2 := self.value) is torch.nn.Linear
            and not (value_2._forward_hooks or value_2._forward_pre_hooks)
            and (key_weight := key_2.weight).dtype == torch.float32
            and key_weight.shape == (256, 256)
            and (query_weight := query_2.weight).dtype == torch.float32
            and query_weight.shape == (256, 256)
            and (value_weight := value_2.weight).dtype == torch.float32
            and value_weight.shape == (256, 256)
        ):
            return self._forward_eager(tokens)
        # Joined on each call, so training and load_state_dict stay right.
        joined_weight = torch.cat((query_weight, key_weight, value_weight))
        joined_bias = torch.cat((query_2.bias, key_2.bias, value_2.bias))
        projected = F.linear(tokens, joined_weight, joined_bias)
        parts = torch.split(projected, (256, 256, 256), -1)
        query = parts[0].view(32, 512, 8, 32).transpose(1, 2)
        key = parts[1].view(32, 512, 8, 32).transpose(1, 2)
        value = parts[2].view(32, 512, 8, 32).transpose(1, 2)
        return torch.softmax(query @ key.transpose(-2, -1), dim=-1) @ value
