import gc

import torch
from torch import nn


def train(model, loader, optimizer):
    for x in loader:
        model(x).backward()
        optimizer.step()
        gc.collect()  #! KL312
        torch.cuda.empty_cache()  #! KL312


class Model(nn.Module):
    def forward(self, x):
        torch.cuda.empty_cache()  #! KL312
        return x


# Near misses.


def good(model, loader, optimizer):
    for epoch in range(3):
        for step, x in enumerate(loader):
            model(x).backward()
            optimizer.step()
            if step % 100 == 0:
                torch.cuda.empty_cache()
            try:
                model(x)
            except RuntimeError:
                torch.cuda.empty_cache()
        gc.collect()
