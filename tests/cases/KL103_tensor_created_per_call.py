import torch
from torch import nn

SIZE = 16


class Constants(nn.Module):
    def __init__(self, num_bins):
        super().__init__()
        self.num_bins = num_bins

    def forward(self, x):
        mean = torch.tensor([0.485, 0.456, 0.406], device=x.device)  #! KL103
        bins = torch.arange(self.num_bins, dtype=x.dtype)  #! KL103
        eye = torch.eye(SIZE, device=x.device)  #! KL103
        return (x - mean) @ eye + bins


# Near misses.


class Shaped(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.5]))

    def forward(self, x):
        positions = torch.arange(x.shape[1], device=x.device)  # depends on the input
        state = torch.zeros(x.size(0), 8)
        return x + positions + state + self.mean


class Filled(nn.Module):
    def forward(self, x):
        out = torch.zeros(4, 4)  # written in place: a fresh one is needed
        out[0] = x
        table = torch.ones(4)
        table.mul_(2)
        return out + table


class Cached(nn.Module):
    def forward(self, x):
        if self.mask is None:
            self.mask = torch.ones(4, 4)
        return x * self.mask


def make_mask(x: torch.Tensor):
    return x * torch.tensor([1.0, 2.0])  # functions may be called once
