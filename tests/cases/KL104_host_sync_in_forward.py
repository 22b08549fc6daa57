import numpy as np
import torch
from torch import nn


class Syncs(nn.Module):
    def forward(self, x, lengths):
        print(x)  #! KL104
        longest = lengths.max().item()  #! KL104
        host = x.cpu()  #! KL104
        sizes = lengths.tolist()  #! KL104
        if torch.isnan(x).any():  #! KL104
            x = torch.nan_to_num(x)
        return self.inner(x), longest, host, sizes

    def inner(self, x):
        return x.numpy()  #! KL104


# Near misses.


class Quiet(nn.Module):
    def forward(self, x, sizes: dict, table):
        for key, value in sizes.items():
            print(key)
        if self.debug:
            print(x, x.max().item())
        if x.shape[0] == 0:
            raise ValueError(f"empty input, scale {table.item()}")
        count = np.prod(x.shape).item()
        return x.cuda(), count

    def summary(self, x):
        return x.cpu().tolist()  # forward never calls it


def metric(x: torch.Tensor) -> float:
    return x.mean().item()  # a function may well return a number
